package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"answerd/internal/llm/llmtest"
)

// serveWebSocketPeer starts an MCP server over WebSocket; call answers a call with the connection.
func serveWebSocketPeer(t testing.TB, call *atomic.Pointer[func(*websocket.Conn, message)]) (url string) {
	return serveHTTP(t, func(w http.ResponseWriter, q *http.Request) {
		conn, err := websocket.Accept(w, q, &websocket.AcceptOptions{Subprotocols: []string{"mcp"}})
		if err != nil {
			return
		}
		defer conn.CloseNow()
		for {
			_, data, err := conn.Read(context.Background())
			if err != nil {
				return
			}
			var m message
			if json.Unmarshal(data, &m) != nil || m.ID == nil {
				continue
			}
			send := func(format string) {
				_ = conn.Write(context.Background(), websocket.MessageText, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,`+format+"}", m.ID))
			}
			switch m.Method {
			case "initialize":
				send(`"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"ws","version":"1"}}`)
			case "tools/list":
				send(`"result":{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}`)
			case "tools/call":
				if f := call.Load(); f != nil {
					(*f)(conn, m)
				} else {
					send(`"result":{"content":[{"type":"text","text":"ok"}]}`)
				}
			default:
				send(`"error":{"code":-32601,"message":"what?"}`)
			}
		}
	})
}

func TestF25BrokenWebSocketIsReconnected(t *testing.T) {
	r := beginFault(t, "WebSocket: close 1011, binary frame, 64 MiB message, fragments without end, half-open (a proxy passes nothing on)", "the call fails, the next one works on a new socket")
	var call atomic.Pointer[func(*websocket.Conn, message)]
	link := newProxy(t, serveWebSocketPeer(t, &call))
	setting, _ := mcpConfig(t, fmt.Sprintf(`{"mcpServers":{"ws":{"type":"websocket","url":%q,"timeout":"5s"}}}`, strings.Replace(link.url, "http", "ws", 1)))
	model := llmtest.New(t, callingModel())
	s := start(t, "LLM_BASE_URL="+model.URL, setting)

	writeEndlessly := func(conn *websocket.Conn) {
		w, err := conn.Writer(context.Background(), websocket.MessageText)
		if err != nil {
			return
		}
		for range 1024 {
			if _, err := w.Write([]byte(strings.Repeat("x", 64<<10))); err != nil {
				return
			}
		}
		_ = w.Close() // the client has left by then
	}

	for _, c := range []struct {
		name      string
		replyFunc func(*websocket.Conn, message)
	}{
		{"close 1011", func(c *websocket.Conn, _ message) { _ = c.Close(websocket.StatusInternalError, "secret") }},
		{"binary", func(c *websocket.Conn, m message) {
			_ = c.Write(context.Background(), websocket.MessageBinary, []byte(`{}`))
		}},
		{"64 MiB in fragments", func(c *websocket.Conn, _ message) { go writeEndlessly(c) }},
		{"cut", func(c *websocket.Conn, _ message) { _ = c.CloseNow() }},
	} {
		call.Store(&c.replyFunc)
		kind := r.callErrorKind(s)
		if kind != "unknown_outcome" && kind != "too_large" {
			t.Errorf("%s: %q, want unknown_outcome or too_large", c.name, kind)
		}
		call.Store(nil)
		s.request(t, "POST", "/servers/ws/refresh", "")
		r.wantCallSuccess(s)
		r.record("%s: %s", c.name, kind)
	}

	link.disturb(stallConnection, forwardAll)
	if kind := r.callErrorKind(s); kind != "timeout" && kind != "unknown_outcome" {
		t.Errorf("half-open: %q, want timeout or unknown_outcome", kind)
	}
	r.record("half-open: timeout")
}
