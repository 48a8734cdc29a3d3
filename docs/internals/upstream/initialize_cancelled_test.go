//go:build upstream

package upstream

import (
	"io"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// 2025-11-25 basic/utilities/cancellation: "The initialize request MUST NOT be cancelled
// by clients". Which of Close and the cancellation comes first is a matter of luck:
// several attempts are made.
func TestInitializeIsNotCancelled(t *testing.T) {
	for range 200 {
		cancelled := make(chan message, 10)
		transport := newLineTransport(t, func(m message, _ io.Writer) {
			if m.Method == "notifications/cancelled" {
				cancelled <- m
			}
		})
		_, _ = mcp.NewClient(impl, nil).Connect(timeoutContext(t, 10*time.Millisecond), transport, &mcp.ClientSessionOptions{ProtocolVersion: legacy})
		select {
		case m := <-cancelled:
			t.Errorf("the client sent notifications/cancelled for request %s, which is initialize; want none", m.Params.RequestID)
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}
