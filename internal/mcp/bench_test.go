package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
)

// BenchmarkCall compares a call through this room with one on the SDK's bare
// session, on the same server, by callers at a time.
func BenchmarkCall(b *testing.B) {
	args := json.RawMessage(`{"text":"hello"}`)
	for _, flavour := range []string{"stateful sse", "stateful json", "stateless sse", "stateless json"} {
		w := serveHTTP(b, streamableHandler(b, newToolServer(nil), flavours[flavour]))
		c := newClient(b, Options{MaxConcurrentCalls: 200}, config.Server{Name: "a", URL: w.URL})
		c.Tools(b.Context())
		callClient := func() error {
			_, err := c.Call(b.Context(), Call{Tool: "echo", Args: args})
			return err
		}
		bare := newSDKSession(b, w.URL)
		for _, callers := range []int{1, 10, 200} {
			for name, call := range map[string]func() error{
				"room": callClient,
				"bare": func() error {
					_, err := bare.CallTool(b.Context(), &sdk.CallToolParams{Name: "echo", Arguments: args})
					return err
				},
			} {
				b.Run(fmt.Sprintf("%s/%d/%s", flavour, callers, name), func(b *testing.B) {
					b.ReportAllocs()
					callInParallel(b, callers, call)
				})
			}
		}
	}
}

func callInParallel(b *testing.B, callers int, call func() error) {
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for n := i; n < b.N; n += callers {
				if err := call(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func newSDKSession(b *testing.B, url string) *sdk.ClientSession {
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.MaxIdleConns, tr.MaxIdleConnsPerHost = 0, 400
	b.Cleanup(tr.CloseIdleConnections)
	cs, err := sdk.NewClient(&sdk.Implementation{Name: "bare"}, &sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{}}).
		Connect(context.Background(), &sdk.StreamableClientTransport{
			Endpoint: url, HTTPClient: &http.Client{Transport: tr}, DisableStandaloneSSE: true,
		}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cs.Close() })
	return cs
}
