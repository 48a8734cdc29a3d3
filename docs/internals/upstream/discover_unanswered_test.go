//go:build upstream

package upstream

import (
	"io"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A server of before 2026-07-28 ignores what it does not know before initialize.
func TestDiscoverThatIsNotAnsweredFallsBack(t *testing.T) {
	transport := newLineTransport(t, func(m message, out io.Writer) {
		if m.Method == "initialize" {
			writeLine(out, m, handshakeResult(m))
		}
	})
	cs, err := mcp.NewClient(impl, nil).Connect(timeoutContext(t, 8*time.Second), transport, nil)
	if err != nil {
		t.Errorf("Connect under a context of 8 s, server/discover without answer: got %v, want a session by initialize", err)
		return
	}
	_ = cs.Close()
}
