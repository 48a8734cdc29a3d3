package mcp

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"answerd/internal/mcp/config"
)

// panickingTransport is a transport that panics once: on the goroutine that sends a message with that method, or on
// the one that reads its stream.
type panickingTransport struct {
	next     http.RoundTripper
	method   string
	reading  bool
	panicked *atomic.Bool
}

func (b panickingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	hit := r.Body != nil && strings.Contains(peekBody(r), b.method)
	if hit && !b.reading && !b.panicked.Swap(true) {
		panic("a bug")
	}
	resp, err := b.next.RoundTrip(r)
	if err == nil && hit && b.reading && !b.panicked.Swap(true) {
		resp.Body = buggyBody{resp.Body}
	}
	return resp, err
}

type buggyBody struct{ io.ReadCloser }

func (buggyBody) Read([]byte) (int, error) { panic("a bug") }

// F32: no call runs on the goroutines that connect, list and read. A panic there is a failure of
// the server, which is connected again by itself.
func TestPanicOverAServerIsItsFailure(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]panickingTransport{
		"the handshake":     {method: `"initialize"`},
		"the list of tools": {method: `"tools/list"`},
		"a stream of it":    {method: `"tools/list"`, reading: true},
		"a call's stream":   {method: `"tools/call"`, reading: true},
	} {
		t.Run(name, func(t *testing.T) {
			b.panicked = new(atomic.Bool)
			c := newClient(t, Options{Transport: func(next http.RoundTripper) http.RoundTripper {
				b := b
				b.next = next
				return b
			}}, config.Server{Name: "a", URL: serveHTTP(t, streamableHandler(t, newToolServer(nil), nil)).URL, ProtocolVersion: "2025-11-25"})

			if err := c.Refresh(t.Context(), "a"); err != nil { // the first was panicked
				t.Log(err)
			}
			_ = c.Refresh(t.Context(), "a")

			if strings.HasPrefix(name, "a call") {
				_, err := c.Call(t.Context(), Call{Tool: "echo"})
				if e := mustFail(t, err); e.Kind != Protocol || strings.Contains(e.Message, "bug") {
					t.Errorf("%v: %s, Kind %q, want Kind Protocol, Message without bug", err, e.Message, e.Kind)
				}
			}

			res, err := c.Call(t.Context(), Call{Tool: "echo"})
			if !b.panicked.Load() {
				t.Error("the panic did not happen, want it in the call")
			}
			mustResult(t, res, err)
		})
	}
}

// Requests and notifications of a server without params must not crash the process: the handlers of the SDK would use
// the params that are missing. A panic of the function that asks a person is an error response.
func TestMessagesWithoutParamsAreHandled(t *testing.T) {
	for _, params := range []string{"", `,"params":null`} {
		answers := make(chan string, 2)
		c := newClient(t, Options{}, config.Server{Name: "a", Sampling: true, URL: serveHTTP(t, &scriptedServer{
			before: receiveAnswers(answers),
			call: func(w http.ResponseWriter, _ *http.Request, m message) {
				send := startEventStream(w)
				for _, method := range []string{"elicitation/complete", "elicitation/complete", "cancelled", "progress", "message", "resources/updated"} {
					send(`data: {"jsonrpc":"2.0","method":"notifications/` + method + `"` + params + "}\n\n")
				}
				send(`data: {"jsonrpc":"2.0","id":"e1","method":"elicitation/create"` + params + "}\n\n")
				send(`data: {"jsonrpc":"2.0","id":"e2","method":"sampling/createMessage"` + params + "}\n\n")
				got := ""
				for range 2 {
					got += receive(t, answers)
				}
				send("data: {\"jsonrpc\":\"2.0\",\"id\":" + string(m.ID) + ",\"result\":" + textResult(got) + "}\n\n")
			},
		}).URL})
		res, err := c.Call(t.Context(), Call{Tool: "t", Elicit: func(context.Context, Elicitation) (ElicitationResult, error) {
			panic("a bug")
		}})
		if got := mustResult(t, res, err).Text(); strings.Count(got, `"error"`) != 2 {
			t.Errorf("params %q: got the responses %s, want two errors", params, got)
		}
	}
}
