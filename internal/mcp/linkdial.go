package mcp

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// linkDialer makes the sessions of a server over a connection of frames, one after the
// other, each with a link of its own.
type linkDialer struct {
	client     *sdk.Client
	open       func(context.Context) (frames, error)
	log        *slog.Logger
	once       sync.Once // of the warning about query parameters
	negotiator versionNegotiator
}

// connect makes a session.
func (d *linkDialer) connect(ctx context.Context) (*sdk.ClientSession, error) {
	return d.negotiator.connectNegotiated(ctx, func(version string) (*sdk.ClientSession, error) {
		l := newLink(d.open, d.log, &d.once)
		cs, err := d.client.Connect(ctx, l, &sdk.ClientSessionOptions{ProtocolVersion: version})
		if err == nil {
			return cs, nil
		}
		if err = l.because(err); l.diedAsking(discover) {
			err = fmt.Errorf("%w: %w", errHungUp, err)
		}
		return nil, err
	})
}
