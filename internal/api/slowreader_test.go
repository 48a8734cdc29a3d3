package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/api"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/sse"
)

// A result can have megabytes. A reader that takes it slowly is not one that takes nothing: if it
// were disconnected midway, it would resume at the same event again and again.
func TestSlowReaderGetsALargeEventWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, c := newFollowedRun(t)
		defer c.Close()
		if _, err := log.Append(t.Context(), "run_a", event.FinalAnswer{Answer: strings.Repeat("x", 1<<20)}); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		readSlowly(t, resp.Body)
	})
}

// readSlowly reads more than a mebibyte, in over a minute.
func readSlowly(t *testing.T, body io.Reader) {
	t.Helper()
	began, got := time.Now(), 0
	var err error
	for part := make([]byte, 16<<10); err == nil; {
		var n int
		n, err = io.ReadFull(body, part)
		got += n
		<-time.After(time.Second)
	}
	if took := time.Since(began); got < 1<<20 || took < time.Minute {
		t.Errorf("%d bytes in %s: %v, want got at least 1<<20, took at least 1 min", got, took, err)
	}
}

// largeAnswerModel is a model whose answer has one mebibyte.
type largeAnswerModel struct{}

func (largeAnswerModel) Stream(context.Context, llm.Request) iter.Seq2[llm.Part, error] {
	return func(yield func(llm.Part, error) bool) {
		for range 16 {
			if !yield(llm.Text{Delta: strings.Repeat("x", 64<<10)}, nil) {
				return
			}
		}
		yield(llm.Finish{Reason: "stop"}, nil)
	}
}

// A slow reader is not a stalled one: large answers are written in pieces, each with its own
// deadline. For streams: TestSlowReaderGetsALargeEventWhole.
func TestSlowReaderGetsALargeAnswerWhole(t *testing.T) {
	for name, ask := range map[string]struct {
		path, body string
		header     []string
	}{
		"native": {"/answer", question, nil},
		"an MCP host": {"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + callParams(question, "") + `}`, []string{
			"Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "answer"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHandler(t, agent.Options{Model: largeAnswerModel{}, Log: memory.New(memory.Options{}), DefaultModel: "large"})
				readSlowly(t, sendOver(t, serveOverPipes(t, h), "POST", ask.path, ask.body, ask.header...).Body)
			})
		})
	}
}

// reasoningModel returns a model that sends its reasoning in so many pieces of n bytes, one in each interval,
// once open is closed. Text would come once more in the end, to all readers at once, which
// is another load than the one to be measured.
func reasoningModel(open <-chan struct{}, pieces, n int, interval time.Duration) llmtest.Script {
	piece := map[string]any{"reasoning_content": strings.Repeat("x", n)}
	return llmtest.Turns(func(w http.ResponseWriter, r *http.Request) {
		llmtest.Stream(w, "", map[string]any{"content": "Well"})
		select {
		case <-open:
		case <-r.Context().Done():
		}
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for range pieces {
			llmtest.Stream(w, "", piece)
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
		}
		llmtest.Stream(w, "stop", map[string]any{"content": "."})
	})
}

// timedConn calls closed when it is closed, with the time since its last write began.
type timedConn struct {
	*net.TCPConn
	began  time.Time // of the last write; the handler's goroutine writes and closes
	closed func(remote string, waited time.Duration)
}

func (p *timedConn) Write(b []byte) (int, error) {
	p.began = time.Now()
	return p.TCPConn.Write(b)
}

func (p *timedConn) Close() error {
	p.closed(p.RemoteAddr().String(), time.Since(p.began))
	return p.TCPConn.Close()
}

// timedListener accepts timedConn connections.
type timedListener struct {
	net.Listener
	closed func(remote string, waited time.Duration)
}

func (l timedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp := c.(*net.TCPConn)
	_ = tcp.SetWriteBuffer(api.WriteBuffer)
	return &timedConn{TCPConn: tcp, closed: l.closed}, nil
}

// The server closes the connection of a reader that takes nothing when the time for one write has passed. Readers
// that read get every event at once. facts/reliability.md L4; LOAD=1 runs it with the numbers of readers given there.
func TestStreamsCutStalledReaders(t *testing.T) {
	t.Parallel()
	live, stalled, interval, timeout := 50, 50, 30*time.Millisecond, 3*time.Second
	if os.Getenv("LOAD") != "" {
		live, stalled, interval, timeout = 2000, 1000, time.Second, 5*time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), 120*time.Second)
	defer cancel()
	open := make(chan struct{})
	fixture := agenttest.NewFixture(t, reasoningModel(open, 30, 8<<10, interval), nil)
	var atBegin sync.Map // connections that are not the readers'
	waits := make(chan time.Duration, stalled)
	server := httptest.NewUnstartedServer(api.New(api.Options{Agent: fixture.Agent, Log: fixture.Log, Heartbeat: time.Hour, WriteTimeout: timeout}))
	server.Listener = timedListener{server.Listener, func(remote string, waited time.Duration) {
		if _, ok := atBegin.LoadAndDelete(remote); ok {
			waits <- waited
		}
	}}
	server.Start()
	t.Cleanup(server.Close)
	s := &service{Fixture: fixture, Server: server}
	run := s.startUntilFirstText(t)

	connect := func() *bufio.Reader {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
		_, err = fmt.Fprintf(c, "GET /runs/%s/events HTTP/1.1\r\nHost: localhost\r\n\r\n", run)
		r := bufio.NewReaderSize(c, 512)
		for line := ""; err == nil && !strings.HasPrefix(line, "event: text_delta"); {
			line, err = r.ReadString('\n')
		}
		if err != nil {
			t.Fatal(err)
		}
		atBegin.Store(c.LocalAddr().String(), true)
		return r
	}

	// Connect readers that stop reading after the first events.
	for range stalled {
		connect()
	}

	// Connect readers that read to the end, and measure how late each event comes.
	late := make([][]time.Duration, live)
	var broken sync.Once // one says enough
	var began time.Time
	ready := make(chan struct{}) // began is set
	var all sync.WaitGroup
	for i := range live {
		resp := s.doContext(ctx, t, "GET", "/runs/"+run+"/events", "")
		all.Go(func() {
			<-ready
			events := 0
			for r := sse.NewReader(bufio.NewReader(resp.Body), 1<<20); ; events++ {
				f, err := r.Next()
				if err != nil {
					broken.Do(func() { t.Errorf("a reader got %d events and then %v, want no error", events, err) })
					return
				}
				at := eventTime(f.Data)
				if at.After(began) {
					late[i] = append(late[i], time.Since(at))
				}
				if f.Event == "final_answer" {
					return
				}
			}
		})
	}

	// Let the model write. Every stalled reader is disconnected.
	began = time.Now()
	close(ready)
	close(open)
	longest := time.Duration(0)
	for n := range stalled {
		select {
		case waited := <-waits:
			longest = max(longest, waited)
		case <-ctx.Done():
			t.Fatalf("%d stalled readers are still there, want 0", stalled-n)
		}
	}
	if os.Getenv("LOAD") != "" && longest > timeout+time.Second { // what a busy machine makes of a short test says little
		t.Errorf("the connection of a stalled reader was closed after %s, want at most %v", longest, timeout+time.Second)
	}
	t.Logf("%d connections of stalled readers were closed at most %s after the last write began, of %s", stalled, longest.Round(time.Millisecond), timeout)

	// The other readers got all events.
	all.Wait()
	events := slices.Sorted(slices.Values(slices.Concat(late...)))
	n := len(events)
	t.Logf("%d events came to %d live readers p50 %s, p99 %s, at most %s after they were kept", n, live, events[n/2], events[n*99/100], events[n-1])
}

// eventTime returns the time of an event.
func eventTime(data []byte) time.Time {
	_, rest, _ := strings.Cut(string(data[:min(len(data), 200)]), `"ts":`)
	ms, err := strconv.ParseInt(rest[:strings.IndexByte(rest, ',')], 10, 64)
	if err != nil {
		panic(err)
	}
	return time.UnixMilli(ms)
}

// F30: a reader that takes nothing holds its connection for one write's time and not
// forever; the run and its other readers never wait for it.
func TestStreamCutsAStalledReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memory.New(memory.Options{})
		if err := log.Create(t.Context(), event.Run{ID: "run_a"}); err != nil {
			t.Fatal(err)
		}
		dial := serveLogOverPipes(t, log)
		stalled, reading := dial(), dial()
		defer stalled.Close()
		defer reading.Close()

		for _, c := range []net.Conn{stalled, reading} {
			if err := requestEvents(c); err != nil {
				t.Fatal(err)
			}
		}

		began := time.Now()
		for range 100 {
			if _, err := log.Append(t.Context(), "run_a", event.TextDelta{PartID: "p", Delta: strings.Repeat("x", 1000)}); err != nil {
				t.Fatal(err)
			}
		}

		if _, err := log.Append(t.Context(), "run_a", event.FinalAnswer{}); err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(reading); lines.Scan() && lines.Text() != "event: final_answer"; {
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the other reader waited %s, want 0", took)
		}

		// The server closes its end; until then a read would have got what it wrote.
		<-time.After(10 * time.Second)
		synctest.Wait()
		if b, err := io.ReadAll(stalled); err != nil || strings.Contains(string(b), "final_answer") {
			t.Errorf("the connection is still there: %v, %d bytes, b %q, want b without final_answer, no error", err, len(b), string(b))
		}
	})
}
