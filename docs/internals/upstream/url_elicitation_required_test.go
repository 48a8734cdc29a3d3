//go:build upstream

package upstream

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestURLElicitationRequiredReachesTheHandler(t *testing.T) {
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"go there","data":{"elicitations":[{"mode":"url","message":"m","url":"https://example.com/","elicitationId":"1"}]}}}`,
			m.ID, mcp.CodeURLElicitationRequired)
	})
	var asked atomic.Int64
	cs := openSession(t, s, legacy, &mcp.ClientOptions{
		Capabilities: &mcp.ClientCapabilities{Elicitation: &mcp.ElicitationCapabilities{URL: &mcp.URLElicitationCapabilities{}}},
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			asked.Add(1)
			return &mcp.ElicitResult{Action: "decline"}, nil
		},
	})
	_, err := cs.CallTool(timeoutContext(t, 10*time.Second), &mcp.CallToolParams{Name: "t"})
	if asked.Load() == 0 {
		t.Errorf("the elicitation handler was not called, want one call: got %v", err)
	}
}
