package mcp

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/content"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
)

// S3.9, S4.1: of 200 callers at a time, each gets its own answer from a real server of each protocol over a message transport.
func TestStreamConnMatchesResponses(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"", "2025-11-25", "2024-11-05"} {
		t.Run("version "+version, func(t *testing.T) {
			server := newToolServer(nil)
			c := newPipedClient(t, Options{MaxConcurrentCalls: 200}, config.Server{ProtocolVersion: version}, func(conn net.Conn) {
				_ = server.Run(t.Context(), &sdk.IOTransport{Reader: conn, Writer: conn})
			})
			want := cmp.Or(version, transport.StatelessVersion)
			if st := c.Servers()[0]; st.State != Connected || st.Tools != 1 || st.Protocol != want {
				t.Fatalf("server status %+v, want Connected with 1 tool and protocol %s", st, want)
			}

			var all sync.WaitGroup
			for i := range 200 {
				all.Go(func() {
					want := fmt.Sprint("caller ", i)
					res, err := c.Call(t.Context(), Call{Tool: "echo", Args: json.RawMessage(`{"text":"` + want + `"}`)})
					if err != nil || res.Text() != want {
						t.Errorf("%v, %v, want %s", res, err, want)
					}
				})
			}
			all.Wait()
		})
	}
}

// F16: messages that a server sends in addition to its answers affect neither the call in flight
// nor the session.
func TestStreamConnDropsUnexpectedMessages(t *testing.T) {
	var dials atomic.Int64
	script := scriptedPeer(func(m message, say func(string)) {
		say(`{"jsonrpc":"2.0","id":99999,"result":{}}`)
		say(`{"jsonrpc":"2.0","id":"0` + string(m.ID) + `","result":{"content":[]}}`)
		say(`{"jsonrpc":`)
		say(`{"level":"info","msg":"a log line","id":7}`)
		say(`[`)
		say(`[]`)
		say(`[7, {"jsonrpc":"2.0","method":"notifications/x"}, {"jsonrpc":"2.0","method":"notifications/message","params":{}}]`)
		say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"nobody","progress":1}}`)
		say(`{"jsonrpc":"2.0","method":"notifications/progress","params":7}`)
		say(`{"jsonrpc":"2.0","id":"x","method":"unheard/of"}`)
		say(`{"jsonrpc":"2.0","id":"x","method":"unheard/of"}`)
		say(resultFor(m, textResult("right")))
		say(resultFor(m, textResult("again")))
	})

	c := newPipedClient(t, Options{}, config.Server{}, func(conn net.Conn) { dials.Add(1); script(conn) })
	for range 20 {
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		if got := mustResult(t, res, err).Text(); got != "right" {
			t.Fatalf("result %q, want right", got)
		}
	}

	if dials.Load() != 1 {
		t.Errorf("%d connections, want 1", dials.Load())
	}
}

// F16: an answer that cannot be read fails its call, and no other.
func TestUnreadableResponseFailsOnlyItsCall(t *testing.T) {
	held := make(chan string, 1)
	c := newPipedClient(t, Options{}, config.Server{}, scriptedPeer(func(m message, say func(string)) {
		switch m.Params.Meta["do"] {
		case "hold":
			held <- resultFor(m, textResult("held"))
		case "version":
			say(`{"jsonrpc":"1.0","id":` + string(m.ID) + `,"result":{"content":[]}}`)
		case "deep": // F21: deeper than the SDK reads
			say(resultFor(m, `{"content":[],"structuredContent":`+strings.Repeat("[", 2000)+strings.Repeat("]", 2000)+`}`))
		default:
			say(resultFor(m, "null"))
			say(<-held)
		}
	}))

	callTool := func(what string) (*content.Result, error) {
		return c.Call(context.Background(), Call{Tool: "t", Meta: map[string]any{"do": what}})
	}

	done := make(chan error, 1)
	go func() {
		res, err := callTool("hold")
		if err == nil && res.Text() != "held" {
			err = errors.New(res.Text())
		}
		done <- err
	}()

	line := <-held
	held <- line
	if _, err := callTool("version"); mustFail(t, err).Kind != Protocol {
		t.Errorf("error %v, want Kind Protocol", err)
	}
	if _, err := callTool("deep"); mustFail(t, err).Kind != TooLarge {
		t.Errorf("a deep result: %v, want %s", err, TooLarge)
	}
	if _, err := callTool("null"); mustFail(t, err).Kind != Protocol {
		t.Errorf("error %v, want Kind Protocol", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// S3.3, S4.5: when a connection ends, a call that was sent ends as unknown_outcome and
// is not sent again, unless its tool may be repeated; one that was not sent goes to the
// next connection. Nobody's call is sent twice.
func TestConnectionLossFailsCallsInFlight(t *testing.T) {
	var mu sync.Mutex
	ran := map[string]int{}
	first := make(chan net.Conn, 1)
	var dials atomic.Int64
	c := newPipedClient(t, Options{}, config.Server{IdempotentTools: []string{"nothing"}}, func(conn net.Conn) {
		n := dials.Add(1)
		scriptedPeer(func(m message, say func(string)) {
			mu.Lock()
			ran[fmt.Sprint(m.Params.Meta["do"])]++
			mu.Unlock()
			if n == 1 {
				first <- conn
				return
			}
			say(resultFor(m, textResult("ok")))
		})(conn)
	})

	done := make(chan error, 1)
	go func() {
		_, err := c.Call(context.Background(), Call{Tool: "t", Meta: map[string]any{"do": "sent"}})
		done <- err
	}()
	conn := <-first
	_ = conn.Close()
	if e := mustFail(t, <-done); e.Kind != UnknownOutcome || !strings.Contains(e.Message, "its pipe broke; the call may or may not") {
		t.Errorf(`call error %v, %q, want Kind UnknownOutcome, Message containing "its pipe broke; the call may or may not"`, e, e.Message)
	}
	for i := range 3 {
		res, err := c.Call(t.Context(), Call{Tool: "t", Meta: map[string]any{"do": i}})
		mustResult(t, res, err)
	}
	if dials.Load() != 2 || len(ran) != 4 || ran["sent"] != 1 {
		t.Errorf(`%d connections, %v, want dials 2, 4 ran, ran["sent"] 1`, dials.Load(), ran)
	}
}

// S4.5: a tool that may be repeated is called again on the next connection.
func TestIdempotentCallSurvivesConnectionLoss(t *testing.T) {
	var calls atomic.Int64
	c := newPipedClient(t, Options{}, config.Server{IdempotentTools: []string{"t"}}, func(conn net.Conn) {
		scriptedPeer(func(m message, say func(string)) {
			if calls.Add(1) == 1 {
				_ = conn.Close()
				return
			}
			say(resultFor(m, textResult("ok")))
		})(conn)
	})
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	mustResult(t, res, err)
	if calls.Load() != 2 {
		t.Errorf("sent %d times, want 2", calls.Load())
	}
}

// Cancelling a call tells the server and leaves the session to the others.
func TestStreamConnCancelKeepsTheSession(t *testing.T) {
	began, told := make(chan struct{}), make(chan string, 1)
	var dials atomic.Int64
	c := newPipedClient(t, Options{}, config.Server{}, func(conn net.Conn) {
		dials.Add(1)
		ours, theirs := net.Pipe()
		defer ours.Close()
		var all sync.WaitGroup
		defer all.Wait()
		all.Go(func() { // all that the client says, and what of it is a cancellation
			defer theirs.Close()
			in := bufio.NewScanner(conn)
			for in.Scan() {
				if strings.Contains(in.Text(), cancelled) {
					told <- in.Text()
				}
				fmt.Fprintln(theirs, in.Text())
			}
		})
		scriptedPeer(func(m message, say func(string)) {
			if m.Params.Meta["do"] == "hang" {
				close(began)
				return
			}
			say(resultFor(m, textResult("ok")))
		})(struct {
			net.Conn
		}{&splitConn{ours, conn}})
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.Call(ctx, Call{Tool: "t", Meta: map[string]any{"do": "hang"}})
		done <- err
	}()
	<-began
	cancel()
	if e := mustFail(t, <-done); e.Kind != Cancelled {
		t.Errorf("call error %v, want Kind Cancelled", e)
	}
	if got := <-told; !strings.Contains(got, `"requestId"`) {
		t.Errorf(`got %q, want it to contain "requestId"`, got)
	}
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	mustResult(t, res, err)
	if dials.Load() != 1 {
		t.Errorf("%d connections, want 1", dials.Load())
	}
}

// Many servers also answer a call that was cancelled: those of the Python SDK 1.x always do. That
// is not worth a warning.
func TestLateResponseIsNotLoggedAsWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log syncBuffer
		began := make(chan message, 1)
		c := newPipedClient(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, config.Server{}, scriptedPeer(func(m message, say func(string)) {
			select {
			case late := <-began:
				say(resultFor(late, textResult("late")))
				say(resultFor(m, textResult("ok")))
			default:
				began <- m
			}
		}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Call(ctx, Call{Tool: "t"}); mustFail(t, err).Kind != Timeout {
			t.Errorf("error %v, want Kind Timeout", err)
		}
		synctest.Wait() // the server has been told
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		if got := mustResult(t, res, err).Text(); got != "ok" || strings.Contains(log.String(), "WARN") {
			t.Errorf("result %q; log %s, want ok, no WARN", got, log.String())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// splitConn reads from one connection and writes to another.
type splitConn struct {
	net.Conn
	to net.Conn
}

func (b *splitConn) Write(p []byte) (int, error) { return b.to.Write(p) }

// A server that does not read delays callers until their own time is over, and not longer. A request that was never
// sent is not cancelled at the server. The test uses fake time.
func TestServerThatDoesNotReadFailsCallsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		var calls atomic.Int64
		c := newPipedClient(t, Options{Timeout: 5 * time.Second}, config.Server{}, func(conn net.Conn) {
			scriptedPeer(func(message, func(string)) { calls.Add(1); <-stop })(conn)
		})
		begin := time.Now()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if _, err := c.Call(t.Context(), Call{Tool: "t"}); mustFail(t, err).Kind != Timeout {
					t.Errorf("error %v, want Kind Timeout", err)
				}
			})
		}
		all.Wait()
		if d := time.Since(begin); d != 5*time.Second || calls.Load() != 1 {
			t.Errorf("%v, %d calls arrived, want 5 s and 1", d, calls.Load())
		}
		close(stop)
		synctest.Wait()
		if calls.Load() != 2 { // the second was being written
			t.Errorf("%d calls arrived, want 2", calls.Load())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// S3.3, S4.5: of the calls under way when a connection breaks, the one that the server
// has may have run; the ones that wait to be written, or of which nothing was, go to
// the next connection. In fake time.
func TestUnsentCallsUseTheNextConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int64
		var calls sync.Map
		broken := make(chan struct{})
		c := newPipedClient(t, Options{}, config.Server{}, func(conn net.Conn) {
			first := dials.Add(1) == 1
			scriptedPeer(func(m message, say func(string)) {
				_, twice := calls.LoadOrStore(m.Params.Meta["n"], true)
				if twice {
					t.Errorf("call %v came twice, want once", m.Params.Meta["n"])
				}
				if first { // reads no more
					<-broken
					_ = conn.Close()
					return
				}
				say(resultFor(m, textResult("ok")))
			})(conn)
		})
		call := func(n int) error {
			_, err := c.Call(t.Context(), Call{Tool: "t", Meta: map[string]any{"n": n}})
			return err
		}
		has := make(chan error, 1)
		go func() { has <- call(0) }()
		synctest.Wait()
		var all sync.WaitGroup
		for i := range 9 {
			all.Go(func() {
				if err := call(i + 1); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(broken)
		all.Wait()
		if e := mustFail(t, <-has); e.Kind != UnknownOutcome {
			t.Errorf("call error %v, want Kind UnknownOutcome", e)
		}
		if dials.Load() != 2 {
			t.Errorf("%d connections, want 2", dials.Load())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A server that asks without end, and doesn't read what it is answered, costs no more
// than so many answers, and its own answer still counts. In fake time.
func TestFloodOfServerRequestsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers atomic.Int64
		c := newPipedClient(t, Options{}, config.Server{}, func(conn net.Conn) {
			count := &readCounter{Conn: conn, what: `"result":{}`, n: &answers}
			scriptedPeer(func(m message, say func(string)) {
				for i := range 1000 {
					say(fmt.Sprintf(`{"jsonrpc":"2.0","id":"s%d","method":"ping"}`, i))
				}
				say(resultFor(m, textResult("ok")))
			})(count)
		})
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		mustResult(t, res, err)
		synctest.Wait()
		if n := answers.Load(); n < 1 || n > maxServerRequest+1 { // one is being written
			t.Errorf("%d answers, want 1 to %d", n, maxServerRequest+1)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// readCounter counts what of its reads. A net.Pipe is read as it was written, a message
// at a time.
type readCounter struct {
	net.Conn
	what string
	n    *atomic.Int64
}

func (c *readCounter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.n.Add(int64(strings.Count(string(p[:n]), c.what)))
	return n, err
}

// S3.9: a server that doesn't answer what it doesn't know costs half of the handshake's
// time, not the handshake. In fake time.
func TestStreamConnInitializesWhenDiscoverIsNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		c := newPipedClient(t, Options{}, config.Server{}, func(conn net.Conn) {
			ours, theirs := net.Pipe()
			defer ours.Close()
			go func() {
				defer theirs.Close()
				in := bufio.NewScanner(conn)
				for in.Scan() {
					if !strings.Contains(in.Text(), methodDiscover) {
						fmt.Fprintln(theirs, in.Text())
					}
				}
			}()
			scriptedPeer(func(m message, say func(string)) { say(resultFor(m, textResult("ok"))) })(&splitConn{ours, conn})
		})
		for !c.Ready() { // Tools waits for Options.StartWait only
			c.Tools(t.Context())
		}
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		mustResult(t, res, err)
		if d := time.Since(begin); d != session.HandshakeTimeout/2 {
			t.Errorf("answered after %v, want %v", d, session.HandshakeTimeout/2)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestFloodOnAStreamConnEndsItsCall(t *testing.T) {
	t.Parallel()
	c := newPipedClient(t, Options{}, config.Server{}, scriptedPeer(func(m message, say func(string)) {
		flood := strings.Repeat(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%q,"progress":1}}`+"\n", m.Params.Meta["progressToken"]), 100)
		for range 1001 {
			say(flood)
		}
	}))
	n := 0 // without a lock: the race detector sees late ones
	_, err := c.Call(t.Context(), Call{Tool: "t", Progress: func(Progress) { n++ }})
	if e, _ := errors.AsType[*CallError](err); e == nil || e.Kind != TooLarge || n < 1 || n > 1000 {
		t.Errorf("got %v after %d notifications, want too_large after 1 to 1,000", err, n)
	}
}

// Progress that came before the result is delivered, in order, before Call returns.
func TestStreamConnDeliversProgressInOrder(t *testing.T) {
	c := newPipedClient(t, Options{MaxConcurrentCalls: 20}, config.Server{}, scriptedPeer(func(m message, say func(string)) {
		for i := range 20 {
			say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%q,"progress":%d}}`, m.Params.Meta["progressToken"], i))
		}
		say(resultFor(m, textResult("ok")))
		say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%q,"progress":99}}`, m.Params.Meta["progressToken"]))
	}))
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			var got []float64 // without a lock: the race detector sees late ones
			if _, err := c.Call(t.Context(), Call{Tool: "t", Progress: func(p Progress) { got = append(got, p.Progress) }}); err != nil {
				t.Error(err)
			}
			if n := len(got); n < 2 || !slices.IsSorted(got) || got[0] != 0 || got[n-1] != 19 {
				t.Errorf("got %v, want the first and the last in order", got)
			}
		})
	}
	all.Wait()
}

// S0.1: query parameters have no place on a message transport: the context goes into
// _meta, with one warning however many calls and connections.
func TestStreamConnSendsContextInMetaWithOneWarning(t *testing.T) {
	var log syncBuffer
	c := newPipedClient(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, config.Server{}, scriptedPeer(func(m message, say func(string)) {
		say(resultFor(m, textResult(fmt.Sprint(m.Params.Meta["context_id"]))))
	}))
	for range 3 {
		res, err := c.Call(t.Context(), Call{Tool: "t", Context: map[string]string{"context_id": "1111"}})
		if got := mustResult(t, res, err).Text(); got != "1111" {
			t.Errorf("result %q, want 1111", got)
		}
	}
	if n := strings.Count(log.String(), "_meta only"); n != 1 {
		t.Errorf("%d warnings: %s, want 1", n, log.String())
	}
}
