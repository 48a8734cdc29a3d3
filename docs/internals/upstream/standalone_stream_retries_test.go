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
	var gets atomic.Int64
	posts := server(t, func(w http.ResponseWriter, _ *http.Request, m message) { reply(w, m, text("ok")) })
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			posts.Config.Handler.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		if gets.Add(1) <= 10 {
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
	cs := dial(t, &mcp.StreamableClientTransport{Endpoint: s.URL}, legacy, nil)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, err := cs.CallTool(within(t, 10*time.Second), &mcp.CallToolParams{Name: "t"}); err != nil {
			t.Errorf("a call after %d ends of the standalone stream: got %v, want its result", gets.Load(), err)
			return
		}
		if gets.Load() > 10 {
			return
		}
	}
}
