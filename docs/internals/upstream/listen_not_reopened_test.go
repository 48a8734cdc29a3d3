//go:build upstream

package upstream

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestListenIsReopened(t *testing.T) {
	listens := make(chan struct{}, 10)
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		if m.Method == "subscriptions/listen" {
			startEventStream(w)(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{}}`)
			listens <- struct{}{}
			return // which ends the stream
		}
		replyJSON(w, m, `{}`)
	})
	openSession(t, s, modern, &mcp.ClientOptions{ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {}})
	<-listens
	select {
	case <-listens:
	case <-time.After(5 * time.Second):
		t.Error("5 s after its end the subscriptions/listen stream was not opened again, want it open: every later list_changed is lost")
	}
}
