package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
)

// The newest protocol version and older ones, with both kinds of response.
func TestClientListsAndCallsEveryKindOfServer(t *testing.T) {
	for name, o := range flavours {
		t.Run(name, func(t *testing.T) {
			w := serveHTTP(t, streamableHandler(t, newToolServer(nil), o))
			c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
			list := c.Tools(t.Context())
			if len(list) != 1 || list[0].Name != "echo" || list[0].Description == "" {
				t.Fatalf("got the tools %+v, want echo; servers %+v", list, c.Servers())
			}
			res, err := c.Call(t.Context(), Call{Tool: "echo", Args: json.RawMessage(`{"text":"hello"}`)})
			if got := mustResult(t, res, err).Text(); got != "hello" {
				t.Errorf("got the text %q, want hello", got)
			}
			st := c.Servers()[0]
			if st.State != Connected || st.Tools != 1 || st.Protocol == "" {
				t.Errorf("got the status %+v, want connected with 1 tool", st)
			}
		})
	}
}

// Calls one after the other take one handshake and one connection, whichever kind of response
// the server sends.
func TestSessionAndConnectionAreKeptBetweenCalls(t *testing.T) {
	t.Parallel()
	for name, o := range flavours {
		t.Run(name, func(t *testing.T) {
			var shakes atomic.Int64
			h := streamableHandler(t, newToolServer(nil), o)
			w := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost && strings.Contains(peekBody(r), `"method":"initialize"`) {
					shakes.Add(1)
				}
				h.ServeHTTP(w, r)
			}))

			c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
			c.Tools(t.Context())

			for range 50 {
				res, err := c.Call(t.Context(), Call{Tool: "echo"})
				mustResult(t, res, err)
			}

			if shakes.Load() > 1 {
				t.Errorf("got %d handshakes, want at most 1", shakes.Load())
			}

			// Another one is opened if a stream is not read to its end yet, and without sessions
			// one carries subscriptions/listen.
			if n := w.conns.Load(); n > 4 {
				t.Errorf("got %d TCP connections for 50 calls, want at most 4", n)
			}
		})
	}
}

// refusals are how servers say that a session is gone.
var refusals = map[string]func(http.ResponseWriter){
	"go-sdk 404 text": func(w http.ResponseWriter) { http.Error(w, "session not found", http.StatusNotFound) },
	"TypeScript 404 JSON": func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}`)
	},
	"TypeScript 400 JSON": func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}`)
	},
	"rmcp 401 text": func(w http.ResponseWriter) { http.Error(w, "Unauthorized: Session not found", http.StatusUnauthorized) },
	"mcp-proxy 401 JSON": func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"Unauthorized: No valid session ID provided"},"id":null}`)
	},
	"410": func(w http.ResponseWriter) { http.Error(w, "gone", http.StatusGone) },
	"409": func(w http.ResponseWriter) { http.Error(w, `{"error":"unknown Mcp-Session-Id"}`, http.StatusConflict) },
	"403 JSON": func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"jsonrpc":"2.0","error":{"code":-32001,"message":"Mcp-Session-Id principal mismatch"},"id":null}`)
	},
}

// restartableServer is an MCP server that can be restarted. Afterwards it calls refuse for the session ids of its
// earlier starts.
type restartableServer struct {
	refuse func(http.ResponseWriter)
	limit  atomic.Int64 // the tools/call request that finds a restarted server
	mcp    *sdk.Server
	http   *sdk.StreamableHTTPOptions

	mu     sync.Mutex // protects what follows
	starts int
	inner  http.Handler

	shakes, calls, stale atomic.Int64
	ids                  atomic.Int64
}

func newRestartableServer(t testing.TB, refuse func(http.ResponseWriter), add func(*sdk.Server)) *restartableServer {
	f := &restartableServer{refuse: refuse}
	f.mcp = sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ServerOptions{
		GetSessionID: func() string { return fmt.Sprintf("%s%d", f.prefix(), f.ids.Add(1)) },
	})
	add(f.mcp)
	f.restart()
	t.Cleanup(func() {
		for s := range f.mcp.Sessions() { // including those of earlier starts
			_ = s.Close()
		}
	})
	return f
}

func (f *restartableServer) prefix() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprintf("start-%d-", f.starts)
}

func (f *restartableServer) restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.starts++
	f.inner = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return f.mcp }, f.http)
}

func (f *restartableServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := peekBody(r)
	if strings.Contains(body, `"method":"tools/call"`) {
		if f.calls.Add(1) == f.limit.Load() {
			f.restart()
		}
	}
	id := r.Header.Get(sessionHeader)
	if id != "" && !strings.HasPrefix(id, f.prefix()) {
		f.stale.Add(1)
		f.refuse(w)
		return
	}
	if strings.Contains(body, `"method":"initialize"`) {
		f.shakes.Add(1)
	}
	f.mu.Lock()
	h := f.inner
	f.mu.Unlock()
	h.ServeHTTP(w, r)
}

// A call that finds the session gone causes one more handshake and arrives once, on the same
// TCP connection. The stale id is not sent again.
func TestSessionThatIsLostIsMadeAgain(t *testing.T) {
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int64
			f := newRestartableServer(t, refuse, func(s *sdk.Server) {
				addRawTool(s, "t", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
					runs.Add(1)
					return &sdk.CallToolResult{}, nil
				})
			})

			f.http = &sdk.StreamableHTTPOptions{JSONResponse: true} // no streams to drain
			w := serveHTTP(t, f)
			tokens := newTokenSource()
			c := newClient(t, Options{Service: tokens}, config.Server{Name: "a", URL: w.URL, Auth: config.AuthJWT})
			c.Tools(t.Context())
			f.restart()
			res, err := c.Call(t.Context(), Call{Tool: "t"})
			mustResult(t, res, err)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if runs.Load() != 1 || f.shakes.Load() != 2 || f.stale.Load() != 1 {
				t.Errorf("got %d runs, %d handshakes, %d requests with the stale id, want 1, 2, 1", runs.Load(), f.shakes.Load(), f.stale.Load())
			}
			if n := tokens.fetches.Load(); n != 1 {
				t.Errorf("got %d fetches of a token, want 1", n)
			}

			// Two requests at a time, because the supervisor lists again, one that was dialed before
			// another became idle, and the standalone stream of each session.
			if n := w.conns.Load(); n > 5 {
				t.Errorf("got %d TCP connections, want at most 5", n)
			}
		})
	}
}

// If the server restarts under 200 callers, no call fails or runs twice, there is one more
// handshake, and TCP connections are kept.
func TestSessionIsMadeOnceForManyCallers(t *testing.T) {
	t.Parallel()
	const callers, rounds, each = 200, 1, 2
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			var runs sync.Map
			f := newRestartableServer(t, refuse, func(s *sdk.Server) {
				addRawTool(s, "t", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
					n, _ := runs.LoadOrStore(string(r.Params.Arguments), new(atomic.Int64))
					n.(*atomic.Int64).Add(1)
					return &sdk.CallToolResult{}, nil
				})
			})

			w := serveHTTP(t, f)
			c := newClient(t, Options{MaxConcurrentCalls: callers}, config.Server{Name: "a", URL: w.URL})
			c.Tools(t.Context())

			var failed atomic.Int64
			for round := range rounds {
				f.limit.Store(f.calls.Load() + callers*each/2)
				var all sync.WaitGroup
				for i := range callers {
					all.Go(func() {
						for j := range each {
							args := fmt.Appendf(nil, `{"round":%d,"i":%d,"j":%d}`, round, i, j)
							if _, err := c.Call(t.Context(), Call{Tool: "t", Args: args}); err != nil {
								failed.Add(1)
								t.Log(err)
							}
						}
					})
				}
				all.Wait()
			}

			once, twice := 0, 0
			runs.Range(func(_, n any) bool {
				if n.(*atomic.Int64).Load() == 1 {
					once++
				} else {
					twice++
				}
				return true
			})

			if once != callers*rounds*each || twice != 0 || failed.Load() != 0 {
				t.Errorf("got %d calls that ran once, %d more than once, %d that failed, want %d, 0, 0", once, twice, failed.Load(), callers*rounds*each)
			}
			if n := f.shakes.Load(); n != 1+rounds {
				t.Errorf("got %d handshakes, want %d", n, 1+rounds)
			}
			t.Logf("%d refusals, %d TCP connections", f.stale.Load(), w.conns.Load())
			if n := w.conns.Load(); n > 2*callers {
				t.Errorf("got %d TCP connections for %d callers, want at most %d", n, callers, 2*callers)
			}
		})
	}
}

// A JSON-RPC error means a lost session only if its message says so.
func TestSessionSurvivesAnErrorThatDoesNotNameIt(t *testing.T) {
	var asked atomic.Int64
	s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"the browser session crashed"}}`, m.ID)
	}}
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	_, err := c.Call(t.Context(), Call{Tool: "t"})
	if e := mustFail(t, err); e.Kind != Execution || asked.Load() != 1 || s.initializes.Load() != 1 {
		t.Errorf("got %v after %d calls and %d handshakes, want %s after 1 and 1", e, asked.Load(), s.initializes.Load(), Execution)
	}
}

// Some servers say so in a response of status 200: the Python SDK, and that for Elixir (anubis-mcp#89).
func TestSessionIsMadeAgainAfterAnErrorInAReply(t *testing.T) {
	for _, refusal := range []string{`{"code":-32600,"message":"Session terminated"}`, `{"code":-32002,"message":"Server not initialized"}`} {
		s := &scriptedServer{call: func(w http.ResponseWriter, r *http.Request, m message) {
			if r.Header.Get(sessionHeader) == "session-1" {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":%s}`, m.ID, refusal)
				return
			}
			replyJSON(w, m.ID, textResult("ok"))
		}}
		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		if err != nil || res.Text() != "ok" || s.initializes.Load() != 2 {
			t.Errorf("%s: got %v and the error %v after %d handshakes, want ok after 2", refusal, res, err, s.initializes.Load())
		}
	}
}

// A server that forgets every session is asked twice for one call, not without end.
func TestSessionIsMadeAgainOnceForACall(t *testing.T) {
	var asked atomic.Int64
	s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, _ message) {
		asked.Add(1)
		http.Error(w, "gone", http.StatusNotFound)
	}}
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	_, err := c.Call(t.Context(), Call{Tool: "t"})
	if e := mustFail(t, err); e.Kind != Unavailable || asked.Load() != 2 {
		t.Errorf("got %v after %d requests, want %s after 2", e, asked.Load(), Unavailable)
	}
}

// The first handshake fails; after Refresh calls work.
func TestHandshakeIsTriedAgainAfterAFailure(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)

	s := &scriptedServer{
		before: func(w http.ResponseWriter, _ *http.Request) bool {
			if broken.Load() {
				http.Error(w, "not now", http.StatusServiceUnavailable)
			}
			return broken.Load()
		},
		call: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, textResult("ok")) },
	}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	if list := c.Tools(t.Context()); len(list) != 0 || !c.Ready() {
		t.Fatalf("got the tools %v and Ready() = %t, want none and true", list, c.Ready())
	}
	if st := c.Servers()[0]; st.State != Failed || st.Reason != "it is busy (HTTP 503)" {
		t.Errorf("got the status %+v, want failed: it is busy (HTTP 503)", st)
	}
	broken.Store(false)
	if err := c.Refresh(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	mustResult(t, res, err)
}

// Close ends the server's session once, and calls of a closed client fail.
func TestCloseEndsTheSession(t *testing.T) {
	s := &scriptedServer{deletes: make(chan string, 10)}
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	c.Tools(t.Context())
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if id := <-s.deletes; id != "session-1" || len(s.deletes) != 0 {
		t.Errorf("got a DELETE of %q and %d more, want one of session-1", id, len(s.deletes))
	}
	_, err := c.Call(t.Context(), Call{Tool: "t"})
	if e := mustFail(t, err); e.Kind != Cancelled {
		t.Errorf("call error %v, want Kind Cancelled", e)
	}
}

// A call that is in flight when the client is closed ends, and Close waits for it.
func TestCloseEndsCalls(t *testing.T) {
	begun := make(chan struct{})
	s := &scriptedServer{call: func(_ http.ResponseWriter, r *http.Request, _ message) {
		close(begun)
		<-r.Context().Done()
	}}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	c.Tools(t.Context())

	failed := make(chan error, 1)
	go func() {
		_, err := c.Call(context.Background(), Call{Tool: "t"})
		failed <- err
	}()

	<-begun
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if e := mustFail(t, <-failed); e.Kind != Cancelled {
		t.Errorf("call error %v, want Kind Cancelled", e)
	}
}
