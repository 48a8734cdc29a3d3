package mcp

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// reached waits until there says so.
func reached(t *testing.T, what string, there <-chan struct{}) {
	t.Helper()
	select {
	case <-there:
	case <-time.After(time.Minute):
		t.Errorf("waited a minute for %s", what)
	}
}

// F13: over HTTP the cancellation may be at the server before its call, and a server drops
// what names no request that it knows.
func TestACancellationThatOvertakesItsCallIsSaidAgain(t *testing.T) {
	arrived, overtaken, told, left := make(chan struct{}), make(chan struct{}, 99), make(chan struct{}, 99), make(chan struct{})
	var read atomic.Bool
	s := &script{
		before: func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPost || !strings.Contains(peek(r), cancelled) {
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
			reached(t, "the cancellation", overtaken)
			read.Store(true)
			reached(t, "the cancellation once more", told)
		},
	}
	c := open(t, Options{}, config.Server{Name: "a", ProtocolVersion: "2025-11-25", URL: serve(t, s).URL})
	c.Tools(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	if _, err := c.Call(ctx, Call{Tool: "t"}); kind(t, err).Kind != Cancelled {
		t.Error(err)
	}
	reached(t, "the call to end", left)
}

// takenBack sends a cancellation over HTTP, of a call that was sent so long ago and under a
// context that is over, and waits until it is repeated no more.
func takenBack(t *testing.T, age time.Duration, way roundTrip) {
	c := newStreamable(&site{way: way, url: "http://server.test", log: quietLog()})
	x := newExchange(t.Context(), t.Context(), time.Now().Add(time.Minute))
	defer x.finish()
	x.session = &session{cs: &sdk.ClientSession{}}
	x.sent.Store(true)
	x.sentAt.Store(time.Now().Add(-age).UnixNano())
	if _, err := c.Connect(x.ctx); err != nil {
		t.Fatal(err)
	}
	over, end := context.WithCancel(x.ctx)
	end()
	if err := c.Write(over, &jsonrpc.Request{Method: cancelled, Params: json.RawMessage(`{"requestId":1}`)}); err != nil {
		t.Errorf("got %v: it would end the session", err)
	}
	c.rests.Wait()
	_ = c.Close()
}

// F13: a machine that stands still may use up the 5 s that the SDK gives a cancellation, and
// the time in which it is repeated, before it has got through at all. In fake time.
func TestACancellationIsRepeatedUntilItComesThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var through []time.Duration
		takenBack(t, 0, func(r *http.Request) (*http.Response, error) {
			if time.Since(began) < 10*time.Second {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			through = append(through, time.Since(began))
			return emptyReply(r, http.StatusAccepted), nil
		})
		if len(through) != 1 {
			t.Errorf("it came through after %v, want once", through)
		}
	})
}

// One that the server refuses it has got, and a server that never hears of one is not asked for
// ever. In fake time.
func TestACancellationIsNotRepeatedInVain(t *testing.T) {
	for name, tc := range map[string]struct {
		age   time.Duration
		reply func(*http.Request) (*http.Response, error)
		times int
	}{
		"taken":             {readTime, func(r *http.Request) (*http.Response, error) { return emptyReply(r, http.StatusAccepted), nil }, 1},
		"refused":           {readTime, func(r *http.Request) (*http.Response, error) { return emptyReply(r, http.StatusBadRequest), nil }, 1},
		"refused, and new":  {0, func(r *http.Request) (*http.Response, error) { return emptyReply(r, http.StatusBadRequest), nil }, 7},
		"nobody is there":   {readTime, func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }, 9},
		"there is no reply": {readTime, func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() }, 9},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, times := time.Now(), 0
			takenBack(t, tc.age, func(r *http.Request) (*http.Response, error) { times++; return tc.reply(r) })
			if took := time.Since(began); times != tc.times || took > 31*time.Second {
				t.Errorf("%s: %d times in %v, want %d", name, times, took, tc.times)
			}
		})
	}
}

// F13, S4.4: however early a call is cancelled, it does not go on at the server. Over HTTP
// a call and its cancellation go over two connections; the other transports keep order.
// ANSWERD_CANCELS is how many calls there are per transport.
func TestACallThatIsCancelledAtOnceEndsAtTheServer(t *testing.T) {
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
			server := tools(func(s *sdk.Server) {
				rawTool(s, "hang", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
					begun <- struct{}{}
					select {
					case <-ctx.Done():
						over <- struct{}{}
					case <-t.Context().Done(): // the last calls may only begin now, and the SDK's server waits for them
					}
					return nil, context.Canceled
				})
			})
			switch {
			case cfg.Type == config.TypeWebSocket:
				cfg.URL = wsServer(t, newWSSDK(t, server)).URL
			case cfg.ProtocolVersion >= transport.StatelessVersion:
				cfg.URL = serve(t, handler(server, flavours["stateless sse"])).URL
			default:
				cfg.URL = serve(t, handler(server, flavours["stateful sse"])).URL
			}
			cfg.Name = "a"
			c := open(t, Options{}, cfg)
			c.Tools(t.Context())
			for i := range calls {
				// From before the call is sent until the tool has it.
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
				_, err := c.Call(ctx, Call{Tool: "hang"})
				cancel()
				kind(t, err)
			}
			for n := len(begun); n > 0 && !t.Failed(); n-- {
				reached(t, "a call that began to end", over)
			}
		})
	}
}
