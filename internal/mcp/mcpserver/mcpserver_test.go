package mcpserver_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
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

// newHandler returns a handler of the tool do, for the callers that the header From names.
func newHandler(t *testing.T, o mcpserver.Options, do func(context.Context, *mcpserver.Call) mcpserver.Result) *mcpserver.Handler {
	t.Helper()
	o.Tool = mcpserver.Tool{Name: "t", InputSchema: json.RawMessage(`{"type":"object"}`)}
	o.CallTool, o.Owner = do, func(r *http.Request) string { return r.Header.Get("From") }
	return mcpserver.New(o)
}

func sayHello(context.Context, *mcpserver.Call) mcpserver.Result {
	return mcpserver.Result{Text: "hello"}
}

// newRequest returns a request to the handler. Headers come in pairs.
func newRequest(method, body string, header ...string) *http.Request {
	r := httptest.NewRequest(method, "/mcp", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

func serveRequest(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var modernHeaders = []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "t"}

// MCP 2025-11-25, Streamable HTTP, Session Management: a server that requires a session answers 400 to a request without
// its id, unless it is initialize. Such a request must not end the session of another caller either.
func TestRequestWithoutSessionIsRefused(t *testing.T) {
	h := newHandler(t, mcpserver.Options{MaxSessions: 1}, sayHello)
	defer h.Close(t.Context())
	id := serveRequest(h, newRequest("POST", initialize)).Header().Get("Mcp-Session-Id")
	for _, body := range []string{list, strings.Replace(list, `"id":3,`, "", 1), "[" + initialize + "]"} {
		w := serveRequest(h, newRequest("POST", body, "From", "eve", "Mcp-Protocol-Version", "2025-11-25"))
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "Mcp-Session-Id") {
			t.Errorf("%s: got %d %s, want 400 and the name of the header", body, w.Code, w.Body)
		}
	}
	if w := serveRequest(h, newRequest("POST", list, "Mcp-Session-Id", id)); w.Code != http.StatusOK {
		t.Errorf("a request with the session's id: got %d %s, want 200", w.Code, w.Body)
	}
}

// JSON-RPC 2.0: an unknown method is an error of its request, and an unknown notification is ignored. Clients with the
// Python SDK 1 end their session on 400.
func TestUnknownMethodOfASessionIsAnswered(t *testing.T) {
	h := newHandler(t, mcpserver.Options{}, sayHello)
	defer h.Close(t.Context())
	id := serveRequest(h, newRequest("POST", initialize)).Header().Get("Mcp-Session-Id")
	for _, test := range []struct {
		body, session string
		status        int
		want          string
	}{
		{`{"jsonrpc":"2.0","id":"a","method":"tasks/list"}`, id, http.StatusOK, `"code":-32601,"message":"method not found: \"tasks/list\""},"id":"a"`},
		{`{"jsonrpc":"2.0","method":"notifications/tasks/status"}`, id, http.StatusAccepted, ""},
		{`{"jsonrpc":"2.0","id":1,"method":"ping"}`, id, http.StatusOK, `"result":{}`},
		{`{"jsonrpc":"2.0","id":1,"result":{}}`, id, http.StatusAccepted, ""},
		{`{"jsonrpc":"2.0","id":1,"method":"tasks/list"}`, "other", http.StatusNotFound, ""},
	} {
		w := serveRequest(h, newRequest("POST", test.body, "Mcp-Session-Id", test.session))
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) {
			t.Errorf("%s: got %d %s, want %d and %s", test.body, w.Code, w.Body, test.status, test.want)
		}
	}
}

// A client that forgets its sessions cannot open any number of them.
func TestSessionsAreBoundedAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, mcpserver.Options{MaxSessions: 2, SessionIdleTimeout: time.Minute}, sayHello)
		defer h.Close(t.Context())
		first := serveRequest(h, newRequest("POST", initialize)).Header().Get("Mcp-Session-Id")
		serveRequest(h, newRequest("POST", initialize))
		if w := serveRequest(h, newRequest("POST", initialize)); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
			t.Errorf("a third session: %d, want Code 503, Retry-After non-empty", w.Code)
		}
		if w := serveRequest(h, newRequest("POST", call, modernHeaders...)); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "hello") {
			t.Errorf("a call that takes none: %d %s, want Code 200, String containing hello", w.Code, w.Body)
		}
		if w := serveRequest(h, newRequest("POST", list, "Mcp-Session-Id", first)); w.Code != http.StatusOK {
			t.Errorf("the first session: %d, want 200", w.Code)
		}
		<-time.After(time.Minute + time.Second)
		synctest.Wait()
		if w := serveRequest(h, newRequest("POST", list, "Mcp-Session-Id", first)); w.Code != http.StatusNotFound {
			t.Errorf("the first session, idle: %d, want 404", w.Code)
		}
		if w := serveRequest(h, newRequest("POST", initialize)); w.Code != http.StatusOK {
			t.Errorf("a session after that: %d, want 200", w.Code)
		}
	})
}

// If one caller has all sessions, another one gets the place of the one that was not used for longest and
// executes no call.
func TestSessionsOfOneCallerLeaveRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entered, open := make(chan struct{}), make(chan struct{})
		h := newHandler(t, mcpserver.Options{MaxSessions: 3}, func(context.Context, *mcpserver.Call) mcpserver.Result {
			close(entered)
			<-open
			return mcpserver.Result{Text: "hello"}
		})
		defer h.Close(t.Context())
		var ids []string
		for range 3 {
			ids = append(ids, serveRequest(h, newRequest("POST", initialize, "From", "ada")).Header().Get("Mcp-Session-Id"))
			<-time.After(time.Second)
		}
		done := make(chan *httptest.ResponseRecorder, 1)
		old := `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t"}}`
		go func() { done <- serveRequest(h, newRequest("POST", old, "Mcp-Session-Id", ids[0], "From", "ada")) }()
		<-entered
		for _, id := range ids[1:] {
			<-time.After(time.Second)
			serveRequest(h, newRequest("POST", list, "Mcp-Session-Id", id, "From", "ada"))
		}

		if w := serveRequest(h, newRequest("POST", initialize, "From", "ada")); w.Code != http.StatusServiceUnavailable {
			t.Errorf("a fourth session of the same caller: %d, want 503", w.Code)
		}
		eve := serveRequest(h, newRequest("POST", initialize, "From", "eve"))
		if eve.Code != http.StatusOK {
			t.Errorf("a session of another caller: %d %s, want 200", eve.Code, eve.Body)
		}
		close(open)
		if w := <-done; !strings.Contains(w.Body.String(), "hello") {
			t.Errorf("the call in flight: %s, want hello in it", w.Body)
		}
		for i, want := range []int{http.StatusOK, http.StatusNotFound, http.StatusOK} {
			if w := serveRequest(h, newRequest("POST", list, "Mcp-Session-Id", ids[i], "From", "ada")); w.Code != want {
				t.Errorf("session %d of the first caller: %d, want %d", i, w.Code, want)
			}
		}
		if w := serveRequest(h, newRequest("POST", initialize, "From", "eve")); w.Code != http.StatusServiceUnavailable {
			t.Errorf("a second session of the other caller, who would then have more: %d, want 503", w.Code)
		}
		if w := serveRequest(h, newRequest("POST", list, "Mcp-Session-Id", eve.Header().Get("Mcp-Session-Id"), "From", "eve")); w.Code != http.StatusOK {
			t.Errorf("the session of the other caller: %d, want 200", w.Code)
		}
	})
}

// Knowing a session's id is not enough to use or to end it.
func TestSessionBelongsToItsOwner(t *testing.T) {
	h := newHandler(t, mcpserver.Options{}, sayHello)
	defer h.Close(t.Context())

	id := serveRequest(h, newRequest("POST", initialize, "From", "ada")).Header().Get("Mcp-Session-Id")
	for _, r := range []*http.Request{
		newRequest("POST", list, "Mcp-Session-Id", id, "From", "eve"), newRequest("DELETE", "", "Mcp-Session-Id", id, "From", "eve"),
		newRequest("DELETE", "", "Mcp-Session-Id", id),
	} {
		if w := serveRequest(h, r); w.Code != http.StatusForbidden {
			t.Errorf("%s by another: %d, want 403", r.Method, w.Code)
		}
	}

	if w := serveRequest(h, newRequest("POST", list, "Mcp-Session-Id", id, "From", "ada")); w.Code != http.StatusOK {
		t.Errorf("by the owner: %d, want 200", w.Code)
	}
	if w := serveRequest(h, newRequest("DELETE", "", "Mcp-Session-Id", id, "From", "ada")); w.Code != http.StatusNoContent {
		t.Errorf("ended by the owner: %d, want 204", w.Code)
	}
}

// watchedRecorder is a response that can be read while it is written.
type watchedRecorder struct {
	*httptest.ResponseRecorder
	mu sync.Mutex // protects what is written
}

func (w *watchedRecorder) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ResponseRecorder.Write(b)
}

func (w *watchedRecorder) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ResponseRecorder.Flush()
}

func (w *watchedRecorder) flushedBody() (flushed bool, body string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Flushed, w.Body.String()
}

// Proxies cut a stream that is silent for long, and a host should know that its call is on.
func TestStreamSendsHeartbeatsDuringACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		h := newHandler(t, mcpserver.Options{Heartbeat: time.Second}, func(context.Context, *mcpserver.Call) mcpserver.Result {
			<-goOn
			return mcpserver.Result{Text: "hello"}
		})
		defer h.Close(t.Context())
		w, done := &watchedRecorder{ResponseRecorder: httptest.NewRecorder()}, make(chan struct{})
		go func() { h.ServeHTTP(w, newRequest("POST", call, modernHeaders...)); close(done) }()
		synctest.Wait()
		if flushed, body := w.flushedBody(); !flushed || body != "" {
			t.Errorf("at once: flushed %v, %q, want true and empty", flushed, body)
		}
		<-time.After(2500 * time.Millisecond)
		synctest.Wait()
		if _, got := w.flushedBody(); got != ": ping\n: ping\n" {
			t.Errorf(`after two heartbeats: %q, want ": ping\n: ping\n"`, got)
		}
		close(goOn)
		<-done
		if _, got := w.flushedBody(); !strings.Contains(got, "hello") || w.Header().Get("X-Accel-Buffering") != "no" {
			t.Errorf("in the end: %q, want it to contain hello, X-Accel-Buffering no", got)
		}
	})
}

func TestPanicEndsOnlyItsCall(t *testing.T) {
	h := newHandler(t, mcpserver.Options{}, func(context.Context, *mcpserver.Call) mcpserver.Result { panic("no") })
	defer h.Close(t.Context())
	w := serveRequest(h, newRequest("POST", call, modernHeaders...))
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"isError":true`) || strings.Contains(w.Body.String(), "panic") {
		t.Errorf(`code %d %s, want Code 200, String containing "isError":true, String without panic`, w.Code, w.Body)
	}
}

// Clients of 2026-07-28 refuse a result without resultType (SEP-2322), and must find out by it that the
// call needs input.
func TestResultsOfFurtherToolsHaveAType(t *testing.T) {
	more := func(*http.Request) []mcpserver.Tool {
		return []mcpserver.Tool{{Name: "more", InputSchema: json.RawMessage(`{"type":"object"}`)}}
	}
	ask := mcpserver.Result{
		InputRequests: []mcpserver.Elicitation{{ID: "q", Mode: mcpserver.ModeForm, Message: "?", Schema: json.RawMessage(`{"type":"object"}`)}},
		RequestState:  "s",
	}
	for want, result := range map[string]mcpserver.Result{"complete": {Text: "hello"}, "input_required": ask} {
		called := ""
		h := newHandler(t, mcpserver.Options{MoreTools: more}, func(_ context.Context, c *mcpserver.Call) mcpserver.Result {
			called = c.Tool
			return result
		})
		for _, tool := range []string{"t", "more"} {
			headers := append(slices.Clone(modernHeaders), "Mcp-Name", tool)
			w := serveRequest(h, newRequest("POST", strings.Replace(call, `"name":"t"`, `"name":"`+tool+`"`, 1), headers...))
			if !strings.Contains(w.Body.String(), `"resultType":"`+want+`"`) || called != tool {
				t.Errorf("tool %s: got a call of %q and %s, want a call of %q and resultType %s", tool, called, w.Body, tool, want)
			}
		}
		h.Close(t.Context())
	}
}

// waitForSignal waits for the channel, at most until the test's time is over.
func waitForSignal(t *testing.T, there <-chan struct{}) {
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
	h := newHandler(t, mcpserver.Options{}, func(ctx context.Context, _ *mcpserver.Call) mcpserver.Result {
		entered <- struct{}{}
		<-ctx.Done()
		left <- struct{}{}
		return mcpserver.Result{}
	})

	id := serveRequest(h, newRequest("POST", initialize)).Header().Get("Mcp-Session-Id")
	old := `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t"}}`
	for _, r := range []*http.Request{newRequest("POST", call, modernHeaders...), newRequest("POST", old, "Mcp-Session-Id", id)} {
		go serveRequest(h, r)
		waitForSignal(t, entered)
	}

	closed := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() { h.Close(ctx); close(closed) }()
	stop()
	waitForSignal(t, left)
	waitForSignal(t, left)
	waitForSignal(t, closed)
	if w := serveRequest(h, newRequest("POST", list, "Mcp-Session-Id", id)); w.Code != http.StatusNotFound {
		t.Errorf("the session: %d, want 404", w.Code)
	}
	if w := serveRequest(h, newRequest("POST", call, modernHeaders...)); !strings.Contains(w.Body.String(), "shutting down") {
		t.Errorf(`a call: %s, want String containing "shutting down"`, w.Body)
	}
}

// A session that begins during Close is closed or refused, and later ones are refused. Owner is called before the
// SDK connects a session.
func TestCloseWaitsForSessionsThatBegin(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	h := newHandler(t, mcpserver.Options{}, sayHello)
	block := sync.OnceFunc(func() { close(begun); <-goOn })
	h.Owner = func(*http.Request) string { block(); return "" }

	id := make(chan string, 1)
	go func() {
		id <- serveRequest(h, newRequest("POST", initialize)).Header().Get("Mcp-Session-Id")
	}()
	waitForSignal(t, begun)
	closed := make(chan struct{})
	go func() { h.Close(t.Context()); close(closed) }()
	close(goOn)
	waitForSignal(t, closed)

	if w := serveRequest(h, newRequest("POST", list, "Mcp-Session-Id", <-id)); w.Code == http.StatusOK {
		t.Errorf("the session that began lists tools: %s, want it closed or refused", w.Body)
	}
	if w := serveRequest(h, newRequest("POST", initialize)); w.Code != http.StatusServiceUnavailable {
		t.Errorf("another session: %d %s, want 503", w.Code, w.Body)
	}
}
