//go:build upstream

package upstream

import (
	"encoding/json"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// rawTools is a page of tools that are not decoded.
type rawTools struct {
	mcp.ResultBase
	Tools      []json.RawMessage `json:"tools"`
	NextCursor string            `json:"nextCursor"`
}

func TestStandardMethodWithOwnResultType(t *testing.T) {
	c := mcp.NewClient(impl, nil)
	if err := mcp.AddSendingCustomMethod[*mcp.ListToolsParams, *rawTools](c, "tools/list"); err != nil {
		t.Errorf("tools/list with a result type of the caller's: got %v, want no error", err)
	}
}
