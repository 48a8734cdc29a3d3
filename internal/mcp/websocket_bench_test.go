package mcp

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/coder/websocket"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// BenchmarkWebSocketCall compares a call through this room with one on the SDK's bare
// session over the same library, by callers at a time.
func BenchmarkWebSocketCall(b *testing.B) {
	args := json.RawMessage(`{"text":"hello"}`)
	s := newWSSDK(b, newToolServer(nil))
	cfg := wsServerConfig(b, s)
	c := newClient(b, Options{MaxConcurrentCalls: 200}, cfg)
	c.Tools(b.Context())
	conn, _, err := websocket.Dial(b.Context(), cfg.URL, &websocket.DialOptions{Subprotocols: []string{subprotocol}})
	if err != nil {
		b.Fatal(err)
	}
	bare, err := sdk.NewClient(&sdk.Implementation{Name: "bare"}, &sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{}}).
		Connect(b.Context(), webSocketTransport{conn}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = bare.Close() })
	for _, callers := range []int{1, 10, 200} {
		b.Run(fmt.Sprintf("%d/room", callers), func(b *testing.B) {
			b.ReportAllocs()
			callInParallel(b, callers, func() error {
				_, err := c.Call(b.Context(), Call{Tool: "echo", Args: args})
				return err
			})
		})
		b.Run(fmt.Sprintf("%d/bare", callers), func(b *testing.B) {
			b.ReportAllocs()
			callInParallel(b, callers, func() error {
				_, err := bare.CallTool(b.Context(), &sdk.CallToolParams{Name: "echo", Arguments: args})
				return err
			})
		})
	}
}
