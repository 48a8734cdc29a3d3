package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
)

// requestRecorder records what requests to a server look like, without their bodies: each kind once.
type requestRecorder struct {
	next http.RoundTripper
	mu   sync.Mutex // protects seen
	seen []string
}

func (w *requestRecorder) RoundTrip(r *http.Request) (*http.Response, error) {
	line := r.Method
	if r.Body != nil && r.Body != http.NoBody {
		var m message
		_ = json.Unmarshal([]byte(peekBody(r)), &m)
		if m.Method == "" {
			m.Method = "an answer"
		}
		line += " " + m.Method
	}
	for _, name := range []string{"Content-Type", "Accept", "Last-Event-Id", "Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version", "Mcp-Session-Id"} {
		if value := r.Header.Get(name); value != "" {
			line += "; " + name + ": " + value
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.seen, line) {
		w.seen = append(w.seen, line)
	}
	return w.next.RoundTrip(r)
}

// checkRequests checks what was sent: lines of which each begins with what a POST carries, or
// with the method of another request.
func (w *requestRecorder) checkRequests(t *testing.T, version, session string, want ...string) {
	t.Helper()
	for i, line := range want {
		what, rest, _ := strings.Cut(line, ";")
		switch what {
		case "GET":
			what += "; Accept: text/event-stream"
		case "DELETE":
		default:
			what = "POST " + what + "; Content-Type: application/json; Accept: application/json, text/event-stream"
		}
		if rest != "" {
			what += "; " + strings.TrimSpace(rest)
		}
		if !strings.Contains(line, "nothing settled") {
			what += "; Mcp-Protocol-Version: " + version + session
		}
		want[i] = strings.Replace(what, "; nothing settled", "", 1)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(want)
	slices.Sort(w.seen)
	if !slices.Equal(w.seen, want) {
		t.Errorf("sent\n%s\nwant\n%s", strings.Join(w.seen, "\n"), strings.Join(want, "\n"))
	}
}

// 2025-11-25 basic/transports: "Session Management", "Protocol Version Header",
// "Resumability and Redelivery". A session id that comes later is none.
func TestSessionRequestsHaveTheirHeaders(t *testing.T) {
	t.Parallel()
	answered, begun, told := make(chan struct{}, 1), make(chan struct{}), make(chan struct{}, 99)
	var id atomic.Value
	s := &scriptedServer{}
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		var m message
		_ = json.Unmarshal([]byte(peekBody(r)), &m)
		if m.Method != methodInitialize {
			w.Header().Set(sessionHeader, "another")
		}
		switch {
		case r.Method == http.MethodPost && m.Method == "":
			answered <- struct{}{}
		case m.Method == cancelled:
			told <- struct{}{}
		case r.Method == http.MethodGet && r.Header.Get("Last-Event-ID") == "7":
			startEventStream(w)(fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", id.Load(), textResult("ok")))
			return true
		}
		return false
	}

	s.call = func(w http.ResponseWriter, r *http.Request, m message) {
		if m.Params.Meta["hang"] != nil {
			close(begun)
			<-r.Context().Done()
			return
		}
		id.Store(string(m.ID))
		startEventStream(w)("id: 7\nretry: 1\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"ask\",\"method\":\"ping\"}\n\n")
		waitUntil(t, "the answer to ping", answered)
	}

	tap := &requestRecorder{}
	c := newClient(t, Options{Transport: func(next http.RoundTripper) http.RoundTripper { tap.next = next; return tap }},
		config.Server{Name: "a", URL: serveHTTP(t, s).URL, StandaloneStream: new(true)})
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	mustResult(t, res, err)
	cancelBegunCall(t, c, "t", begun)
	waitUntil(t, "the cancellation", told)
	_ = c.Close()

	tap.checkRequests(t, "2025-11-25", "; Mcp-Session-Id: session-1",
		"server/discover; Mcp-Method: server/discover; Mcp-Protocol-Version: 2026-07-28; nothing settled",
		"initialize; nothing settled", "notifications/initialized", "GET", "tools/list", "tools/call",
		"an answer", "GET; Last-Event-Id: 7", "notifications/cancelled", "DELETE")
}

// cancelBegunCall makes a call and cancels it when it has begun.
func cancelBegunCall(t *testing.T, c *Client, tool string, begun <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		waitUntil(t, "the call", begun)
		cancel()
	}()
	_, err := c.Call(ctx, Call{Tool: tool, Meta: map[string]any{"hang": true}})
	_ = mustFail(t, err)
}

// 2026-07-28 basic/transports: each request says what it is about. There are no notifications of ours: the end of a
// call's stream is its cancellation (2026-07-28 basic/patterns/cancellation).
func TestStatelessRequestsHaveTheirHeaders(t *testing.T) {
	begun, over := make(chan struct{}), make(chan struct{})
	server := newToolServer(func(s *sdk.Server) {
		addRawTool(s, "hang", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			close(begun)
			<-ctx.Done()
			close(over)
			return nil, ctx.Err()
		})
	})

	tap, listens := &requestRecorder{}, make(chan struct{}, 8)
	h := streamableHandler(t, server, flavours["stateless sse"])
	w := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(peekBody(r), methodListen) {
			listens <- struct{}{}
		}
		h.ServeHTTP(w, r)
	}))

	c := newClient(t, Options{Transport: func(next http.RoundTripper) http.RoundTripper { tap.next = next; return tap }},
		config.Server{Name: "a", URL: w.URL, StandaloneStream: new(true)})
	c.Tools(t.Context())
	waitUntil(t, methodListen, listens)
	cancelBegunCall(t, c, "hang", begun)
	waitUntil(t, "the end of the call at the server", over)
	_ = c.Close()

	tap.checkRequests(t, "2026-07-28", "",
		"server/discover; Mcp-Method: server/discover", "tools/list; Mcp-Method: tools/list",
		"subscriptions/listen; Mcp-Method: subscriptions/listen", "tools/call; Mcp-Method: tools/call; Mcp-Name: hang")
}

// 2026-07-28, basic: each request names the client and its capabilities. In earlier versions only the
// handshake does.
func TestRequestsHaveTheClientInfoOfTheHandshake(t *testing.T) {
	for flavour, introduced := range map[string]bool{"stateless json": true, "stateful json": false} {
		var mu sync.Mutex
		said := map[string]string{} // by method
		newTransport := func(next http.RoundTripper) http.RoundTripper {
			return roundTripFunc(func(r *http.Request) (*http.Response, error) {
				var m struct {
					Method string
					Params struct {
						Meta map[string]json.RawMessage `json:"_meta"`
					}
				}
				if r.Method == http.MethodPost && json.Unmarshal([]byte(peekBody(r)), &m) == nil {
					mu.Lock()
					said[m.Method] = fmt.Sprintf("%s %s", m.Params.Meta[sdk.MetaKeyClientInfo], m.Params.Meta[sdk.MetaKeyClientCapabilities])
					mu.Unlock()
				}
				return next.RoundTrip(r)
			})
		}

		c := newClient(t, Options{Transport: newTransport, Version: "1.2.3"}, config.Server{Name: "a", URL: serveHTTP(t, streamableHandler(t, newToolServer(nil), flavours[flavour])).URL})
		res, err := c.Call(t.Context(), Call{Tool: "echo", Args: json.RawMessage(`{"text":"a"}`)})
		mustResult(t, res, err)
		_ = c.Close()
		first, call := said[methodDiscover], said[methodCall]
		if !strings.Contains(first, `"name":"answerd"`) || !strings.Contains(first, `"1.2.3"`) || !strings.Contains(first, `"elicitation"`) {
			t.Errorf(`%s: the handshake says %s, want first containing "name":"answerd", first containing "1.2.3", first containing "elicitation"`, flavour, first)
		}
		if introduced != (call == first) || !introduced && call != " " {
			t.Errorf("%s: a call says %s, want what the handshake said (%s): %t", flavour, call, first, introduced)
		}
	}
}
