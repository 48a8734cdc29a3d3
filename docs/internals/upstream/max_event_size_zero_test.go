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
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		startEventStream(w)(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + textResult(strings.Repeat("x", size)) + `}`)
	})
	cs := openSession(t, s, legacy, nil) // MaxEventSize is 0
	res, err := cs.CallTool(timeoutContext(t, time.Minute), &mcp.CallToolParams{Name: "t"})
	if errors.Is(err, context.DeadlineExceeded) {
		skipOnError(t, err)
	}
	if err == nil && len(resultText(res)) == size {
		t.Errorf("an event of %d bytes was accepted with MaxEventSize 0; want an error past DefaultMaxEventSize (%d)", size, mcp.DefaultMaxEventSize)
	}
}
