package mcp

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Silence ends it, each sign of life puts that off, and nothing the end of it all; while
// a person is asked both stand still.
func TestALimitOfSilenceAndOfItAll(t *testing.T) {
	for name, play := range map[string]struct {
		live func(*limit)
		want time.Duration
	}{
		"silent from the start": {func(*limit) {}, 5 * time.Second},
		"a sign of life":        {func(l *limit) { <-time.After(4 * time.Second); l.touch() }, 9 * time.Second},
		"signs without end": {func(l *limit) {
			for range 100 {
				<-time.After(time.Second)
				l.touch()
			}
		}, 20 * time.Second},
		"a person in between": {func(l *limit) {
			<-time.After(4 * time.Second)
			l.hold()
			<-time.After(time.Hour)
			l.resume()
		}, time.Hour + 9*time.Second},
		"a person, and signs without end": {func(l *limit) {
			l.hold()
			<-time.After(time.Hour)
			l.resume()
			for range 100 {
				<-time.After(time.Second)
				l.touch()
			}
		}, time.Hour + 20*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				over := make(chan time.Duration, 2)
				var l limit
				l.start(began.Add(20*time.Second), func() { over <- time.Since(began) })
				l.between(5 * time.Second)
				play.live(&l)
				if took := <-over; took != play.want {
					t.Errorf("over after %s, want %s", took, play.want)
				}
				l.stop()
			})
		})
	}
}

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
			server := tools(func(s *sdk.Server) {
				rawTool(s, "hang", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
					begun <- struct{}{}
					<-ctx.Done()
					told <- struct{}{}
					return nil, ctx.Err()
				})
			})
			switch cfg.Type {
			case config.TypeWebSocket:
				ws := wsServer(t, newWSSDK(t, server))
				cfg.URL = ws.URL
			case config.TypeStdio:
				w := newWatch(t)
				child := stdioConfig("serve", w.addr())
				cfg.Command, cfg.Args, cfg.Env = child.Command, child.Args, child.Env
				go func() { // the child says so by dialling us
					<-w.lives
					<-w.lives
					begun <- struct{}{}
					<-w.lives
					told <- struct{}{}
				}()
			default:
				flavour := "stateful sse"
				if cfg.ProtocolVersion >= transport.StatelessVersion {
					flavour = "stateless sse"
				}
				cfg.URL = serve(t, handler(server, flavours[flavour])).URL
			}
			cfg.Name = "a"
			c := open(t, Options{}, cfg)
			c.Tools(t.Context())
			if got := c.Servers()[0].Protocol; got != cfg.ProtocolVersion {
				t.Fatalf("it speaks %s", got)
			}
			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error, 1)
			go func() {
				_, err := c.Call(ctx, Call{Tool: "hang"})
				failed <- err
			}()
			<-begun
			at := time.Now()
			cancel()
			<-told
			if took := time.Since(at); took > time.Second {
				t.Errorf("it learnt of it after %s", took)
			}
			if e := kind(t, <-failed); e.Kind != Cancelled {
				t.Error(e)
			}
		})
	}
}
