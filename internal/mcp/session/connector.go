package session

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// ConnectorOptions configure a Connector.
type ConnectorOptions struct {
	Endpoint      transport.Endpoint
	Protocol      string // protocol version; "" for the newest that both sides support
	ClientVersion string // answerd's version, sent as clientInfo.version
	Sampling      bool   // the server may send sampling requests
	Logger        *slog.Logger
}

// LastInitialize is the last protocol version that begins with initialize.
const LastInitialize = "2025-11-25"

// Connector opens the sessions with one server. All of the server's pools share it.
//
// It also chooses the protocol version with which a handshake begins. By default the SDK first sends server/discover,
// which servers older than 2026-07-28 refuse. To save that request, a handshake begins with the version of the last
// successful one, until the server refuses that version.
type Connector struct {
	endpoint transport.Endpoint
	client   *sdk.Client
	pinned   string // the configured version; "" for the newest that both sides support

	mu            sync.Mutex // protects the fields below
	lastVersion   string     // negotiated by the last successful handshake; "" before, and after a refusal
	useInitialize bool       // begin with LastInitialize, even if the server supports later versions
	// initializeRefused says that the server refused the version of initialize in the last handshake. Such a server has
	// only later versions, but did not answer server/discover in time, for example because it was still starting.
	initializeRefused bool
}

// NewConnector returns a Connector. It does not connect.
func NewConnector(o ConnectorOptions) *Connector {
	return &Connector{endpoint: o.Endpoint, client: newClient(o.ClientVersion, o.Sampling, o.Logger), pinned: o.Protocol}
}

// Connect opens a session. It performs up to three handshakes until the protocol version is negotiated, and records the
// result for the next session. ctx must carry the handshake's Request, as the context of Options.Connect does.
func (c *Connector) Connect(ctx context.Context) (*sdk.ClientSession, error) {
	firstVersion, initializeRefused := c.firstVersion()
	if c.pinned != "" || initializeRefused {
		// server/discover gets all of the handshake's time, because initialize does not follow or would be refused.
		request := requestOf(ctx)
		request.discoverTimeout = time.Until(request.Deadline())
	}
	if c.pinned != "" {
		return c.connectVersion(ctx, c.pinned)
	}
	cs, err := c.connectVersion(ctx, firstVersion)
	if err != nil && firstVersion != "" && mayRefuseVersion(ctx, err) {
		c.forgetVersion()
		cs, err = c.connectVersion(ctx, "")
	}
	// Some servers older than 2026-07-28 close the connection on any request before initialize (go-sdk#1177).
	if errors.Is(err, transport.ErrHungUp) {
		cs, err = c.connectVersion(ctx, LastInitialize)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// A server that was too busy for server/discover has not refused it. So the version of initialize is not recorded,
	// and the next handshake sends server/discover again.
	if err == nil && !requestOf(ctx).discoverBusy {
		c.lastVersion = initializeResult(cs).ProtocolVersion
	}
	rpc, _ := errors.AsType[*jsonrpc.Error](err)
	c.initializeRefused = rpc != nil && rpc.Code == sdk.CodeUnsupportedProtocolVersion
	return cs, err
}

// connectVersion opens a session with a handshake that begins with version; "" means the newest.
func (c *Connector) connectVersion(ctx context.Context, version string) (*sdk.ClientSession, error) {
	t := c.endpoint.NewTransport()
	cs, err := c.client.Connect(ctx, t, &sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		return nil, t.Explain(err)
	}
	return cs, nil
}

// firstVersion returns the protocol version with which the next handshake begins; "" means the newest. It also returns
// whether the server refused the version of initialize in the last handshake.
func (c *Connector) firstVersion() (version string, initializeRefused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.useInitialize {
		return LastInitialize, c.initializeRefused
	}
	return c.lastVersion, c.initializeRefused
}

// UseInitialize makes later handshakes begin with LastInitialize, until the server refuses it. That is the last
// version in which a server sends requests during a call.
func (c *Connector) UseInitialize() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.useInitialize = true
}

// forgetVersion makes the next handshake begin with the newest version. It also resets useInitialize.
func (c *Connector) forgetVersion() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastVersion, c.useInitialize = "", false
}

// mayRefuseVersion reports whether err, the error of a handshake, came from the server and may be about the version. It
// returns false if the server was not reached or was busy, or if ctx has ended.
func mayRefuseVersion(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	failure, ok := errors.AsType[*transport.Failure](err)
	if !ok {
		return true
	}
	kinds := []transport.Kind{transport.Protocol, transport.InvalidArguments, transport.Execution}
	return slices.Contains(kinds, failure.Kind)
}
