package session

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// ConnectorOptions say how a Connector makes sessions with a server.
type ConnectorOptions struct {
	Endpoint      transport.Endpoint
	Protocol      string // version of the protocol; "" for the newest that both sides support
	ClientVersion string // of this program, for the server
	Sampling      bool   // the server may ask for a language model
	Logger        *slog.Logger
}

// Connector makes the sessions of one server, for all of its pools.
type Connector struct {
	endpoint   transport.Endpoint
	client     *sdk.Client
	negotiator versionNegotiator
}

// NewConnector returns a Connector. It connects to nothing yet.
func NewConnector(o ConnectorOptions) *Connector {
	return &Connector{
		endpoint: o.Endpoint, client: newClient(o.ClientVersion, o.Sampling, o.Logger), negotiator: versionNegotiator{pinned: o.Protocol},
	}
}

// Connect makes a session. It is for Options.Connect.
func (c *Connector) Connect(ctx context.Context) (*sdk.ClientSession, error) {
	return c.negotiator.connectNegotiated(ctx, func(version string) (*sdk.ClientSession, error) {
		t := c.endpoint.NewTransport()
		cs, err := c.client.Connect(ctx, t, &sdk.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			return nil, t.Explain(err)
		}
		return cs, nil
	})
}

// UseInitialize makes sessions from now on with 2025-11-25, the last version in which a server sends
// requests during a call, until the server refuses it.
func (c *Connector) UseInitialize() { c.negotiator.setInitialize() }

// LastInitialize is the last protocol version that begins with initialize.
const LastInitialize = "2025-11-25"

// versionNegotiator settles the protocol version of a server. The SDK asks server/discover
// first, which a server of before 2026-07-28 refuses. So the version that a handshake
// settled on is the one that the next handshake begins with, until the server refuses it.
type versionNegotiator struct {
	pinned string // as configured; "" for the newest that both sides support

	mu         sync.Mutex // protects what follows
	learned    string     // by the last handshake that succeeded; "" before, and after a refusal
	initialize bool       // begin with LastInitialize, also if the server has later versions
	// initializeRefused says that the server refused the protocol version of initialize in the last handshake. It had
	// been asked server/discover before and had not answered in time, such as a process that takes long to start.
	initializeRefused bool
}

// connectNegotiated makes a handshake by connect, under the Request in ctx. connect is given
// the version to begin with; "" for the newest.
func (n *versionNegotiator) connectNegotiated(ctx context.Context, connect func(version string) (*sdk.ClientSession, error)) (*sdk.ClientSession, error) {
	if n.pinned != "" || n.wasInitializeRefused() { // no time is needed for initialize after server/discover
		request := requestOf(ctx)
		request.discoverTimeout = time.Until(request.Deadline())
	}
	if n.pinned != "" {
		return connect(n.pinned)
	}
	first := n.learnedVersion()
	cs, err := connect(first)
	if err != nil && first != "" && refusedHandshake(ctx, err) {
		n.resetVersion()
		cs, err = connect("")
	}
	// Some servers of before 2026-07-28 close the connection on a request that comes before
	// initialize (go-sdk#1177).
	if errors.Is(err, transport.ErrHungUp) {
		cs, err = connect(LastInitialize)
	}
	// A server that was too busy for server/discover has not refused it: it is asked again in the next handshake.
	if err == nil && !requestOf(ctx).discoverBusy {
		n.setLearned(negotiatedVersion(cs))
	}
	rpc, _ := errors.AsType[*jsonrpc.Error](err)
	n.setInitializeRefused(rpc != nil && rpc.Code == sdk.CodeUnsupportedProtocolVersion)
	return cs, err
}

func (n *versionNegotiator) wasInitializeRefused() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.initializeRefused
}

func (n *versionNegotiator) setInitializeRefused(refused bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.initializeRefused = refused
}

// learnedVersion returns the protocol version to begin the next handshake with; "" if none is known.
func (n *versionNegotiator) learnedVersion() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.initialize {
		return LastInitialize
	}
	return n.learned
}

func (n *versionNegotiator) setInitialize() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.initialize = true
}

// resetVersion has the next handshake begin with the newest version.
func (n *versionNegotiator) resetVersion() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.learned, n.initialize = "", false
}

func (n *versionNegotiator) setLearned(version string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.learned = version
}

// refusedHandshake reports whether a handshake failed because of the server's answer. A server
// that cannot be reached, or is busy, has not refused the version.
func refusedHandshake(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	f, ok := errors.AsType[*transport.Failure](err)
	if !ok {
		return true
	}
	return f.Kind == transport.Protocol || f.Kind == transport.InvalidArguments || f.Kind == transport.Execution
}
