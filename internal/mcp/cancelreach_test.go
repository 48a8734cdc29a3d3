package mcp

import (
	"context"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// F13, S4.4: a run that is cancelled is over at the server within a second, on every
// transport and with both kinds of protocol.
func TestCancelReachesTheServerOnEveryTransport(t *testing.T) {
	for name, cfg := range map[string]config.Server{
		"http 2025-11-25":      {ProtocolVersion: "2025-11-25"},
		"http 2026-07-28":      {ProtocolVersion: "2026-07-28"},
		"websocket 2025-11-25": {Type: config.TypeWebSocket, ProtocolVersion: "2025-11-25"},
		"websocket 2026-07-28": {Type: config.TypeWebSocket, ProtocolVersion: "2026-07-28"},
		"stdio 2025-11-25":     {Type: config.TypeStdio, ProtocolVersion: "2025-11-25"},
		"stdio 2026-07-28":     {Type: config.TypeStdio, ProtocolVersion: "2026-07-28"},
	} {
		t.Run(name, func(t *testing.T) {
			begun, told := make(chan struct{}, 1), make(chan struct{}, 1)
			server := newToolServer(func(s *sdk.Server) {
				addRawTool(s, "hang", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
					begun <- struct{}{}
					<-ctx.Done()
					told <- struct{}{}
					return nil, ctx.Err()
				})
			})

			// Serve the tool over the transport.
			switch cfg.Type {
			case config.TypeWebSocket:
				ws := wsServerConfig(t, newWSSDK(t, server))
				cfg.URL = ws.URL
			case config.TypeStdio:
				w := newChildMonitor(t)
				child := stdioConfig("serve", w.addr())
				cfg.Command, cfg.Args, cfg.Env = child.Command, child.Args, child.Env
				go func() { // the child reports it by connecting
					for kind := ""; kind != "cancelled"; {
						kind = (<-w.started).kind
						switch kind {
						case "hanging":
							begun <- struct{}{}
						case "cancelled":
							told <- struct{}{}
						}
					}
				}()
			default:
				flavour := "stateful sse"
				if cfg.ProtocolVersion >= transport.StatelessVersion {
					flavour = "stateless sse"
				}
				cfg.URL = serveHTTP(t, streamableHandler(t, server, flavours[flavour])).URL
			}

			// Connect with the version of the protocol.
			cfg.Name = "a"
			c := newClient(t, Options{}, cfg)
			c.Tools(t.Context())
			if got := c.Servers()[0].Protocol; got != cfg.ProtocolVersion {
				t.Fatalf("it speaks %s, want %s", got, cfg.ProtocolVersion)
			}

			// Cancel a call that has begun. The server learns of it at once.
			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error, 1)
			go func() {
				_, err := c.Call(ctx, Call{Tool: "hang"})
				failed <- err
			}()
			waitUntil(t, "the call", begun)
			at := time.Now()
			cancel()
			waitUntil(t, "the cancellation", told)
			if took := time.Since(at); took > time.Second {
				t.Errorf("it learnt of it after %s, want at most 1 s", took)
			}
			if e := mustFail(t, <-failed); e.Kind != Cancelled {
				t.Errorf("call error %v, want Kind Cancelled", e)
			}
		})
	}
}
