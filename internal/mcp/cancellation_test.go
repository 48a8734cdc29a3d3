package mcp

import (
	"context"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// waitUntil waits for there, which gets a value or is closed when what has happened.
func waitUntil(t *testing.T, what string, there <-chan struct{}) {
	t.Helper()
	select {
	case <-there:
	case <-time.After(time.Minute):
		t.Errorf("waited a minute, want %s", what)
	}
}

// F13: over HTTP, the cancellation may arrive at the server before its call. A server ignores a cancellation of a
// request that it has not received.
func TestCancellationThatOvertakesItsCallIsResent(t *testing.T) {
	t.Parallel()
	arrived, left := make(chan struct{}), make(chan struct{})           // the call, and its end
	overtaken, told := make(chan struct{}, 99), make(chan struct{}, 99) // cancellations before and after read is set
	var read atomic.Bool
	s := &scriptedServer{
		before: func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPost || !strings.Contains(peekBody(r), cancelled) {
				return false
			}
			to := overtaken
			if read.Load() {
				to = told
			}
			to <- struct{}{}
			w.WriteHeader(http.StatusAccepted)
			return true
		},
		call: func(http.ResponseWriter, *http.Request, message) {
			defer close(left)
			close(arrived)
			waitUntil(t, "the cancellation", overtaken)
			read.Store(true)
			waitUntil(t, "the cancellation once more", told)
		},
	}

	c := newClient(t, Options{}, config.Server{Name: "a", ProtocolVersion: "2025-11-25", URL: serveHTTP(t, s).URL})
	c.Tools(t.Context())

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()

	if _, err := c.Call(ctx, Call{Tool: "t"}); mustFail(t, err).Kind != Cancelled {
		t.Errorf("error %v, want Kind Cancelled", err)
	}
	waitUntil(t, "the call to end", left)
}

// F13, S4.4: however early a call is cancelled, it does not continue at the server. Over HTTP
// a call and its cancellation go over two connections; the other transports keep order.
// ANSWERD_CANCELS is how many calls there are per transport.
func TestCallThatIsCancelledAtOnceEndsAtTheServer(t *testing.T) {
	t.Parallel()
	calls, err := strconv.Atoi(os.Getenv("ANSWERD_CANCELS"))
	if err != nil {
		calls = 60
	}
	for name, cfg := range map[string]config.Server{
		"http 2025-11-25":      {ProtocolVersion: "2025-11-25"},
		"http 2026-07-28":      {ProtocolVersion: "2026-07-28"},
		"websocket 2025-11-25": {Type: config.TypeWebSocket, ProtocolVersion: "2025-11-25"},
		"websocket 2026-07-28": {Type: config.TypeWebSocket, ProtocolVersion: "2026-07-28"},
	} {
		t.Run(name, func(t *testing.T) {
			begun, over := make(chan struct{}, calls), make(chan struct{}, calls)
			server := newToolServer(func(s *sdk.Server) {
				addRawTool(s, "hang", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
					begun <- struct{}{}
					<-ctx.Done()
					over <- struct{}{}
					return nil, ctx.Err()
				})
			})

			switch {
			case cfg.Type == config.TypeWebSocket:
				cfg.URL = wsServerConfig(t, newWSSDK(t, server)).URL
			case cfg.ProtocolVersion >= transport.StatelessVersion:
				cfg.URL = serveHTTP(t, streamableHandler(t, server, flavours["stateless sse"])).URL
			default:
				cfg.URL = serveHTTP(t, streamableHandler(t, server, flavours["stateful sse"])).URL
			}

			cfg.Name = "a"
			c := newClient(t, Options{}, cfg)
			c.Tools(t.Context())

			for i := range calls {
				// From before the call is sent until the tool has it.
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
				_, err := c.Call(ctx, Call{Tool: "hang"})
				cancel()
				mustFail(t, err)
			}

			for n := len(begun); n > 0 && !t.Failed(); n-- {
				waitUntil(t, "a call that began to end", over)
			}
		})
	}
}
