//go:build upstream

package upstream

import (
	"net/http"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestCallToolLeavesItsParamsAlone(t *testing.T) {
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) { replyJSON(w, m, textResult("ok")) })
	cs := openSession(t, s, modern, nil)
	meta := mcp.Meta{"trace": "1"} // shared by all calls of one request
	_, err := cs.CallTool(timeoutContext(t, 10*time.Second), &mcp.CallToolParams{Name: "t", Meta: meta})
	skipOnError(t, err)
	if len(meta) != 1 {
		t.Errorf("the caller's map has %d members after the call, want 1: %v", len(meta), meta)
	}
}
