package mcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/transport/transporttest"
)

// wsServerConfig serves s and returns its configuration as a server of type websocket.
func wsServerConfig(t testing.TB, s http.Handler) config.Server {
	return config.Server{Name: "a", Type: config.TypeWebSocket, URL: wsURL(serveHTTP(t, s))}
}

// hugeReply returns an answer of 64 MiB.
func hugeReply(head string) func(*websocket.Conn, message) {
	return func(conn *websocket.Conn, m message) {
		go func() { // beside the reader, which must see the close frame
			w, err := conn.Writer(context.Background(), websocket.MessageText)
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(w, head, m.ID)
			writeUntilClosed(w, strings.Repeat("x", 64<<10), 64<<20)
			_ = w.Close()
		}()
	}
}

// F25: whatever ends the socket, each call under way learns what is known of it, the
// server what was wrong, and the next call works on a new socket.
func TestWebSocketFaults(t *testing.T) {
	for name, f := range map[string]struct {
		bad    func(*websocket.Conn, message)
		kind   ErrorKind
		closed websocket.StatusCode // what the server is told; 0 where it spoke first
	}{
		"close 1011": {func(c *websocket.Conn, _ message) { go c.Close(websocket.StatusInternalError, "secret") },
			UnknownOutcome, 0},
		"close 1001": {func(c *websocket.Conn, _ message) { go c.Close(websocket.StatusGoingAway, "") },
			UnknownOutcome, 0},
		"cut": {func(c *websocket.Conn, _ message) { go c.CloseNow() }, UnknownOutcome, 0},
		"binary frame": {func(c *websocket.Conn, m message) {
			_ = c.Write(context.Background(), websocket.MessageBinary, []byte(`{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{}}`))
		}, UnknownOutcome, websocket.StatusUnsupportedData},
		"64 MiB":             {hugeReply(`{"jsonrpc":"2.0","id":%s,"result":"`), TooLarge, websocket.StatusMessageTooBig},
		"64 MiB, id is last": {hugeReply(`{"result":%s "`), UnknownOutcome, websocket.StatusMessageTooBig},
	} {
		t.Run(name, func(t *testing.T) {
			waiting := make(chan struct{})
			s := &wsScriptedServer{gone: make(chan error, 10), call: func(c *websocket.Conn, m message) {
				switch m.Params.Meta["do"] {
				case "wait":
					close(waiting)
				case "bad":
					f.bad(c, m)
				default:
					replyWS(c, m.ID, textResult("ok"))
				}
			}}
			c := newClient(t, Options{}, wsServerConfig(t, s))
			c.Tools(t.Context())
			callTool := func(what string) error {
				_, err := c.Call(context.Background(), Call{Tool: "t", Meta: map[string]any{"do": what}})
				return err
			}

			// One call waits while another one gets the fault.
			beside := make(chan error, 1)
			go func() { beside <- callTool("wait") }()
			<-waiting

			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			e := mustFail(t, callTool("bad"))
			runtime.ReadMemStats(&after)

			if e.Kind != f.kind || strings.Contains(e.Message, "secret") {
				t.Errorf("call error %v, want Kind %q, Message without secret", e, f.kind)
			}
			if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 48 {
				t.Errorf("%d MiB allocated, want at most 48", mib)
			}

			// The connection has ended, and the next call opens another one.
			if e := mustFail(t, <-beside); e.Kind != UnknownOutcome {
				t.Errorf("the call beside it: %v, want Kind UnknownOutcome", e)
			}
			if err := callTool(""); err != nil || s.shakes.Load() != 2 {
				t.Errorf("%v after %d handshakes, want 2 and no error", err, s.shakes.Load())
			}
			if code := websocket.CloseStatus(<-s.gone); f.closed != 0 && code != f.closed {
				t.Errorf("the server saw %d, want %v", code, f.closed)
			}
		})
	}
}

// An answer that is too large and belongs to no call, or to a call that was given up, is not taken
// as the answer to the only call in flight.
func TestWebSocketHugeAnswerToAnotherCall(t *testing.T) {
	t.Parallel()
	for head, want := range map[string]ErrorKind{
		`{"jsonrpc":"2.0","id":9999,"result":"%.0s`: UnknownOutcome,
		`{"result":"%.0s`: TooLarge, // no id so far, so it can only be this one's
	} {
		c := newClient(t, Options{}, wsServerConfig(t, &wsScriptedServer{call: hugeReply(head)}))
		_, err := c.Call(t.Context(), Call{Tool: "t"})
		if e := mustFail(t, err); e.Kind != want {
			t.Errorf("%s: %v, want Kind %s", head, e, want)
		}
		_ = c.Close()
	}
}

// S3.3: a call that may have run when its socket broke is sent again only if the
// configuration says so.
func TestWebSocketDropMidCall(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		var asked atomic.Int64
		s := &wsScriptedServer{call: func(c *websocket.Conn, m message) {
			if asked.Add(1) == 1 {
				go c.CloseNow()
				return
			}
			replyWS(c, m.ID, textResult("ok"))
		}}

		cfg := wsServerConfig(t, s)
		if allowed {
			cfg.IdempotentTools = []string{"t"}
		}
		c := newClient(t, Options{}, cfg)
		_, err := c.Call(t.Context(), Call{Tool: "t"})
		if allowed {
			if err != nil || asked.Load() != 2 {
				t.Errorf("repeats allowed: %v after %d requests, want success after 2", err, asked.Load())
			}
		} else if e := mustFail(t, err); e.Kind != UnknownOutcome || asked.Load() != 1 {
			t.Errorf("repeats not allowed: %v after %d requests, want Kind UnknownOutcome after 1", e, asked.Load())
		}
	}
}

// S3.3, S4.9: 200 callers through three cuts: what was under way is told that its
// outcome is unknown, nothing else fails, nothing runs twice, and each cut costs one
// socket.
func TestWebSocketLostByManyCallers(t *testing.T) {
	t.Parallel()
	const callers, each = 200, 8
	cuts := map[int64]bool{200: true, 600: true, 1000: true} // by calls run

	var runs sync.Map
	var all atomic.Int64
	var s *wsSDK
	s = newWSSDK(t, newToolServer(func(m *sdk.Server) {
		addRawTool(m, "t", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			n, _ := runs.LoadOrStore(string(r.Params.Arguments), new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
			if cuts[all.Add(1)] {
				s.drop()
			}
			return &sdk.CallToolResult{}, nil
		})
	}))

	c := newClient(t, Options{MaxConcurrentCalls: callers}, wsServerConfig(t, s))
	c.Tools(t.Context())

	var unknown, ok atomic.Int64
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			for j := range each {
				_, err := c.Call(t.Context(), Call{Tool: "t", Args: fmt.Appendf(nil, `{"i":%d,"j":%d}`, i, j)})
				switch {
				case err == nil:
					ok.Add(1)
				case mustFail(t, err).Kind == UnknownOutcome:
					unknown.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}

	work.Wait()
	once := int64(0)
	runs.Range(func(args, n any) bool {
		if n.(*atomic.Int64).Load() != 1 {
			t.Errorf("%s ran %d times, want 1", args, n.(*atomic.Int64).Load())
		}
		once++
		return true
	})

	if once < ok.Load() || unknown.Load() > int64(len(cuts)*callers) {
		t.Errorf("%d ran, %d answered, %d unknown, want at least as many run as answered, at most %d unknown", once, ok.Load(), unknown.Load(), len(cuts)*callers)
	}
	if n := s.opened.Load(); n != int64(1+len(cuts)) {
		t.Errorf("%d sockets for %d cuts, want %d", n, len(cuts), int64(1+len(cuts)))
	}
	t.Logf("%d answered, %d unknown", ok.Load(), unknown.Load())
}

// S4.5: a socket that breaks is made again, and the tools listed, without a call.
func TestWebSocketReconnectsByItself(t *testing.T) {
	t.Parallel()
	listed := make(chan struct{}, 10)
	mcp := newToolServer(nil)
	mcp.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			if method == "tools/list" {
				listed <- struct{}{}
			}
			return next(ctx, method, r)
		}
	})

	s := newWSSDK(t, mcp)
	c := newClient(t, Options{}, wsServerConfig(t, s))
	c.Tools(t.Context())
	<-listed
	s.drop()
	<-listed
	if n := s.opened.Load(); n != 2 {
		t.Errorf("%d sockets, want 2", n)
	}
}

// S0.1 "stdio rules": the cancellation of a call is sent to the server with its id, and neither
// the socket nor the call beside it notices.
func TestWebSocketCancelLeavesTheSocketOpen(t *testing.T) {
	var beside message
	begun, ids := make(chan struct{}, 2), make(chan string, 1)
	s := &wsScriptedServer{cancelled: make(chan string, 1)}
	s.call = func(c *websocket.Conn, m message) {
		if m.Params.Meta["do"] == "beside" {
			beside = m
		} else {
			ids <- string(m.ID)
		}
		begun <- struct{}{}
	}
	s.onCancel = func(c *websocket.Conn) { replyWS(c, beside.ID, textResult("ok")) }
	c := newClient(t, Options{}, wsServerConfig(t, s))
	c.Tools(t.Context())

	answered := make(chan error, 1)
	go func() {
		_, err := c.Call(context.Background(), Call{Tool: "t", Meta: map[string]any{"do": "beside"}})
		answered <- err
	}()

	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	_, err := c.Call(ctx, Call{Tool: "t"})
	if e := mustFail(t, err); e.Kind != Cancelled {
		t.Errorf("call error %v, want Kind Cancelled", e)
	}
	if got, want := <-s.cancelled, <-ids; got != want {
		t.Errorf("cancelled %s, want %s", got, want)
	}
	if err := <-answered; err != nil || s.dials.Load() != 1 {
		t.Errorf("%v; %d sockets, want 1 and no error", err, s.dials.Load())
	}
}

// overNetwork returns a transport that connects through network.
func overNetwork(network *transporttest.Network) func(http.RoundTripper) http.RoundTripper {
	return func(http.RoundTripper) http.RoundTripper { return &http.Transport{DialContext: network.Dial} }
}

// F25, half-open TCP: a call under way on a connection whose other end vanished ends
// within 30 s, and when the network is back so is the server.
func TestWebSocketHalfOpenMidCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := transporttest.NewNetwork()
		s := &wsScriptedServer{call: func(c *websocket.Conn, m message) {
			if network.Dead.Load() {
				return
			}
			replyWS(c, m.ID, textResult("ok"))
		}}

		web := &http.Server{Handler: s}
		go func() { _ = web.Serve(network) }()
		c := newClient(t, Options{Transport: overNetwork(network)}, config.Server{Name: "a", Type: config.TypeWebSocket, URL: "ws://localhost"})
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		mustResult(t, res, err)
		<-time.After(time.Hour + time.Second) // fake time
		network.Dead.Store(true)
		begin := time.Now()
		_, err = c.Call(t.Context(), Call{Tool: "t"})
		if e := mustFail(t, err); e.Kind != UnknownOutcome || time.Since(begin) > 30*time.Second {
			t.Errorf("%v after %s, want Kind UnknownOutcome, took at most 30 s", e, time.Since(begin))
		}
		synctest.Wait()
		if st := c.Servers()[0]; st.State != Degraded || st.Reason != "it does not answer any more" {
			t.Errorf(`server status %+v, want State Degraded, Reason "it does not answer any more"`, st)
		}
		network.Dead.Store(false)
		<-time.After(2 * transport.MaxBackoff) // fake time
		if st := c.Servers()[0]; st.State != Connected || s.dials.Load() != 2 {
			t.Errorf("%+v after %d handshakes, want State Connected, dials 2", st, s.dials.Load())
		}
		_ = c.Close()
		_ = web.Close()
	})
}

// S4.5: a server that lets us in and throws us out is tried less and less often.
func TestWebSocketServerThatKeepsClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := transporttest.NewNetwork()
		s := &wsScriptedServer{onList: func(c *websocket.Conn) { go c.Close(websocket.StatusServiceRestart, "") }}
		web := &http.Server{Handler: s}
		go func() { _ = web.Serve(network) }()
		c := newClient(t, Options{Transport: overNetwork(network)}, config.Server{Name: "a", Type: config.TypeWebSocket, URL: "ws://localhost"})
		<-time.After(10 * time.Minute) // fake time
		if n := s.dials.Load(); n < 10 || n > 30 {
			t.Errorf("%d handshakes in 10 minutes, want n at least 10, n at most 30", n)
		}
		_ = c.Close()
		_ = web.Close()
	})
}

// S4.5: reconnects, 1,000 of them in make durable, leave goroutines and file descriptors where they were.
func TestWebSocketThousandReconnects(t *testing.T) {
	cycles := 100
	if os.Getenv("ANSWERD_TEST_LONG") != "" { // in make durable
		cycles = 1000
	}

	s := &wsScriptedServer{gone: make(chan error, 1)}
	var calls atomic.Int64
	s.call = func(c *websocket.Conn, m message) {
		if calls.Add(1)%3 == 0 {
			go c.CloseNow()
			return
		}
		replyWS(c, m.ID, `{"content":[]}`) // or the breaker would keep calls from it
	}

	c := newClient(t, Options{}, wsServerConfig(t, s))
	loseConnection := func() {
		for range 2 {
			res, err := c.Call(t.Context(), Call{Tool: "t"})
			mustResult(t, res, err)
		}
		_, err := c.Call(t.Context(), Call{Tool: "t"})
		if e := mustFail(t, err); e.Kind != UnknownOutcome {
			t.Fatalf("call error %v, want Kind UnknownOutcome", e)
		}
		<-s.gone
	}

	loseConnection()
	goroutines, files := runtime.NumGoroutine(), countOpenFiles(t)

	for range cycles {
		loseConnection()
	}

	if n := s.dials.Load(); n < int64(cycles) {
		t.Errorf("%d sockets, want at least %d", n, int64(cycles))
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if n := runtime.NumGoroutine(); n > goroutines+5 {
		t.Errorf("%d goroutines, %d before, want at most %d", n, goroutines, goroutines+5)
	}
	if n := countOpenFiles(t); n > files+5 {
		t.Errorf("%d open files, %d before, want at most %d", n, files, files+5)
	}
}

// countOpenFiles returns how many file descriptors this process has, and 0 where that is not known.
func countOpenFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("error %v, want no error or ErrNotExist", err)
	}
	return len(list)
}

// S3.4: Close sends a close frame.
func TestWebSocketCloseSendsACloseFrame(t *testing.T) {
	s := &wsScriptedServer{gone: make(chan error, 1)}
	c := newClient(t, Options{}, wsServerConfig(t, s))
	c.Tools(t.Context())
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if code := websocket.CloseStatus(<-s.gone); code != websocket.StatusNormalClosure {
		t.Errorf("closed with %d, want StatusNormalClosure", code)
	}
}

// Close returns when the socket is closed, which a peer that is gone can't put off.
func TestWebSocketCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := transporttest.NewNetwork()
		web := &http.Server{Handler: &wsScriptedServer{}}
		go func() { _ = web.Serve(network) }()
		c := newClient(t, Options{Transport: overNetwork(network)}, config.Server{Name: "a", Type: config.TypeWebSocket, URL: "ws://localhost"})
		c.Tools(t.Context())
		network.Dead.Store(true)
		begin := time.Now()
		if err := c.Close(); err != nil || time.Since(begin) != time.Second {
			t.Errorf("%v after %s, want 1 s and no error", err, time.Since(begin))
		}
		_ = web.Close()
	})
}
