//go:build upstream

package upstream

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// closingLog is a log handler that closes every session of the server as soon as the server logs that it is
// connected. Sessions lists it by then.
type closingLog struct {
	slog.Handler
	server *mcp.Server
}

func (l *closingLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "server session connected" {
		for session := range l.server.Sessions() {
			_ = session.Close()
		}
	}
	return nil
}

func TestSessionCanBeClosedAsSoonAsItIsListed(t *testing.T) {
	log := &closingLog{Handler: slog.NewTextHandler(t.Output(), nil)}
	log.server = mcp.NewServer(impl, &mcp.ServerOptions{Logger: slog.New(log)})
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("Close panics: %v; want the session closed", p)
		}
	}()
	_, theirs := mcp.NewInMemoryTransports()
	_, err := log.server.Connect(timeoutContext(t, 10*time.Second), theirs, nil)
	t.Log(err)
}
