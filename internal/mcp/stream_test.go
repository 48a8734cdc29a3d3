package mcp

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"answerd/internal/mcp/config"
)

// A server may ask in the middle of a call, and gets an answer.
func TestServerThatPingsDuringACall(t *testing.T) {
	answered := make(chan string, 1)
	var other atomic.Int64
	s := &scriptedServer{
		before: func(w http.ResponseWriter, r *http.Request) bool {
			if b := peekBody(r); r.Method == http.MethodPost && !strings.Contains(b, `"method"`) {
				answered <- b
				w.WriteHeader(http.StatusAccepted)
				return true
			}
			return false
		},
		call: func(w http.ResponseWriter, r *http.Request, m message) {
			send := startEventStream(w)
			send("data: {\"jsonrpc\":\"2.0\",\"id\":\"ask\",\"method\":\"ping\"}\n\n")
			select {
			case b := <-answered:
				if !strings.Contains(b, `"id":"ask"`) {
					other.Add(1)
				}
			case <-r.Context().Done():
			}
			send(fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", m.ID, textResult("ok")))
		},
	}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	res, err := c.Call(context.Background(), Call{Tool: "t"})
	mustResult(t, res, err)
	if other.Load() != 0 {
		t.Errorf("something else was answered: other %d, want 0", other.Load())
	}
}
