//go:build upstream

package upstream

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type callerKey struct{}

func TestServerRequestBelongsToTheCallOfItsStream(t *testing.T) {
	s := newServer(t, func(w http.ResponseWriter, r *http.Request, m message) {
		if m.Method != "tools/call" { // the answer to the question
			w.WriteHeader(http.StatusAccepted)
			return
		}
		send := startEventStream(w)
		send(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"sure?","requestedSchema":{"type":"object"}}}`)
		<-r.Context().Done()
	})
	asked := make(chan any, 1)
	cs := openSession(t, s, legacy, &mcp.ClientOptions{ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		asked <- ctx.Value(callerKey{})
		return &mcp.ElicitResult{Action: "decline"}, nil
	}})
	ctx, stop := context.WithCancel(context.WithValue(timeoutContext(t, 10*time.Second), callerKey{}, "alice"))
	go func() { _, _ = cs.CallTool(ctx, &mcp.CallToolParams{Name: "t"}) }()
	got := <-asked
	stop()
	if got != "alice" {
		t.Errorf("caller in the handler's context: got %v, want alice, on whose stream the request came", got)
	}
}
