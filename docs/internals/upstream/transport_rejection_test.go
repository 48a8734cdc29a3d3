//go:build upstream

package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A custom transport refuses one message. With an exported ErrRejected its Write would
// wrap that.
func TestTransportCanRejectOneMessage(t *testing.T) {
	ours, theirs := mcp.NewInMemoryTransports()
	srv := mcp.NewServer(impl, nil)
	_, err := srv.Connect(timeoutContext(t, 10*time.Second), theirs, nil)
	skipOnError(t, err)
	cs := dialSession(t, refusingTransport{ours}, legacy, nil)
	if _, err := cs.CallTool(timeoutContext(t, 5*time.Second), &mcp.CallToolParams{Name: "t"}); err == nil {
		skipOnError(t, errors.New("the refused call has a result"))
	}
	if err := cs.Ping(timeoutContext(t, 5*time.Second), nil); err != nil {
		t.Errorf("the request after a refused one: got %v, want no error", err)
	}
}

type refusingTransport struct{ mcp.Transport }

func (r refusingTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := r.Transport.Connect(ctx)
	return refusingConn{c}, err
}

type refusingConn struct{ mcp.Connection }

func (c refusingConn) Write(ctx context.Context, m jsonrpc.Message) error {
	if r, ok := m.(*jsonrpc.Request); ok && r.Method == "tools/call" {
		return fmt.Errorf("this message is too large")
	}
	return c.Connection.Write(ctx, m)
}

// The tool has run, and then the connection is cut. The error must not be the one of a
// request that was never sent.
func TestRejectedMeansNotSent(t *testing.T) {
	var ran atomic.Bool
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		ran.Store(true)
		if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = c.Close()
		}
	})
	cs := openSession(t, s, legacy, nil)
	_, err := cs.CallTool(timeoutContext(t, 10*time.Second), &mcp.CallToolParams{Name: "t"})
	var e *jsonrpc.Error
	if ran.Load() && errors.As(err, &e) && e.Code == -32005 {
		t.Errorf("a call that ran: got the error of a message that the transport refused, want another: %v", err)
	}
}
