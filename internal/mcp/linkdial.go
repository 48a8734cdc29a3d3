package mcp

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// linkDialer makes the sessions of a server over a connection of frames, one after the
// other, each with a link of its own.
type linkDialer struct {
	client  *sdk.Client
	open    func(context.Context) (frames, error)
	log     *slog.Logger
	version string      // as configured; "" for the newest
	once    sync.Once   // of the warning about query parameters
	old     atomic.Bool // it hangs up at what it doesn't know, so it is not asked
}

// connect makes a session.
func (d *linkDialer) connect(ctx context.Context) (*sdk.ClientSession, error) {
	const lastWithInitialize = "2025-11-25"
	version := d.version
	if version == "" && d.old.Load() {
		version = lastWithInitialize
	}
	cs, l, err := d.over(ctx, version)
	if err == nil || version != "" || !l.diedAsking(discover) {
		return cs, err
	}
	// Some servers of before 2026-07-28 hang up at a request that comes before
	// initialize (go-sdk#1177). It is remembered only if that was the reason.
	cs, _, err = d.over(ctx, lastWithInitialize)
	if err == nil {
		d.old.Store(true)
	}
	return cs, err
}

func (d *linkDialer) over(ctx context.Context, version string) (*sdk.ClientSession, *link, error) {
	l := newLink(d.open, d.log, &d.once)
	cs, err := d.client.Connect(ctx, l, &sdk.ClientSessionOptions{ProtocolVersion: version})
	return cs, l, err
}
