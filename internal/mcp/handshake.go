package mcp

import (
	"context"
	"errors"
	"sync"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// lastInitialize is the last protocol version that begins with initialize.
const lastInitialize = "2025-11-25"

// errHungUp is in the chain of a handshake whose server ended the connection when it was
// asked server/discover.
var errHungUp = errors.New("the server hung up at " + discover)

// speech is the protocol version that a server is spoken to in. The SDK asks
// server/discover first, which a server of before 2026-07-28 refuses; what a handshake
// has settled on is where the next one begins, so that such a server is asked once. It
// is forgotten when the server refuses it.
type speech struct {
	pinned string // as configured; "" for the newest that both sides speak

	mu      sync.Mutex // protects learned
	learned string
}

// shake makes a handshake by connect, under the exchange in ctx. connect is given the
// version to begin with, "" for the newest.
func (p *speech) shake(ctx context.Context, connect func(version string) (*sdk.ClientSession, error)) (*sdk.ClientSession, error) {
	begin := p.pinned
	if begin == "" {
		begin = p.known()
	}
	cs, err := connect(begin)
	switch {
	case p.pinned != "":
		return cs, err
	case err != nil && begin != "" && answeredNo(ctx, err):
		p.learn("")
		cs, err = connect("")
	}
	// Some servers of before 2026-07-28 hang up at a request that comes before initialize
	// (go-sdk#1177).
	if errors.Is(err, errHungUp) {
		cs, err = connect(lastInitialize)
	}
	if err == nil {
		p.learn(negotiated(cs))
	}
	return cs, err
}

func (p *speech) known() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.learned
}

func (p *speech) learn(version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.learned = version
}

// answeredNo reports whether a handshake failed for what the server said to it: one that
// is not there, or busy, has said nothing about the version.
func answeredNo(ctx context.Context, err error) bool {
	f, ok := errors.AsType[*transport.Failure](err)
	return ctx.Err() == nil && (!ok || f.Kind == Protocol || f.Kind == InvalidArguments || f.Kind == Execution)
}

// negotiated is the version that a session speaks.
func negotiated(cs *sdk.ClientSession) string {
	if r := cs.InitializeResult(); r != nil {
		return r.ProtocolVersion
	}
	return ""
}
