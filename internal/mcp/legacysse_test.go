package mcp

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
)

// legacyServer is an SSE server of the go-sdk with a tool that reports progress and asks the user.
type legacyServer struct {
	*sdk.SSEHandler
	streams, posts, calls atomic.Int64
	forget                atomic.Bool // the next POST is answered as if the session were unknown
	refusal               int         // status of a POST without a session; 0: that of the go-sdk
}

func newLegacyServer() *legacyServer {
	s := &legacyServer{}
	server := newToolServer(func(t *sdk.Server) {
		addRawTool(t, "count", func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			s.calls.Add(1)
			for i := range 3 {
				if err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1)}); err != nil {
					return nil, err
				}
			}
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "counted"}}}, nil
		})
	})
	s.SSEHandler = sdk.NewSSEHandler(func(*http.Request) *sdk.Server { return server }, nil)
	return s
}

func (s *legacyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet:
		s.streams.Add(1)
	case r.URL.Query().Get("sessionid") == "" && s.refusal != 0:
		http.Error(w, "no", s.refusal)
		return
	default:
		s.posts.Add(1)
		if s.forget.CompareAndSwap(true, false) {
			http.Error(w, "session not found", http.StatusNotFound)
			return
		}
	}
	s.SSEHandler.ServeHTTP(w, r)
}

func TestLegacySSECallsTools(t *testing.T) {
	s := newLegacyServer()
	c := newClient(t, Options{}, config.Server{Name: "a", Type: config.TypeSSE, URL: serveHTTP(t, s).URL + "/sse"})
	if got := namesOf(c.Tools(t.Context())); got != "count echo" {
		t.Errorf("Tools() = %s, want count and echo", got)
	}
	var last atomic.Int64 // those that follow closely replace each other
	res, err := c.Call(t.Context(), Call{Tool: "count", Progress: func(p Progress) { last.Store(int64(p.Progress)) }})
	if mustResult(t, res, err); last.Load() != 3 {
		t.Errorf("last progress before the result = %d, want 3", last.Load())
	}

	var work sync.WaitGroup
	for i := range 20 {
		work.Go(func() {
			args := fmt.Sprintf(`{"text":"no %d"}`, i)
			if res, err := c.Call(t.Context(), Call{Tool: "echo", Args: []byte(args)}); err != nil || !strings.Contains(string(res.Content[0]), fmt.Sprintf("no %d", i)) {
				t.Errorf("Call(%s) = %+v, %v, want Content[0] containing %s, no error", args, res, err, fmt.Sprintf("no %d", i))
			}
		})
	}

	work.Wait()
	if got := s.streams.Load(); got != 1 {
		t.Errorf("sessions = %d, want 1", got)
	}
}

// The server forgets the session: the call is sent again in a new one, and runs once.
func TestLegacySSERecoversFromALostSession(t *testing.T) {
	s := newLegacyServer()
	web := serveHTTP(t, s)
	c := newClient(t, Options{}, config.Server{Name: "a", Type: config.TypeSSE, URL: web.URL})
	c.Tools(t.Context())
	s.forget.Store(true)
	res, err := c.Call(t.Context(), Call{Tool: "count"})
	if mustResult(t, res, err); s.calls.Load() != 1 || s.streams.Load() != 2 {
		t.Errorf("calls, sessions = %d, %d, want 1, 2", s.calls.Load(), s.streams.Load())
	}
	web.CloseClientConnections()
	res, err = c.Call(t.Context(), Call{Tool: "count"})
	for end := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(end); { // a cut that the call saw is an unknown outcome
		res, err = c.Call(t.Context(), Call{Tool: "count"})
	}
	mustResult(t, res, err)
}

// A server that refuses Streamable HTTP is tried as HTTP+SSE, and the outcome is remembered.
func TestHTTPFallsBackToLegacySSEOnce(t *testing.T) {
	for _, status := range []int{0, http.StatusNotFound, http.StatusMethodNotAllowed} {
		s := newLegacyServer()
		s.refusal = status
		c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
		if got := namesOf(c.Tools(t.Context())); got != "count echo" {
			t.Errorf("Tools() after status %d = %s, want count and echo: %+v", status, got, c.Servers())
			continue
		}
		s.forget.Store(true)
		posts := s.posts.Load()
		res, err := c.Call(t.Context(), Call{Tool: "count"})
		mustResult(t, res, err)

		// The POST that was refused, then initialize, initialized, tools/list and the call.
		if got := s.posts.Load() - posts; status == 0 && got > 6 || s.streams.Load() != 2 {
			t.Errorf("after status %d: POSTs = %d, sessions = %d; want no more try of Streamable HTTP and 2 sessions", status, got, s.streams.Load())
		}
	}
}

// A server without either transport is not asked for HTTP+SSE at each connection.
func TestHTTPAsksForLegacySSEOnce(t *testing.T) {
	var gets, posts atomic.Int64
	web := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			gets.Add(1)
		} else {
			posts.Add(1)
		}
		http.NotFound(w, r)
	}))

	c := newClient(t, Options{}, config.Server{Name: "a", URL: web.URL})
	c.Tools(t.Context())

	for range 3 {
		if err := c.Refresh(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "it answered HTTP 404") {
			t.Errorf("Refresh() = %v, want the refusal of Streamable HTTP", err)
		}
	}

	if gets.Load() != 1 || posts.Load() < 4 {
		t.Errorf("GETs, POSTs = %d, %d, want 1 and at least 4", gets.Load(), posts.Load())
	}
}

// Headers and tokens must not go where the server's first event says, unless it is the server.
func TestLegacySSERefusesAnEndpointOfAnotherOrigin(t *testing.T) {
	var posts atomic.Int64
	other := serveHTTP(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { posts.Add(1) }))
	for endpoint, want := range map[string]string{
		other.URL + "/messages": "its endpoint event names another origin",
		"//example.com/":        "its endpoint event names another origin",
		"http://%zz":            "its endpoint event has no URL",
	} {
		web := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "event: endpoint\ndata: %s\n\n", endpoint)
		}))
		c := newClient(t, Options{}, config.Server{Name: "a", Type: config.TypeSSE, URL: web.URL})
		if err := c.Refresh(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), want) || posts.Load() != 0 {
			t.Errorf("Refresh() with endpoint %s = %v and %d POSTs, want %s and none", endpoint, err, posts.Load(), want)
		}
	}
}
