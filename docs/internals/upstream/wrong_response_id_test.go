//go:build upstream

package upstream

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The reply to bob's POST has the id of alice's request.
func TestReplyWithTheIDOfAnotherRequestIsRefused(t *testing.T) {
	alices, started, release := make(chan string, 1), make(chan struct{}), make(chan struct{})
	s := newServer(t, func(w http.ResponseWriter, r *http.Request, m message) {
		switch m.Params.Name {
		case "alice":
			alices <- string(m.ID)
			close(started)
			select {
			case <-release:
				replyJSON(w, m, textResult("for alice"))
			case <-r.Context().Done():
			}
		case "bob":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, <-alices, textResult("for bob"))
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	})
	cs := openSession(t, s, legacy, nil)
	got := make(chan string, 1)
	go func() {
		res, err := cs.CallTool(timeoutContext(t, 20*time.Second), &mcp.CallToolParams{Name: "alice"})
		if err != nil {
			got <- "error: " + err.Error()
			return
		}
		got <- resultText(res)
	}()
	<-started
	_, err := cs.CallTool(timeoutContext(t, 2*time.Second), &mcp.CallToolParams{Name: "bob"})
	t.Logf("bob's call: %v", err)
	close(release)
	if text := <-got; text != "for alice" {
		t.Errorf("alice's result: got %q, want %q", text, "for alice")
	}
}
