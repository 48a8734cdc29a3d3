//go:build upstream

package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestJSONResponseIsBounded(t *testing.T) {
	const size = 8 << 20
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		replyJSON(w, m, textResult(strings.Repeat("x", size)))
	})
	cs := dialSession(t, &mcp.StreamableClientTransport{
		Endpoint: s.URL, DisableStandaloneSSE: true,
		MaxEventSize: 1 << 20, // the only bound that there is
	}, legacy, nil)
	res, err := cs.CallTool(timeoutContext(t, time.Minute), &mcp.CallToolParams{Name: "t"})
	if errors.Is(err, context.DeadlineExceeded) {
		skipOnError(t, err)
	}
	if err == nil && len(resultText(res)) == size {
		t.Errorf("a JSON response of %d MiB was read whole; want an error, as for an event of that size", size>>20)
	}
}

func TestErrorBodyIsBounded(t *testing.T) {
	const size = 24 << 20
	var sent atomic.Int64
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		w.WriteHeader(http.StatusBadRequest)
		for line := strings.Repeat("x", 64<<10); sent.Load() < size; sent.Add(int64(len(line))) {
			if _, err := io.WriteString(w, line); err != nil {
				return
			}
		}
	})
	cs := openSession(t, s, legacy, nil)
	_, err := cs.CallTool(timeoutContext(t, 30*time.Second), &mcp.CallToolParams{Name: "t"})
	if err == nil {
		skipOnError(t, fmt.Errorf("a 400 was no error"))
	}
	if got := sent.Load(); got >= size {
		t.Errorf("the client read %d MiB of the body of a 400; want a bound of some KiB", got>>20)
	}
}
