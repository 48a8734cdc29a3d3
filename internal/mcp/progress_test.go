package mcp

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
)

// Progress that came before the result is delivered, in order, before Call returns.
func TestProgressComesInOrderBeforeTheResult(t *testing.T) {
	for _, name := range []string{"stateful sse", "stateless sse"} { // JSON has no room for it
		t.Run(name, func(t *testing.T) {
			w := serveHTTP(t, streamableHandler(t, newToolServer(func(s *sdk.Server) {
				addRawTool(s, "work", func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
					for i := range 20 {
						if err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
							ProgressToken: r.Params.GetProgressToken(), Progress: float64(i), Total: 20, Message: fmt.Sprint("step ", i),
						}); err != nil {
							return nil, err
						}
					}
					return &sdk.CallToolResult{}, nil
				})
			}), flavours[name]))

			c := newClient(t, Options{MaxConcurrentCalls: 20}, config.Server{Name: "a", URL: w.URL})
			c.Tools(t.Context())

			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					var got []Progress // without a lock: the race detector sees late ones
					if _, err := c.Call(t.Context(), Call{Tool: "work", Progress: func(p Progress) { got = append(got, p) }}); err != nil {
						t.Errorf("got the error %v", err)
					}
					if n := len(got); n < 2 || !slices.IsSortedFunc(got, func(a, b Progress) int { return int(a.Progress - b.Progress) }) ||
						got[0].Progress != 0 || got[n-1] != (Progress{Progress: 19, Total: 20, Message: "step 19"}) {
						t.Errorf("got %v, want the first and the last in order", got)
					}
				})
			}
			wg.Wait()
		})
	}
}

// A slow reader gets fewer notifications, the latest among them, and delays no other call.
func TestProgressOfASlowReaderDelaysNobody(t *testing.T) {
	t.Parallel()
	const sent = 1000
	s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) {
		if m.Params.Meta["progressToken"] == nil {
			replyJSON(w, m.ID, textResult("ok"))
			return
		}
		send := startEventStream(w)
		for i := range sent {
			send(fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":%q,\"progress\":%d}}\n\n",
				m.Params.Meta["progressToken"], i+1))
			send("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":\"another\",\"progress\":0}}\n\n")
		}
		send("data: {\"jsonrpc\":\"2.0\",\"id\":" + string(m.ID) + ",\"result\":" + textResult("ok") + "}\n\n")
	}}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	c.Tools(t.Context())

	first, proceed := make(chan struct{}), make(chan struct{})
	var got []float64
	done := make(chan error, 1)
	go func() {
		_, err := c.Call(t.Context(), Call{Tool: "t", Progress: func(p Progress) {
			if got = append(got, p.Progress); len(got) == 1 {
				close(first)
				<-proceed
			}
		}})
		done <- err
	}()

	<-first
	for range 10 {
		res, err := c.Call(t.Context(), Call{Tool: "t"})
		mustResult(t, res, err)
	}

	close(proceed)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got[len(got)-1] != sent || !slices.IsSorted(got) || slices.Contains(got, 0) {
		t.Errorf("got %v, want a rising part of 1 to %d with the last", got, sent)
	}
}

// In a file of seed 004 the smaller of the two limits is absolute: progress does not extend it.
func TestSeed004CallTimeoutIsAbsolute(t *testing.T) {
	for _, limits := range []string{`"tool_timeout_secs": 3, "timeout_secs": 60`, `"tool_timeout_secs": 60, "timeout_secs": 3`} {
		call, source, _ := strings.Cut(limits, ", ")
		servers, _, err := config.Parse([]byte(`{"servers": [{"id": "a", "source": {"type": "Http", "url": "http://localhost", `+source+`}}], `+call+`}`), func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			newTransport := func(http.RoundTripper) http.RoundTripper {
				return &endlessProgressServer{}
			}
			c := newClient(t, Options{Transport: newTransport}, servers...)
			c.Tools(t.Context())
			begin := time.Now()
			_, err := c.Call(t.Context(), Call{Tool: "t", Progress: func(Progress) {}})
			if e := mustFail(t, err); e.Kind != Timeout || time.Since(begin) != 3*time.Second {
				t.Errorf("Call() with %s = %v after %s, want a timeout after 3s", limits, e, time.Since(begin))
			}
			_ = c.Close()
		})
	}
}
