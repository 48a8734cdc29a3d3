package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// handlerTransport sends requests to a handler without a socket, for tests in fake time.
type handlerTransport struct{ http.Handler }

func (p handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	if r.Context().Err() != nil {
		return nil, r.Context().Err()
	}
	return w.Result(), nil
}

// inProcessTransport returns a transport that sends all requests to h, without a network.
func inProcessTransport(h http.Handler) func(http.RoundTripper) http.RoundTripper {
	return func(http.RoundTripper) http.RoundTripper { return handlerTransport{h} }
}

// serveWithListTTL returns s as a server of 2026-07-28 that says how long its list is valid, and how
// often it was asked for.
func serveWithListTTL(t testing.TB, s *sdk.Server, ttl time.Duration) (http.Handler, *atomic.Int64) {
	lists := new(atomic.Int64)
	s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			res, err := next(ctx, method, r)
			if list, ok := res.(*sdk.ListToolsResult); ok {
				lists.Add(1)
				list.TTLMs = int(ttl.Milliseconds())
			}
			return res, err
		}
	})
	return streamableHandler(t, s, &sdk.StreamableHTTPOptions{Stateless: true, JSONResponse: true}), lists
}

// S3.8: from 2026-07-28 on a list holds for as long as its server says, and then a new
// one is fetched.
func TestListIsRenewedWhenItsTimeIsOver(t *testing.T) {
	for says, holds := range map[time.Duration]time.Duration{
		30 * time.Second: 30 * time.Second, time.Millisecond: minListLife, 0: 0, -time.Second: 0,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newToolServer(nil)
			h, lists := serveWithListTTL(t, s, says)
			c := newClient(t, Options{Transport: inProcessTransport(h)}, config.Server{Name: "a", URL: "http://localhost"})
			if got := namesOf(c.Tools(t.Context())); got != "echo" || c.Servers()[0].Protocol != transport.StatelessVersion {
				t.Fatalf("tools %s, %+v, want got echo, Servers()[0].Protocol StatelessVersion", got, c.Servers())
			}
			s.AddTool(&sdk.Tool{Name: "news", InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)

			if holds == 0 {
				passTime(7 * 24 * time.Hour)
				if n := lists.Load(); n != 1 {
					t.Errorf("listed %d times, want 1", n)
				}
				_ = c.Close()
				return
			}

			passTime(holds - time.Nanosecond)
			if got := namesOf(c.Tools(t.Context())); got != "echo" || lists.Load() != 1 {
				t.Errorf("%s: too soon: %s, lists %d, want echo and 1", says, got, lists.Load())
			}
			passTime(time.Nanosecond)
			synctest.Wait()
			if got := namesOf(c.Tools(t.Context())); got != "echo news" || lists.Load() != 2 {
				t.Errorf(`%s: tools %s after %d lists, want "echo news" and 2`, says, got, lists.Load())
			}
			passTime(10 * holds)
			synctest.Wait()
			if n := lists.Load(); n != 12 {
				t.Errorf("%s: %d lists, want 12", says, n)
			}
			_ = c.Close()
		})
	}
}

// announceListChanges makes a server notify with every answer that its tools have changed. It returns the count of lists.
func announceListChanges(s *changingServer) *atomic.Int64 {
	lists := new(atomic.Int64)
	sse := func(w http.ResponseWriter, m message, result string) {
		w.Header().Set("Content-Type", eventStream)
		fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n")
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", m.ID, result)
	}
	s.list = func(w http.ResponseWriter, _ *http.Request, m message) {
		s.mu.Lock()
		defer s.mu.Unlock()
		result := `{"tools":[` + s.tools[0] + `]}`
		if lists.Add(1) < 3 {
			replyJSON(w, m.ID, result)
			return
		}
		sse(w, m, result)
	}
	s.call = func(w http.ResponseWriter, _ *http.Request, m message) { sse(w, m, textResult("ok")) }
	return lists
}

// S3.8: list_changed on a call's own stream renews the list, and a call goes with the
// new definition; one that is announced with every answer doesn't become a loop.
func TestListIsRenewedWhenItChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newChangingServer(addV1)
		lists := announceListChanges(s)
		c := newClient(t, Options{Transport: inProcessTransport(s)}, config.Server{Name: "a", URL: "http://localhost"})
		c.Tools(t.Context())
		s.setTools(addV2)

		call := func() {
			t.Helper()
			res, err := c.Call(t.Context(), Call{Tool: "add"})
			mustResult(t, res, err)
		}

		call()
		passTime(renewalGap)
		synctest.Wait()
		if tool, _ := c.Tool("add"); !strings.Contains(tool.Description, "ssh") || lists.Load() != 2 {
			t.Errorf("%d lists, description %q, want Description containing ssh, lists 2", lists.Load(), tool.Description)
		}
		before := lists.Load()

		for range 1000 { // and from the third on each list says so too
			call()
			passTime(10 * time.Millisecond)
		}

		if n := lists.Load() - before; n < 5 || n > 11 {
			t.Errorf("%d lists in 10 s, want n at least 5, n at most 11", n)
		}
		_ = c.Close()
	})
}

// A change that is announced while the list is fetched may not be in it: it is fetched
// once more.
func TestChangeDuringAListIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newChangingServer(addV1)
		lists := announceListChanges(s)
		lists.Store(1) // so that the second one announces a change, and no later one

		inner := s.list
		s.list = func(w http.ResponseWriter, r *http.Request, m message) {
			inner(w, r, m)
			if lists.Load() == 3 {
				s.setTools(addV2)
				lists.Store(-100)
			}
		}

		c := newClient(t, Options{Transport: inProcessTransport(s)}, config.Server{Name: "a", URL: "http://localhost"})
		c.Tools(t.Context())
		if err := c.Refresh(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		passTime(renewalGap)
		synctest.Wait()
		if tool, _ := c.Tool("add"); !strings.Contains(tool.Description, "ssh") || lists.Load() != -99 {
			t.Errorf("%d lists after the change, description %q, want 1 and the new description", lists.Load()+100, tool.Description)
		}
		_ = c.Close()
	})
}

// F22: where tools are pinned, a change that the server doesn't announce is noticed
// within a minute, also if it says that its list holds for longer.
func TestPinnedToolsAreListedEveryMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, current := newChangingServer(addV1), newToolServer(nil)
		h, _ := serveWithListTTL(t, current, time.Hour)
		newTransport := func(next http.RoundTripper) http.RoundTripper {
			return transportByHost{"old": handlerTransport{old}, "current": handlerTransport{h}}
		}
		c := newClient(t, Options{Transport: newTransport, Pins: filepath.Join(t.TempDir(), "pins.json")},
			config.Server{Name: "old", URL: "http://old", Pin: true}, config.Server{Name: "current", URL: "http://current", Pin: true})
		c.Tools(t.Context())
		if err := c.AcceptPins(); err != nil {
			t.Fatal(err)
		}
		if got := namesOf(c.Tools(t.Context())); got != "add echo" {
			t.Fatalf(`tools %q, want "add echo"`, got)
		}
		old.setTools(addV2)
		current.AddTool(&sdk.Tool{Name: "echo", InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
		passTime(pinnedListLife)
		synctest.Wait()
		if got := namesOf(c.Tools(t.Context())); got != "" {
			t.Errorf("tools %q, want empty", got)
		}
		_ = c.Close()
	})
}

// transportByHost has a transport for each host.
type transportByHost map[string]http.RoundTripper

func (b transportByHost) RoundTrip(r *http.Request) (*http.Response, error) {
	return b[r.URL.Host].RoundTrip(r)
}

// F21: a result of another type is not a list of tools, nor of prompts.
func TestListOfAnotherType(t *testing.T) {
	s := &scriptedServer{list: func(w http.ResponseWriter, _ *http.Request, m message) {
		replyJSON(w, m.ID, `{"resultType":"task","taskId":"1","tools":[{"name":"t"}],"ttlMs":"soon"}`)
	}}
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		var m message
		_ = json.Unmarshal([]byte(peekBody(r)), &m)
		if m.Method != "prompts/list" {
			return false
		}
		replyJSON(w, m.ID, `{"resultType":"task","taskId":"1"}`)
		return true
	}
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	if got := namesOf(c.Tools(t.Context())); got != "" || c.Servers()[0].State != Failed {
		t.Errorf("tools %s, %+v, want got empty, Servers()[0].State Failed", got, c.Servers())
	}
	if got, err := c.Prompts(t.Context(), auth.Identity{}, "a"); err == nil {
		t.Errorf("prompts: got %v and no error, want an error", got)
	}
}
