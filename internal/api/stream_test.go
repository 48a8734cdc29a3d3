package api_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/api"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp"
)

// newHandlerOver returns the API over a log that the test writes itself, without servers or model.
func newHandlerOver(t testing.TB, log event.Log) http.Handler {
	t.Helper()
	return newHandler(t, agent.Options{Log: log})
}

// newHandler returns the HTTP handler of an agent that has no MCP servers.
func newHandler(t testing.TB, o agent.Options) http.Handler {
	t.Helper()
	tools, err := mcp.New(nil, mcp.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	o.Tools = tools
	a, err := agent.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		tools.Close()
		a.Drain(context.Background())
	})
	h := api.New(api.Options{Agent: a, Log: o.Log})
	t.Cleanup(func() { h.Close(context.Background()) })
	return h
}

// serveLogOverPipes serves that API without sockets, and returns a function that connects to it.
func serveLogOverPipes(t *testing.T, log event.Log) (dial func() net.Conn) {
	t.Helper()
	return serveOverPipes(t, newHandlerOver(t, log))
}

func requestEvents(c net.Conn) error {
	_, err := fmt.Fprint(c, "GET /runs/run_a/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
	return err
}

// newFollowedRun returns a log that has a run, and a connection that reads the run's events.
func newFollowedRun(t *testing.T) (*memory.Log, net.Conn) {
	t.Helper()
	log := memory.New(memory.Options{})
	if err := log.Create(t.Context(), event.Run{ID: "run_a"}); err != nil {
		t.Fatal(err)
	}
	c := serveLogOverPipes(t, log)()
	if err := requestEvents(c); err != nil {
		t.Fatal(err)
	}
	return log, c
}

func TestStreamSendsAHeartbeatEveryFifteenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := newFollowedRun(t)
		defer c.Close()
		began, beats := time.Now(), 0
		for lines := bufio.NewScanner(c); beats < 4 && lines.Scan(); {
			if lines.Text() == ": ping" {
				if beats++; time.Since(began) != time.Duration(beats)*15*time.Second {
					t.Errorf("beat %d after %s, want %v", beats, time.Since(began), time.Duration(beats)*15*time.Second)
				}
			}
		}
		if beats != 4 {
			t.Errorf("%d beats, want 4", beats)
		}
	})
}

// wordByWordModel returns a model that calls add, and then sends 2 kB for every number from words.
func wordByWordModel(words <-chan int) llmtest.Script {
	return llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), func(w http.ResponseWriter, r *http.Request) {
		for {
			select {
			case n, more := <-words:
				if !more {
					llmtest.Stream(w, "stop", map[string]any{"content": "."})
					return
				}
				for range n {
					llmtest.Stream(w, "", map[string]any{"content": strings.Repeat("word ", 400)})
				}
			case <-r.Context().Done():
				return
			}
		}
	})
}

// Twenty readers of one run in one API format: from its start and from the middle, some that leave,
// one that reads nothing until the run has ended. Each gets, byte for byte, what a single reader
// gets after the end of the run.
func TestStreamsOfOneRunAreEqual(t *testing.T) {
	for name, ask := range map[string]struct{ path, body string }{
		"responses": {"/v1/responses", responsesBody("And?", `,"stream":true`)},
		"aisdk":     {"/api/chat", chatBody("c", "And?")},
		"agui":      {"/agui", aguiInput("r", "")},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			words := make(chan int)
			fixture := agenttest.NewFixture(t, wordByWordModel(words), nil)
			server := httptest.NewUnstartedServer(api.New(api.Options{Agent: fixture.Agent, Log: fixture.Log, Heartbeat: time.Hour, WriteTimeout: time.Hour}))
			server.Listener = timedListener{server.Listener, func(string, time.Duration) {}} // a reader that reads nothing stalls: the connection does not hold the whole stream
			server.Start()
			t.Cleanup(server.Close)
			s := &service{Fixture: fixture, Server: server}

			openStream := func(ctx context.Context) *http.Response {
				return s.doContext(ctx, t, "POST", ask.path, ask.body, "Idempotency-Key", "k")
			}
			sendWords := func(n int) {
				select {
				case words <- n:
				case <-ctx.Done():
					t.Fatal("the model's text was not read, want a reader")
				}
			}

			var all sync.WaitGroup
			got := make([][]byte, 20)
			addReaders := func(from, to int) {
				for i := range got[from:to] {
					resp := openStream(ctx)
					all.Go(func() {
						var err error
						if got[from+i], err = io.ReadAll(resp.Body); err != nil {
							t.Errorf("reader %d: %v", from+i, err)
						}
					})
				}
			}

			// Readers join before, during and after the text. One does not read, and four leave in the middle.
			stalled := openStream(ctx)
			addReaders(0, 7)
			leaving, leave := context.WithCancel(ctx)
			defer leave()
			var gone []*http.Response
			for range 4 {
				gone = append(gone, openStream(leaving))
			}
			sendWords(80)
			for _, resp := range gone { // in the middle of what is said
				if _, err := io.CopyN(io.Discard, resp.Body, 40<<10); err != nil {
					t.Fatal(err)
				}
			}
			addReaders(7, 14)
			sendWords(1)
			leave()
			sendWords(80)
			addReaders(14, 19)
			sendWords(80)
			close(words)
			all.Wait() // for all readers but the stalled one

			// Each reader that stayed has the same bytes as one that reads the run afterwards.
			var err error
			if got[19], err = io.ReadAll(stalled.Body); err != nil {
				t.Fatal(err)
			}
			want, err := io.ReadAll(openStream(ctx).Body)
			if err != nil || len(want) < 400<<10 {
				t.Fatalf("%d bytes: %v", len(want), err)
			}
			for i, said := range got {
				if !bytes.Equal(said, want) {
					n := 0
					for n < min(len(said), len(want)) && said[n] == want[n] {
						n++
					}
					t.Errorf("reader %d got %d bytes of %d, alike up to %d: %.300s", i, len(said), len(want), n, said[n:])
				}
			}
		})
	}
}

// A run that waits for a person, and one that has waited and continued.
func TestStreamsOfASuspendedRunAreEqual(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]struct{ path, body string }{
		"responses": {"/v1/responses", responsesBody("And?", `,"stream":true`)},
		"aisdk":     {"/api/chat", strings.TrimSuffix(chatBody("c", "And?"), "}") + `,"approvals":true}`},
		"agui":      {"/agui", aguiInput("r", "")},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := boundedContext(t)
			s := newService(t, addingModel(), nil, nil, addNeedsApproval)
			readTogether := func() string {
				var all sync.WaitGroup
				got := make([]string, 10)
				for i := range got {
					resp := s.doContext(ctx, t, "POST", ask.path, ask.body, "Idempotency-Key", "k")
					all.Go(func() {
						said, err := io.ReadAll(resp.Body)
						if got[i] = string(said); err != nil || resp.StatusCode != http.StatusOK {
							t.Errorf("%s: %v, want status 200, no error", resp.Status, err)
						}
					})
				}
				all.Wait()
				lone := readBody(t, s.doContext(ctx, t, "POST", ask.path, ask.body, "Idempotency-Key", "k"))
				for i, said := range got {
					if said != lone {
						t.Errorf("reader %d got %s, want %s", i, said, lone)
					}
				}
				return lone
			}

			waits := readTogether()
			run := newestRun(t, s)
			open := decodeResponse[struct{ Interrupts []struct{ ID string } }](t, s.do(t, "GET", "/runs/"+run, ""), 200).Interrupts
			readBody(t, s.do(t, "POST", "/runs/"+run+"/input", `{"id":"`+open[0].ID+`","approved":true}`))
			readBody(t, s.doContext(ctx, t, "GET", "/runs/"+run+"/events", ""))

			// A response ends at its suspension; the other formats stream from the beginning.
			if over := readTogether(); (over == waits) != (name == "responses") {
				t.Errorf("after the run went on: %s, want what was told while it waited (%s) of responses only", over, waits)
			}
		})
	}
}

// logThatPanicsOnce is a log with a bug that strikes one reader, after the first events.
type logThatPanicsOnce struct {
	event.Log
	panicked *atomic.Bool
}

func (l logThatPanicsOnce) After(ctx context.Context, run string, after int64) (event.Page, error) {
	if after > 0 && !l.panicked.Swap(true) {
		panic("a bug")
	}
	return l.Log.After(ctx, run, after)
}

// F32: a reader must not take a stream that a panic has cut for a whole one.
func TestPanicInAStreamCutsItWithoutATerminalEvent(t *testing.T) {
	t.Parallel()
	open, panicked := make(chan struct{}), new(atomic.Bool)
	s := newService(t, waitingModel(open), nil, func(o *api.Options) { o.Log = logThatPanicsOnce{o.Log, panicked} })
	cut, err := io.ReadAll(s.do(t, "POST", "/answer/stream", question).Body)
	close(open)
	if err == nil || !panicked.Load() || strings.Contains(string(cut), "event: final_answer") || strings.Contains(string(cut), "event: run_error") {
		t.Fatalf("got %q, %v (panicked: %t), want an error before a terminal event", cut, err, panicked.Load())
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(string(cut), "id: "), ":")
	all := readFrames(t, s.do(t, "GET", "/runs/"+id+"/events", ""), "")
	if last := all[len(all)-1].Event; last != "final_answer" {
		t.Errorf("the run ended with %s for the next reader, want final_answer", last)
	}
}

// logThatCannotBeRead has runs whose events cannot be read.
type logThatCannotBeRead struct{ event.Log }

func (logThatCannotBeRead) After(context.Context, string, int64) (event.Page, error) {
	return event.Page{}, event.ErrUnavailable
}

// After the header, a stream could only be cut, and the client would not know why.
func TestStreamOfALogThatCannotBeReadIsRefusedBeforeItsHeader(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.Log = logThatCannotBeRead{o.Log} })
	run := strings.TrimPrefix(s.do(t, "POST", "/answer", `{"question":"What is 1 + 2?","background":true}`).Header.Get("Location"), "/runs/")
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/runs/" + run + "/events", ""},
		{"GET", "/answer/stream?question=What", ""},
		{"POST", "/answer/stream", question},
		{"GET", "/api/chat/" + run + "/stream", ""},
		{"POST", "/api/chat", `{"id":"c1","messages":[{"role":"user","parts":[{"type":"text","text":"What?"}]}]}`},
		{"POST", "/agui", `{"threadId":"t1","runId":"r1","messages":[{"id":"m1","role":"user","content":"What?"}],"tools":[],"context":[]}`},
		{"GET", "/v1/responses/" + run + "?stream=true", ""},
		{"POST", "/v1/responses", `{"model":"scripted","input":"What?","stream":true}`},
		{"POST", "/v1/chat/completions", `{"model":"scripted","messages":[{"role":"user","content":"What?"}],"stream":true}`},
	} {
		resp := s.do(t, c.method, c.path, c.body)
		if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%s %s = %d with Retry-After %q, want 503 with one", c.method, c.path, resp.StatusCode, resp.Header.Get("Retry-After"))
		}
		startedRun := strings.HasPrefix(c.path, "/v1/") && c.method == "POST"
		if retry := resp.Header.Get("X-Should-Retry"); startedRun && retry != "false" {
			t.Errorf("%s %s has X-Should-Retry %q, want false: a retry would start a second run", c.method, c.path, retry)
		}
	}
}
