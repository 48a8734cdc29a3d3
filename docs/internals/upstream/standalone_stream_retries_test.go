//go:build upstream

package upstream

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A proxy cuts idle streams. Ten cuts come, with minutes of work between them.
func TestSessionOutlivesItsStandaloneStreams(t *testing.T) {
	const cuts = 10
	var made atomic.Int64
	gets := make(chan struct{}, 100)
	posts := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m, textResult("ok")) })
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			posts.Config.Handler.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		gets <- struct{}{}
		if made.Add(1) <= cuts {
			_, _ = io.WriteString(w, "retry: 10\n\n") // so that the test is soon over
			return
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	cs := dialSession(t, &mcp.StreamableClientTransport{Endpoint: s.URL}, legacy, nil)
	for range cuts + 1 {
		select {
		case <-gets:
		case <-time.After(5 * time.Second): // the client makes no more
		}
		if _, err := cs.CallTool(timeoutContext(t, 10*time.Second), &mcp.CallToolParams{Name: "t"}); err != nil {
			t.Errorf("a call after %d ends of the standalone stream: got %v, want its result", made.Load(), err)
			return
		}
	}
}
