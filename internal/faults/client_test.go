package faults

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
)

// endlessModel returns a model that calls the tool once and then writes until the client
// disconnects; left counts those requests.
func endlessModel(left *atomic.Int64) llmtest.Script {
	return llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "t", Args: "{}"}), func(w http.ResponseWriter, q *http.Request) {
		defer left.Add(1)
		llmtest.Stream(w, "")
		rc := http.NewResponseController(w)
		for n := 0; q.Context().Err() == nil; n++ {
			fmt.Fprintf(w, `data: {"choices":[{"delta":{"content":"word "}}]}`+"\n\n")
			if rc.Flush() != nil {
				return
			}
			<-time.After(5 * time.Millisecond) // as models do
		}
	})
}

func TestF29ClientDisconnectCancelsTheRun(t *testing.T) {
	r := beginFault(t, "clients leave at each of 20 points of a stream, and of POST /answer", "the model's stream is closed, the slot free")
	var left atomic.Int64
	model := llmtest.New(t, endlessModel(&left))
	tool := newPeer(t, nil)

	s := start(t, "LLM_BASE_URL="+model.URL, "MCP_URL="+tool.url, "DISCONNECT_GRACE=0s", "MAX_CONCURRENT_RUNS=1")
	slowest := time.Duration(0)
	for point := 1; point <= 20; point++ {
		ctx, leave := context.WithCancel(t.Context())
		resp := s.startStream(t, ctx)
		n := 0
		got, _ := readEvents(resp.Body, func(streamEvent) bool { n++; return n < point })
		leave()
		resp.Body.Close()
		slowest = max(slowest, timeOf(func() { s.waitUntilEnded(t, got.last().RunID) }))
	}

	ctx, leave := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer leave()
	if resp, err := s.send(ctx, "POST", "/answer", question); err == nil {
		resp.Body.Close()
		t.Error("an endless answer came, want an error")
	}
	s.waitUntilIdle(t)
	if slowest > 5*time.Second {
		t.Errorf("a run lasted %s without its reader, want at most 5 s", slowest)
	}
	r.record("20 of 20, the slowest after %s", slowest.Round(10*time.Millisecond))
}

// startStream starts a stream. One that is refused for want of room is tried again.
func (s *service) startStream(t testing.TB, ctx context.Context) *http.Response {
	t.Helper()
	for deadline := time.Now().Add(waitLimit); ; {
		resp, err := s.send(ctx, "POST", "/answer/stream", question)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode == http.StatusOK {
			return resp
		}
		resp.Body.Close()
		if time.Now().After(deadline) {
			t.Fatalf("no room: %s, want 200", resp.Status)
		}
	}
}

// waitUntilEnded reads a run to its terminal event; a client that reads it meanwhile does not start it
// again.
func (s *service) waitUntilEnded(t testing.TB, run string) {
	t.Helper()
	for deadline := time.Now().Add(waitLimit); ; {
		if status := s.request(t, "GET", "/runs/"+run, "").field("status"); status != "running" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("run %s goes on, want it cancelled", run)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// waitUntilIdle waits until no run is active.
func (s *service) waitUntilIdle(t testing.TB) {
	t.Helper()
	for deadline := time.Now().Add(waitLimit); s.metric(t, "answerd_runs_active") > 0; {
		if time.Now().After(deadline) {
			t.Fatal("runs are active, want none")
		}
		<-time.After(10 * time.Millisecond)
	}
}

func TestF30StallingClientIsDisconnected(t *testing.T) {
	r := beginFault(t, "headers that never end; a body at 1 B/s", "closed after about 5 s; 408 or closed after about 15 s; others served meanwhile")
	model := llmtest.New(t, llmtest.Turns(llmtest.Says("Yes.")))
	s := start(t, "LLM_BASE_URL="+model.URL)

	host := strings.TrimPrefix(s.url, "http://")
	var all sync.WaitGroup
	for _, c := range []struct {
		name, head string
		most       time.Duration
	}{
		{"headers", "POST /answer HTTP/1.1\r\nHost: localhost\r\nX-A: ", 12 * time.Second},
		{"body", "POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{", 25 * time.Second},
	} {
		all.Go(func() {
			conn, err := net.Dial("tcp", host)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, c.head)
			over := make(chan string, 1)
			go func() {
				line, _ := bufio.NewReader(conn).ReadString('\n')
				over <- strings.TrimSpace(line)
			}()
			began := time.Now()
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for {
				select {
				case line := <-over:
					if d := time.Since(began); d > c.most || line != "" && !strings.Contains(line, "408") {
						t.Errorf("%s: %q after %s, want nothing or 408 after at most %s", c.name, line, d, c.most)
					}
					r.record("%s: %q", c.name, line)
					return
				case <-tick.C:
					_, _ = io.WriteString(conn, "x")
				}
				if time.Since(began) > waitLimit {
					t.Errorf("%s: the connection is open after %v, want it closed", c.name, waitLimit)
					return
				}
			}
		})
	}

	if a := s.ask(t); a.status != 200 {
		t.Errorf("beside them: %+v, want status 200", a)
	}
	all.Wait()
}

func TestF31ReconnectStormDoublesNoRun(t *testing.T) {
	r := beginFault(t, "100 clients that leave and come back 3 times with Last-Event-ID", "100 runs, each read whole, no question asked twice")
	words := make([]string, 40)
	for i := range words {
		words[i] = "word "
	}

	model := llmtest.New(t, llmtest.Turns(llmtest.Says(words...)))
	s := start(t, "LLM_BASE_URL="+model.URL)

	const clients = 100
	var all sync.WaitGroup
	var broken atomic.Int64
	for range clients {
		all.Go(func() {
			var got eventList
			for try := range 4 {
				header := []string{}
				if len(got) > 0 {
					header = []string{"Last-Event-ID", got.last().ID}
				}
				resp, err := s.send(t.Context(), "POST", "/answer/stream", question, header...)
				if err != nil {
					t.Error(err)
					return
				}
				n := 0
				part, err := readEvents(resp.Body, func(streamEvent) bool { n++; return n < 8 || try == 3 })
				resp.Body.Close()
				if err != nil {
					t.Error(err)
				}
				got = append(got, part...)
			}
			if orderError := got.orderError(); orderError != "" || got.last().Type != "final_answer" {
				broken.Add(1)
				t.Errorf("%s, last %+v, want orderError empty, got.last().Type final_answer", orderError, got.last())
			}
		})
	}

	all.Wait()
	if n := len(model.Requests()); n != clients {
		t.Errorf("%d questions to the model, want %d", n, clients)
	}
	r.record("%d questions, %d broken", len(model.Requests()), broken.Load())
}

func TestF38RequestsOfOneKeyAreOneRun(t *testing.T) {
	r := beginFault(t, "50 requests with one Idempotency-Key, one with another body", "one run; 422")
	model := llmtest.New(t, llmtest.Turns(llmtest.Says("Yes.")))

	s := start(t, "LLM_BASE_URL="+model.URL)
	var all sync.WaitGroup
	var runs sync.Map
	for range 50 {
		all.Go(func() {
			a, err := s.trySend("POST", "/answer", question, "Idempotency-Key", "k")
			if err != nil || a.status != 200 {
				t.Errorf("got %+v, %v, want status 200", a, err)
			}
			runs.Store(a.field("run_id"), true)
		})
	}

	all.Wait()
	n := 0
	runs.Range(func(any, any) bool { n++; return true })
	if n != 1 || len(model.Requests()) != 1 {
		t.Errorf("%d runs, %d questions, want 1 and 1", n, len(model.Requests()))
	}
	r.record("%d run", n)
	r.wantProblem(s.request(t, "POST", "/answer", `{"question":"!"}`, "Idempotency-Key", "k"), 422, "unprocessable")
}
