//go:build upstream

package upstream

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestMaxEventSizeZeroSelectsTheDefault(t *testing.T) {
	const size = mcp.DefaultMaxEventSize + 1<<20
	s := server(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		events(w)(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + text(strings.Repeat("x", size)) + `}`)
	})
	cs := open(t, s, legacy, nil) // MaxEventSize is 0
	res, err := cs.CallTool(within(t, time.Minute), &mcp.CallToolParams{Name: "t"})
	if errors.Is(err, context.DeadlineExceeded) {
		setup(t, err)
	}
	if err == nil && len(textOf(res)) == size {
		t.Errorf("an event of %d bytes was accepted with MaxEventSize 0; want an error past DefaultMaxEventSize (%d)", size, mcp.DefaultMaxEventSize)
	}
}
