//go:build upstream

package upstream

import (
	"io"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestLineThatIsNoMessageIsSkipped(t *testing.T) {
	first := true
	transport := newLineTransport(t, func(m message, out io.Writer) {
		if first {
			_, _ = io.WriteString(out, "Weather server 1.0 listening on stdio\n")
			first = false
		}
		if m.Method == "initialize" {
			writeLine(out, m, handshakeResult(m))
		}
	})
	cs, err := mcp.NewClient(impl, nil).Connect(timeoutContext(t, 10*time.Second), transport, &mcp.ClientSessionOptions{ProtocolVersion: legacy})
	if err != nil {
		t.Errorf("a server that prints a banner first: got %v, want a session", err)
		return
	}
	_ = cs.Close()
}
