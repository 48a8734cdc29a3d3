package mcpserver_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"answerd/internal/mcp/mcpserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"h","version":"1"}}}`
	call       = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	list       = `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`
)

// handler serves a tool that does what is given, to the callers that the header From names.
func handler(t *testing.T, o mcpserver.Options, do func(context.Context, *mcpserver.Call) mcpserver.Result) *mcpserver.Handler {
	t.Helper()
	o.Tool = mcpserver.Tool{Name: "t", InputSchema: json.RawMessage(`{"type":"object"}`)}
	o.CallTool, o.Owner = do, func(r *http.Request) string { return r.Header.Get("From") }
	return mcpserver.New(o)
}

func says(context.Context, *mcpserver.Call) mcpserver.Result { return mcpserver.Result{Text: "hello"} }

// request is a request to the handler. Headers come in pairs.
func request(method, body string, header ...string) *http.Request {
	r := httptest.NewRequest(method, "/mcp", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

func do(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var modern = []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "t"}

// Sessions are not given out for ever to those who forget them.
func TestSessionsAreBoundedAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := handler(t, mcpserver.Options{MaxSessions: 2, SessionIdleTimeout: time.Minute}, says)
		defer h.Close(t.Context())
		first := do(h, request("POST", initialize)).Header().Get("Mcp-Session-Id")
		do(h, request("POST", initialize))
		if w := do(h, request("POST", initialize)); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
			t.Errorf("a third session: %d, want Code 503, Retry-After non-empty", w.Code)
		}
		if w := do(h, request("POST", call, modern...)); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "hello") {
			t.Errorf("a call that takes none: %d %s, want Code 200, String containing hello", w.Code, w.Body)
		}
		if w := do(h, request("POST", list, "Mcp-Session-Id", first)); w.Code != http.StatusOK {
			t.Errorf("the first session: %d, want 200", w.Code)
		}
		<-time.After(time.Minute + time.Second)
		synctest.Wait()
		if w := do(h, request("POST", list, "Mcp-Session-Id", first)); w.Code != http.StatusNotFound {
			t.Errorf("the first session, idle: %d, want 404", w.Code)
		}
		if w := do(h, request("POST", initialize)); w.Code != http.StatusOK {
			t.Errorf("a session after that: %d, want 200", w.Code)
		}
	})
}

// Knowing a session's id is not enough to use or to end it.
func TestSessionBelongsToItsOwner(t *testing.T) {
	h := handler(t, mcpserver.Options{}, says)
	defer h.Close(t.Context())
	id := do(h, request("POST", initialize, "From", "ada")).Header().Get("Mcp-Session-Id")
	for _, r := range []*http.Request{
		request("POST", list, "Mcp-Session-Id", id, "From", "eve"), request("DELETE", "", "Mcp-Session-Id", id, "From", "eve"),
		request("DELETE", "", "Mcp-Session-Id", id),
	} {
		if w := do(h, r); w.Code != http.StatusForbidden {
			t.Errorf("%s by another: %d, want 403", r.Method, w.Code)
		}
	}
	if w := do(h, request("POST", list, "Mcp-Session-Id", id, "From", "ada")); w.Code != http.StatusOK {
		t.Errorf("by the owner: %d, want 200", w.Code)
	}
	if w := do(h, request("DELETE", "", "Mcp-Session-Id", id, "From", "ada")); w.Code != http.StatusNoContent {
		t.Errorf("ended by the owner: %d, want 204", w.Code)
	}
}

// watched is a response that is looked at while it is written.
type watched struct {
	*httptest.ResponseRecorder
	mu sync.Mutex // protects what is written
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ResponseRecorder.Write(b)
}

func (w *watched) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ResponseRecorder.Flush()
}

func (w *watched) seen() (flushed bool, body string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Flushed, w.Body.String()
}

// Proxies cut a stream that is silent for long, and a host should know that its call is on.
func TestStreamSendsHeartbeatsDuringACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		h := handler(t, mcpserver.Options{Heartbeat: time.Second}, func(context.Context, *mcpserver.Call) mcpserver.Result {
			<-goOn
			return mcpserver.Result{Text: "hello"}
		})
		defer h.Close(t.Context())
		w, done := &watched{ResponseRecorder: httptest.NewRecorder()}, make(chan struct{})
		go func() { h.ServeHTTP(w, request("POST", call, modern...)); close(done) }()
		synctest.Wait()
		if flushed, body := w.seen(); !flushed || body != "" {
			t.Errorf("at once: flushed %v, %q, want true and empty", flushed, body)
		}
		<-time.After(2500 * time.Millisecond)
		synctest.Wait()
		if _, got := w.seen(); got != ": ping\n: ping\n" {
			t.Errorf(`after two heartbeats: %q, want ": ping\n: ping\n"`, got)
		}
		close(goOn)
		<-done
		if _, got := w.seen(); !strings.Contains(got, "hello") || w.Header().Get("X-Accel-Buffering") != "no" {
			t.Errorf("in the end: %q, want got containing hello, X-Accel-Buffering no", got)
		}
	})
}

func TestPanicEndsOnlyItsCall(t *testing.T) {
	h := handler(t, mcpserver.Options{}, func(context.Context, *mcpserver.Call) mcpserver.Result { panic("no") })
	defer h.Close(t.Context())
	w := do(h, request("POST", call, modern...))
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"isError":true`) || strings.Contains(w.Body.String(), "panic") {
		t.Errorf(`code %d %s, want Code 200, String containing "isError":true, String without panic`, w.Code, w.Body)
	}
}

// came waits for what the channel says, and not for ever.
func came(t *testing.T, there <-chan struct{}) {
	t.Helper()
	select {
	case <-there:
	case <-time.After(20 * time.Second):
		t.Fatal("waited 20 s in vain, want the channel closed")
	}
}

// Close ends what is under way, in a session or not, when it may wait no longer.
func TestCloseEndsCallsAndSessions(t *testing.T) {
	entered, left := make(chan struct{}), make(chan struct{})
	h := handler(t, mcpserver.Options{}, func(ctx context.Context, _ *mcpserver.Call) mcpserver.Result {
		entered <- struct{}{}
		<-ctx.Done()
		left <- struct{}{}
		return mcpserver.Result{}
	})
	id := do(h, request("POST", initialize)).Header().Get("Mcp-Session-Id")
	old := `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t"}}`
	for _, r := range []*http.Request{request("POST", call, modern...), request("POST", old, "Mcp-Session-Id", id)} {
		go do(h, r)
		came(t, entered)
	}
	closed := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() { h.Close(ctx); close(closed) }()
	stop()
	came(t, left)
	came(t, left)
	came(t, closed)
	if w := do(h, request("POST", list, "Mcp-Session-Id", id)); w.Code != http.StatusNotFound {
		t.Errorf("the session: %d, want 404", w.Code)
	}
	if w := do(h, request("POST", call, modern...)); !strings.Contains(w.Body.String(), "shutting down") {
		t.Errorf(`a call: %s, want String containing "shutting down"`, w.Body)
	}
}
