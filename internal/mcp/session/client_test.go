package session

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// scriptedServer returns the URL of an MCP server of 2025-11-25 over HTTP that answers each method
// with its result.
func scriptedServer(t *testing.T, results map[string]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		result, ok := "", false
		if r.Method == http.MethodPost && json.NewDecoder(r.Body).Decode(&m) == nil {
			result, ok = results[m.Method]
		}
		switch {
		case m.Method == "initialize":
			result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"scripted","version":"1"}}`
		case m.Method != "" && m.ID == nil:
			w.WriteHeader(http.StatusAccepted)
			return
		case !ok:
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// newServerPool returns a pool of sessions with the server at url, and the connector that makes
// them. The test closes both.
func newServerPool(t *testing.T, url string) (*Pool, *Connector) {
	t.Helper()
	endpoint := transport.NewHTTP(transport.HTTPConfig{URL: url, RoundTripper: http.DefaultTransport, Logger: discardLog})
	connector := NewConnector(ConnectorOptions{Endpoint: endpoint, ClientVersion: "test", Logger: discardLog})
	life, end := context.WithCancel(context.Background())
	p := New(Options{
		Life: life, Logger: discardLog, Connect: connector.Connect, HandshakeTimeout: time.Minute, OverHTTP: true,
		OnConnected: func() {}, OnLost: func(*transport.Failure) {}, OnNotification: func(string) {},
	})
	t.Cleanup(func() {
		end()
		if err := p.Close(); err != nil {
			t.Errorf("got %v from Close", err)
		}
		endpoint.Close()
	})
	return p, connector
}

// A result reaches the caller as the server sent it, also what the SDK's own types would lose.
func TestAskReturnsTheResultAsReceived(t *testing.T) {
	const lossy = `{"content":[{"type":"hologram","depth":9007199254740993}],"structuredContent":{"n":9007199254740993,"f":1.50}}`
	const list = `{"tools":[{"name":"t"}]}`

	p, connector := newServerPool(t, scriptedServer(t, map[string]string{methodCall: lossy, "tools/list": list}))
	returned := map[string]string{} // by the SDK
	connector.client.AddSendingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			res, err := next(ctx, method, req)
			if raw, ok := res.(*rawResult); ok {
				returned[method] = string(raw.raw)
			}
			return res, err
		}
	})

	s, f := p.GetSession(t.Context())
	if f != nil {
		t.Fatalf("got %v, want a session", f)
	}
	x := NewRequest(t.Context(), p.Life, time.Now().Add(time.Minute), s)
	defer x.Finish()
	if raw, f := callMethod(x, methodCall, &sdk.CallToolParams{Name: "t"}); f != nil || string(raw) != lossy {
		t.Errorf("got %s, %v, want %s", raw, f, lossy)
	}
	if raw, f := callMethod(x, "tools/list", &sdk.ListToolsParams{}); f != nil || string(raw) != list {
		t.Errorf("got %s, %v, want %s", raw, f, list)
	}
	if got := returned[transport.MethodPrefix+methodCall]; got != lossy {
		t.Errorf("got %s from the SDK, want %s", got, lossy)
	}
}

// Example makes a session with a server and calls a tool in it.
func Example() {
	var url string
	log := discardLog
	ctx := context.Background()
	endpoint := transport.NewHTTP(transport.HTTPConfig{URL: url, RoundTripper: http.DefaultTransport, Logger: log})
	connector := NewConnector(ConnectorOptions{Endpoint: endpoint, ClientVersion: "1.0", Logger: log})
	p := New(Options{
		Life: ctx, Logger: log, Connect: connector.Connect, HandshakeTimeout: HandshakeTimeout, Subscribe: true, OverHTTP: true,
		OnConnected: func() {}, OnLost: func(*transport.Failure) {}, OnNotification: func(string) {},
	})
	defer endpoint.Close()
	defer p.Close()
	s, f := p.GetSession(ctx)
	if f != nil {
		fmt.Println(f)
		return
	}
	x := NewRequest(ctx, ctx, time.Now().Add(time.Minute), s)
	defer x.Finish()
	result, f := s.CallTool(x, ToolCall{Name: "get_weather", Args: json.RawMessage(`{"city":"Bonn"}`), Meta: sdk.Meta{}})
	if f != nil && f.Lost {
		p.DropSession(s) // the next GetSession makes another one
	}
	fmt.Println(string(result), f)
}
