package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
)

// A tool's own failure is a result (S1.6), of every flavour of server.
func TestIsErrorIsAResult(t *testing.T) {
	for name, o := range flavours {
		w := serveHTTP(t, streamableHandler(t, newToolServer(func(s *sdk.Server) {
			addRawTool(s, "bad", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: "no luck"}}}, nil
			})
		}), o))
		c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
		res, err := c.Call(t.Context(), Call{Tool: "bad"})
		if r := mustResult(t, res, err); !r.IsError || r.Text() != "no luck" {
			t.Errorf(`%s: %+v, want IsError true, Text "no luck"`, name, r)
		}
	}
}

// A call that cannot be sent is refused without a request to the server.
func TestCallsThatAreNotSent(t *testing.T) {
	var asked atomic.Int64
	s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) {
		asked.Add(1)
		replyJSON(w, m.ID, textResult("ok"))
	}}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	c.Tools(t.Context())
	gone, cancel := context.WithCancel(t.Context())
	cancel()

	for _, test := range []struct {
		ctx  context.Context
		call Call
		kind ErrorKind
	}{
		{t.Context(), Call{Tool: "nope"}, UnknownTool},
		{t.Context(), Call{Tool: strings.Repeat("n", 1<<20)}, UnknownTool},
		{t.Context(), Call{Tool: "t", Args: json.RawMessage(`[1]`)}, InvalidArguments},
		{t.Context(), Call{Tool: "t", Args: json.RawMessage(`{"a":`)}, InvalidArguments},
		{t.Context(), Call{Tool: "t", Args: json.RawMessage(`{"a":"` + strings.Repeat("x", maxArgs) + `"}`)}, TooLarge},
		{t.Context(), Call{Tool: "t", Context: map[string]string{"a": strings.Repeat("x", maxContext)}}, InvalidArguments},
		{gone, Call{Tool: "t"}, Cancelled},
	} {
		_, err := c.Call(test.ctx, test.call)
		if e := mustFail(t, err); e.Kind != test.kind {
			t.Errorf("%.40s %.20s: %s, want %s", test.call.Tool, test.call.Args, e.Kind, test.kind)
		}
	}

	if asked.Load() != 0 {
		t.Errorf("%d calls were sent, want 0", asked.Load())
	}
}

// A caller that leaves gets its call back at once, and the tool learns of it.
func TestCancelReachesTheTool(t *testing.T) {
	t.Parallel()
	for name, o := range flavours {
		t.Run(name, func(t *testing.T) {
			begun, told := make(chan struct{}), make(chan struct{})
			w := serveHTTP(t, streamableHandler(t, newToolServer(func(s *sdk.Server) {
				addRawTool(s, "slow", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
					close(begun)
					<-ctx.Done()
					close(told)
					return nil, ctx.Err()
				})
			}), o))

			c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()

			failed := make(chan error, 1)
			go func() {
				_, err := c.Call(ctx, Call{Tool: "slow"})
				failed <- err
			}()

			<-begun
			cancel()
			if e := mustFail(t, <-failed); e.Kind != Cancelled {
				t.Errorf("call error %v, want Kind Cancelled", e)
			}
			<-told
			res, err := c.Call(t.Context(), Call{Tool: "echo"}) // the session lives
			mustResult(t, res, err)
		})
	}
}

// S4.4: so many calls at a time, and the wait for a permit isn't part of a call's
// time: three calls of 40 s one after the other all fit into a time-out of 60 s.
func TestQueueingIsNotPartOfTheTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		slow := func(http.RoundTripper) http.RoundTripper {
			return fakeServer(func(r *http.Request, m message) (string, error) {
				if m.Method == "tools/call" {
					most.Store(max(most.Load(), now.Add(1)))
					defer now.Add(-1)
					<-time.After(40 * time.Second) // fake time
				}
				return textResult("ok"), nil
			})
		}

		c := newClient(t, Options{Transport: slow}, config.Server{Name: "a", URL: "http://localhost", MaxConcurrentCalls: 1})
		c.Tools(t.Context())
		begin := time.Now()

		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if _, err := c.Call(t.Context(), Call{Tool: "t"}); err != nil {
					t.Error(err)
				}
			})
		}

		wg.Wait()
		if took := time.Since(begin); took != 120*time.Second || most.Load() != 1 {
			t.Errorf("took %s, %d at a time, want 120 s and 1", took, most.Load())
		}
		_ = c.Close()
	})
}

// S4.4: the time-out itself, and a caller's own deadline, also while it queues.
func TestTimeOutStartsWithThePermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := func(http.RoundTripper) http.RoundTripper {
			return fakeServer(func(r *http.Request, m message) (string, error) {
				if m.Method == "tools/call" {
					<-r.Context().Done()
					return "", r.Context().Err()
				}
				return textResult("ok"), nil
			})
		}

		c := newClient(t, Options{Transport: hang}, config.Server{Name: "a", URL: "http://localhost", MaxConcurrentCalls: 1, Timeout: 7 * time.Second})
		c.Tools(t.Context())

		begin := time.Now()
		done := make(chan time.Duration, 3)
		for range 2 {
			go func() {
				_, err := c.Call(t.Context(), Call{Tool: "t"})
				if e := mustFail(t, err); e.Kind != Timeout {
					t.Errorf("call error %v, want Kind Timeout", e)
				}
				done <- time.Since(begin)
			}()
		}

		synctest.Wait()
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Call(hurried, Call{Tool: "t"})
		if e := mustFail(t, err); e.Kind != Timeout || time.Since(begin) != time.Second {
			t.Errorf("%v after %s, want Kind Timeout, took 1 s", e, time.Since(begin))
		}
		if a, b := <-done, <-done; a != 7*time.Second || b != 14*time.Second {
			t.Errorf("timed out after %s and %s, want 7 s and 14 s", a, b)
		}
		_ = c.Close()
	})
}

// One server's calls don't wait for another's.
func TestSlowServerDelaysNoOther(t *testing.T) {
	begun := make(chan struct{})
	slow := &scriptedServer{call: func(_ http.ResponseWriter, r *http.Request, _ message) {
		close(begun)
		<-r.Context().Done()
	}}

	quick := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m.ID, textResult("ok")) }}
	c := newClient(t, Options{MaxConcurrentCalls: 1},
		config.Server{Name: "slow", URL: serveHTTP(t, slow).URL, ToolPrefix: "s"},
		config.Server{Name: "quick", URL: serveHTTP(t, quick).URL, ToolPrefix: "q"})
	c.Tools(t.Context())

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.Call(ctx, Call{Tool: "s_t"})
	}()

	<-begun
	for range 10 {
		res, err := c.Call(t.Context(), Call{Tool: "q_t"})
		mustResult(t, res, err)
	}

	cancel()
	<-done
}

// fakeServer is an MCP server behind a RoundTripper, for tests in fake time, where real
// sockets cannot be. It answers the handshake and the list; result answers the rest.
type fakeServer func(*http.Request, message) (string, error)

func (f fakeServer) RoundTrip(r *http.Request) (*http.Response, error) {
	var m message
	if r.Body != nil {
		_ = json.NewDecoder(r.Body).Decode(&m)
		_ = r.Body.Close()
	}

	resp := emptyReply(r, http.StatusAccepted)
	var result string
	var err error
	switch {
	case r.Method != http.MethodPost:
		return resp, nil
	case m.Method == "server/discover":
		resp.StatusCode = http.StatusBadRequest
		return resp, nil
	case m.Method == "initialize":
		resp.Header.Set(sessionHeader, "fake")
		if _, err = f(r, m); err == nil {
			result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}`
		}
	case m.Method == "tools/list":
		result = `{"tools":[{"name":"t"}]}`
	case m.ID == nil:
		return resp, nil
	default:
		result, err = f(r, m)
	}
	if err != nil {
		return nil, err
	}
	resp.StatusCode = http.StatusOK
	resp.Header.Set("Content-Type", "application/json")
	resp.Body = io.NopCloser(strings.NewReader(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)))
	return resp, nil
}

// okServer is a server whose calls succeed.
var okServer = fakeServer(func(*http.Request, message) (string, error) { return textResult("ok"), nil })

// failIf returns a transport to okServer. The requests for which fails returns true end with the error of fail instead.
func failIf(fails func(*http.Request) bool, fail func(*http.Request) error) func(http.RoundTripper) http.RoundTripper {
	return func(http.RoundTripper) http.RoundTripper {
		return roundTripFunc(func(r *http.Request) (*http.Response, error) {
			if fails(r) {
				return nil, fail(r)
			}
			return okServer.RoundTrip(r)
		})
	}
}

// hang is the error of a request that the server accepts and does not answer.
func hang(r *http.Request) error {
	<-r.Context().Done()
	return r.Context().Err()
}

// refuse is the error of a request to a server that accepts no connections.
func refuse(*http.Request) error { return syscall.ECONNREFUSED }
