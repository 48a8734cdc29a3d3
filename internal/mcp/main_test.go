package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/content"
)

// Methods that test servers treat in a way of their own.
const (
	methodDiscover = "server/discover"
	methodListen   = "subscriptions/listen"
	methodCall     = "tools/call"

	methodInitialize = "initialize"
)

// TestMain runs the tests, or, as a child of a test, what that test wants of a child.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "child" {
		os.Exit(childMain(os.Args[2], os.Args[3:]))
	}
	// The tests that run in parallel wait for servers and child processes most of the time.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// quietLog returns a logger whose lines are discarded.
func quietLog() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// newClient returns a client of servers that is closed with the test.
func newClient(t testing.TB, o Options, servers ...config.Server) *Client {
	t.Helper()
	if o.Logger == nil {
		o.Logger = quietLog()
	}
	if o.StartWait == 0 {
		o.StartWait = time.Minute // the machine may be slow
	}
	c, err := New(servers, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// httpServer serves h on loopback and counts the TCP connections it gets.
type httpServer struct {
	*httptest.Server
	conns atomic.Int64
}

func serveHTTP(t testing.TB, h http.Handler) *httpServer {
	t.Helper()
	w := &httpServer{}
	w.Server = httptest.NewUnstartedServer(h)
	w.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			w.conns.Add(1)
		}
	}
	w.Start()
	t.Cleanup(func() { w.CloseClientConnections(); w.Close() })
	return w
}

// flavours are the real servers that a client meets.
var flavours = map[string]*sdk.StreamableHTTPOptions{
	"stateful sse":   {},
	"stateful json":  {JSONResponse: true},
	"stateless sse":  {Stateless: true, PropagateRequestCancellation: true},
	"stateless json": {Stateless: true, JSONResponse: true, PropagateRequestCancellation: true},
}

// newToolServer returns an MCP server with a few tools.
func newToolServer(add func(*sdk.Server)) *sdk.Server { return newServerWithInstructions("", add) }

// newServerWithInstructions is newToolServer with instructions.
func newServerWithInstructions(text string, add func(*sdk.Server)) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ServerOptions{Instructions: text})
	type in struct {
		Text string `json:"text,omitempty"`
	}
	sdk.AddTool(s, &sdk.Tool{Name: "echo", Description: "says it again"},
		func(_ context.Context, _ *sdk.CallToolRequest, i in) (*sdk.CallToolResult, any, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: i.Text}}}, nil, nil
		})
	if add != nil {
		add(s)
	}
	return s
}

// streamableHandler returns a handler of the server over Streamable HTTP. When the test ends, the sessions are closed that
// clients have not ended: a client may have lost its connection.
func streamableHandler(t testing.TB, s *sdk.Server, o *sdk.StreamableHTTPOptions) http.Handler {
	endRequestsWithTest(t, s)
	t.Cleanup(func() {
		for session := range s.Sessions() {
			_ = session.Close()
		}
	})
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, o)
}

// endRequestsWithTest makes the contexts of the server's requests end with the test. The SDK waits for all requests when
// it closes a session, and would wait without end for a tool that waits for a cancellation that a busy machine has lost.
func endRequestsWithTest(t testing.TB, s *sdk.Server) {
	s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(t.Context(), cancel)()
			return next(ctx, method, r)
		}
	})
}

// addRawTool adds a tool without a schema of its own.
func addRawTool(s *sdk.Server, name string, h sdk.ToolHandler) {
	s.AddTool(&sdk.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, h)
}

// message is a JSON-RPC message as a scripted server reads it.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name  string         `json:"name"`
		Meta  map[string]any `json:"_meta"`
		State string         `json:"requestState"`
	} `json:"params"`
}

// Results of the scripted servers.
const (
	discoverResult   = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}}`
	initializeResult = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}}`
	toolsResult      = `{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}`
)

// peekBody returns the body of r, which stays readable.
func peekBody(r *http.Request) string {
	b, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(b))
	return string(b)
}

// receive returns the next value of ch, or the zero value when the test is over. The handlers of servers use it, since
// a test that fails early would otherwise wait for its handlers forever.
func receive[T any](t *testing.T, ch <-chan T) (value T) {
	select {
	case value = <-ch:
	case <-t.Context().Done():
	}
	return value
}

// answersMethod returns a function for scriptedServer.before that answers the methods that begin with prefix.
func answersMethod(prefix, result string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		var m message
		if json.Unmarshal([]byte(peekBody(r)), &m) != nil || !strings.HasPrefix(m.Method, prefix) {
			return false
		}
		replyJSON(w, m.ID, result)
		return true
	}
}

// scriptedServer is a raw MCP server over HTTP whose tools/call and tools/list misbehave as the test says. It is
// stateful, and its handshake is that of 2025-11-25, unless stateless is true.
type scriptedServer struct {
	stateless   bool                                              // 2026-07-28
	list        func(http.ResponseWriter, *http.Request, message) // nil: one tool, "t"
	call        func(http.ResponseWriter, *http.Request, message)
	before      func(http.ResponseWriter, *http.Request) bool // true: answered
	initializes atomic.Int64                                  // initialize requests
	sessions    atomic.Int64
	deletes     chan string
}

func (s *scriptedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.before != nil && s.before(w, r) {
		return
	}

	if r.Method == http.MethodDelete {
		if s.deletes != nil {
			s.deletes <- r.Header.Get(sessionHeader)
		}
		return
	}

	var m message
	if r.Method == http.MethodPost {
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}

	switch m.Method {
	case "server/discover":
		if s.stateless {
			replyJSON(w, m.ID, discoverResult)
			return
		}
		http.Error(w, "what?", http.StatusBadRequest)
	case "initialize":
		s.initializes.Add(1)
		w.Header().Set(sessionHeader, fmt.Sprintf("session-%d", s.sessions.Add(1)))
		replyJSON(w, m.ID, initializeResult)
	case "tools/list":
		if s.list != nil {
			s.list(w, r, m)
			return
		}
		replyJSON(w, m.ID, toolsResult)
	case "tools/call":
		s.call(w, r, m)
	default:
		if m.ID == nil && r.Method == http.MethodPost {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

// replyJSON answers with JSON.
func replyJSON(w http.ResponseWriter, id json.RawMessage, result string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

// textResult returns a tools/call result with a text.
func textResult(s string) string {
	b, _ := json.Marshal(s)
	return `{"content":[{"type":"text","text":` + string(b) + `}]}`
}

// emptyReply is a reply that no server sent.
func emptyReply(r *http.Request, status int) *http.Response {
	return &http.Response{
		Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: r,
	}
}

func mustResult(t testing.TB, res *content.Result, err error) *content.Result {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// mustFail returns the *CallError of a call, which must have failed.
func mustFail(t testing.TB, err error) *CallError {
	t.Helper()
	if err == nil {
		t.Fatal("error nil, want a *CallError")
	}
	e, ok := err.(*CallError)
	if !ok {
		t.Fatalf("error %T %v, want a *CallError", err, err)
	}
	return e
}
