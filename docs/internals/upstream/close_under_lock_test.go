//go:build upstream

package upstream

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// slowCloseTransport is a transport whose Close takes its time, as CommandTransport's does for a
// process that does not exit at once.
type slowCloseTransport struct {
	mcp.Transport
	release chan struct{}
	closing chan struct{}
}

func (s slowCloseTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := s.Transport.Connect(ctx)
	return slowCloseConn{c, s}, err
}

type slowCloseConn struct {
	mcp.Connection
	s slowCloseTransport
}

func (c slowCloseConn) Close() error {
	select {
	case c.s.closing <- struct{}{}:
	default:
	}
	<-c.s.release
	return c.Connection.Close()
}

func TestCallOnAnEndedSessionReturnsAtOnce(t *testing.T) {
	s := slowCloseTransport{release: make(chan struct{}), closing: make(chan struct{}, 1)}
	s.Transport = newLineTransport(t, func(m message, out io.Writer) {
		switch m.Method {
		case "initialize":
			writeLine(out, m, handshakeResult(m))
		case "ping":
			_ = out.(io.Closer).Close() // the server has ended
		}
	})
	cs := dialSession(t, s, legacy, nil)
	defer close(s.release)
	_ = cs.Ping(timeoutContext(t, 5*time.Second), nil)
	<-s.closing
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = cs.CallTool(timeoutContext(t, 500*time.Millisecond), &mcp.CallToolParams{Name: "t"})
	}()
	select {
	case <-done:
	case <-time.After(3 * time.Second):
		t.Error("a call under a context of 0.5 s has not returned after 3 s, want 0.5 s: it waits for the transport's Close")
	}
}
