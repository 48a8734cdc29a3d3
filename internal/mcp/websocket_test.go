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

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
)

// wsURL is the address of a test server for type websocket.
func wsURL(w *httpServer) string { return "ws" + strings.TrimPrefix(w.URL, "http") }

// acceptWebSocket answers the WebSocket handshake as a server.
func acceptWebSocket(w http.ResponseWriter, r *http.Request) *websocket.Conn {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}})
	if err != nil {
		return nil
	}
	conn.SetReadLimit(16 << 20)
	return conn
}

// webSocketTransport is the server's side of a WebSocket, for the SDK's server.
type webSocketTransport struct{ conn *websocket.Conn }

func (s webSocketTransport) Connect(context.Context) (sdk.Connection, error) { return s, nil }
func (s webSocketTransport) SessionID() string                               { return "" }
func (s webSocketTransport) Close() error                                    { return s.conn.CloseNow() }

func (s webSocketTransport) Read(context.Context) (jsonrpc.Message, error) {
	_, data, err := s.conn.Read(context.Background())
	if err != nil {
		return nil, err
	}
	return jsonrpc.DecodeMessage(data)
}

func (s webSocketTransport) Write(_ context.Context, m jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	return s.conn.Write(context.Background(), websocket.MessageText, data)
}

// preDiscoverTransport doesn't know server/discover, as servers of before 2026-07-28 don't.
type preDiscoverTransport struct{ webSocketTransport }

func (s preDiscoverTransport) Connect(context.Context) (sdk.Connection, error) { return s, nil }

func (s preDiscoverTransport) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := s.webSocketTransport.Read(ctx)
	if r, ok := m.(*jsonrpc.Request); ok && r.Method == methodDiscover {
		unknown := &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "what?"}
		if err := s.Write(ctx, &jsonrpc.Response{ID: r.ID, Error: unknown}); err != nil {
			return nil, err
		}
		return s.webSocketTransport.Read(ctx)
	}
	return m, err
}

// wsSDK is the SDK's own server over WebSocket.
type wsSDK struct {
	mcp    *sdk.Server
	old    bool
	opened atomic.Int64 // WebSockets
	live   sync.WaitGroup

	mu    sync.Mutex // protects conns
	conns map[*websocket.Conn]bool
}

func newWSSDK(t testing.TB, mcp *sdk.Server) *wsSDK {
	endRequestsWithTest(t, mcp)
	s := &wsSDK{mcp: mcp, conns: map[*websocket.Conn]bool{}}
	t.Cleanup(func() { s.drop(); s.live.Wait() })
	return s
}

func (s *wsSDK) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	conn := acceptWebSocket(w, r)
	if conn == nil {
		return
	}
	s.live.Add(1)
	defer s.live.Done()
	s.opened.Add(1)
	s.mu.Lock()
	s.conns[conn] = true
	s.mu.Unlock()
	var over sdk.Transport = webSocketTransport{conn}
	if s.old {
		over = preDiscoverTransport{webSocketTransport{conn}}
	}
	ss, err := s.mcp.Connect(context.Background(), over, nil)
	if err == nil {
		_ = ss.Wait()
	}
	s.mu.Lock()
	delete(s.conns, conn)
	s.mu.Unlock()
	_ = conn.CloseNow()
}

// drop cuts all connections, without a close frame.
func (s *wsSDK) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		go func() { _ = c.CloseNow() }()
	}
}

// wsScriptedServer is a raw server over WebSocket whose tools/call misbehaves as the test
// says. Its handshake is that of 2025-11-25.
type wsScriptedServer struct {
	call       func(*websocket.Conn, message)                // must not block
	before     func(http.ResponseWriter, *http.Request) bool // true: answered
	onDiscover func(*websocket.Conn)                         // nil: an error
	onList     func(*websocket.Conn)                         // after the answer to tools/list
	onCancel   func(*websocket.Conn)                         // after notifications/cancelled
	dials      atomic.Int64                                  // WebSocket handshakes
	shakes     atomic.Int64                                  // initialize requests
	cancelled  chan string                                   // requestId
	gone       chan error                                    // how connections ended
}

func (s *wsScriptedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.dials.Add(1)
	if s.before != nil && s.before(w, r) {
		return
	}
	conn := acceptWebSocket(w, r)
	if conn == nil {
		return
	}
	defer conn.CloseNow()
	for {
		_, data, err := conn.Read(context.Background())
		if err != nil {
			if s.gone != nil {
				s.gone <- err
			}
			return
		}
		var m message
		if json.Unmarshal(data, &m) == nil {
			s.answerMessage(conn, m, data)
		}
	}
}

func (s *wsScriptedServer) answerMessage(conn *websocket.Conn, m message, data []byte) {
	switch m.Method {
	case "server/discover":
		if s.onDiscover != nil {
			s.onDiscover(conn)
			return
		}
		sendText(conn, `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"error":{"code":-32601,"message":"what?"}}`)
	case "initialize":
		s.shakes.Add(1)
		replyWS(conn, m.ID, initializeResult)
	case "tools/list":
		replyWS(conn, m.ID, toolsResult)
		if s.onList != nil {
			s.onList(conn)
		}
	case "tools/call":
		s.call(conn, m)
	case cancelled:
		if s.cancelled != nil {
			var c struct {
				Params struct {
					ID json.RawMessage `json:"requestId"`
				} `json:"params"`
			}
			_ = json.Unmarshal(data, &c)
			s.cancelled <- string(c.Params.ID)
			s.onCancel(conn)
		}
	}
}

// sendText sends one text message.
func sendText(conn *websocket.Conn, s string) {
	_ = conn.Write(context.Background(), websocket.MessageText, []byte(s))
}

func replyWS(conn *websocket.Conn, id json.RawMessage, result string) {
	sendText(conn, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result))
}

// S4.1, S4.9, S3.9: WebSocket, with the newest protocol and an older one; one socket.
func TestWebSocketBothProtocols(t *testing.T) {
	for name, tc := range map[string]struct {
		old  bool
		pin  string
		want string
	}{
		"newest":          {want: "2026-07-28"},
		"older server":    {old: true, want: "2025-11-25"},
		"older by config": {pin: "2025-11-25", want: "2025-11-25"},
		"oldest":          {pin: "2024-11-05", want: "2024-11-05"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newWSSDK(t, newToolServer(nil))
			s.old = tc.old
			c := newClient(t, Options{}, config.Server{Name: "a", Type: config.TypeWebSocket, URL: wsURL(serveHTTP(t, s)), ProtocolVersion: tc.pin})
			if got := namesOf(c.Tools(t.Context())); got != "echo" {
				t.Fatalf("tools %q, %+v, want echo", got, c.Servers())
			}

			for range 10 {
				res, err := c.Call(t.Context(), Call{Tool: "echo", Args: json.RawMessage(`{"text":"hello"}`)})
				if got := mustResult(t, res, err).Text(); got != "hello" {
					t.Errorf("text %q, want hello", got)
				}
			}

			if st := c.Servers()[0]; st.State != Connected || st.Protocol != tc.want {
				t.Errorf("server status %+v, want State Connected, Protocol %q", st, tc.want)
			}
			if n := s.opened.Load(); n != 1 {
				t.Errorf("%d sockets, want 1", n)
			}
		})
	}
}

// S4.9: 200 callers at a time on one socket: each gets its own answer.
func TestWebSocketAnswersMatchTheirCalls(t *testing.T) {
	t.Parallel()
	const callers, each = 200, 5
	s := newWSSDK(t, newToolServer(nil))
	w := serveHTTP(t, s)
	c := newClient(t, Options{MaxConcurrentCalls: callers}, config.Server{Name: "a", Type: config.TypeWebSocket, URL: wsURL(w)})
	c.Tools(t.Context())

	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for j := range each {
				want := fmt.Sprintf("%d-%d", i, j)
				res, err := c.Call(t.Context(), Call{Tool: "echo", Args: fmt.Appendf(nil, `{"text":%q}`, want)})
				if err != nil || res.Text() != want {
					t.Errorf("%v, %v, want %s", res, err, want)
				}
			}
		})
	}

	all.Wait()
	if s.opened.Load() != 1 || w.conns.Load() != 1 {
		t.Errorf("%d sockets, %d connections, want 1 and 1", s.opened.Load(), w.conns.Load())
	}
}
