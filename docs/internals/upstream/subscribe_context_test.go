//go:build upstream

package upstream

import (
	"net/http"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestSubscribeEndsWithItsContext(t *testing.T) {
	s := newServer(t, func(_ http.ResponseWriter, r *http.Request, _ message) { <-r.Context().Done() })
	cs := openSession(t, s, modern, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cs.Subscribe(timeoutContext(t, 500*time.Millisecond), &mcp.SubscribeParams{URI: "file:///a"})
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Error("Subscribe under a context of 0.5 s has not returned after 5 s, want 0.5 s")
	}
}
