// Package mcp puts all configured MCP servers behind one client: it finds a tool, calls it, and
// keeps the servers connected.
//
//	servers, err := config.Parse(data, getenv)
//	if err != nil {
//		return err
//	}
//	c, err := mcp.New(servers, mcp.Options{Service: tokens})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	for _, t := range c.Tools(ctx) { … }
//	res, err := c.Call(ctx, mcp.Call{Tool: "crm_get_customer", Args: args})
//
// Each enabled server has one long-lived session, which all runs share; a server that is used on
// behalf of its callers has one per caller. New does not wait: servers are connected in the
// background. A server that is down is reported and retried with backoff, and the others work on.
//
// A call is sent at most once, unless it provably did not run. A bad reply fails its own call only.
// A server that fails again and again gets no calls for a while. On a pinned server, tools whose
// definitions the operator has not accepted are disabled. Reload changes the configuration while
// calls run. Everything may be used concurrently; Close waits for every goroutine of the package
// and ends the sessions.
//
// How the parts fit: a Client has a server for each configured server, and the catalog of all tools
// (package catalog). A server has a supervisor goroutine, which lists its tools and connects it
// again, a session pool (package session), which uses one connection (package transport), and a
// breaker. The tokens come from package oauth.
package mcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth"
	"answerd/internal/auth/token"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
)

// Options are the settings of a Client. The zero value works.
type Options struct {
	// Service is whose token goes to servers with auth type jwt; nil means that
	// the service has none, and those servers are asked without.
	Service token.Source
	// Transport, if set, wraps the http.Transport of every server, such as with
	// otelhttp. Redirects are not followed.
	Transport func(http.RoundTripper) http.RoundTripper
	Logger    *slog.Logger // nil: slog.Default()
	// Timeout is the longest silence of a server that works on a call, from the moment
	// that the call has its permit; 0: 60 s. A server's own Timeout wins.
	Timeout time.Duration
	// MaxConcurrentCalls is how many calls one server gets at a time; 0: 10.
	// A server's own MaxConcurrentCalls wins.
	MaxConcurrentCalls int
	// StartWait bounds how long Tools waits for servers that are connected for
	// the first time; 0: 3 s.
	StartWait time.Duration
	// Version is what servers are told about this client; "": "dev".
	Version string
	// RedirectURL is where browsers come back to, for servers of AuthAuthorizationCode
	// that name none of their own: whoever gets the request there calls Client.Callback.
	RedirectURL string
	// Pins is the path of the file of accepted tool definitions, for servers with
	// Pin. It is read by New and Reload, and written by AcceptPins.
	Pins string

	grants *sharedGrants // of all servers; New sets it
}

// ErrUnknownServer is returned by Refresh, Prompts and Prompt for a name that is not configured.
var ErrUnknownServer = errors.New("no such MCP server")

// Client is the tools of many MCP servers. New makes one.
type Client struct {
	opts    Options
	log     *slog.Logger
	catalog *catalog.Catalog

	life      context.Context // ends with Close
	cancel    context.CancelCauseFunc
	ready     chan struct{} // closed when the servers of New have been tried
	createdAt time.Time
	drains    sync.WaitGroup // removed servers

	reload sync.Mutex // held by Reload and Close; protects closed and lastID
	closed bool
	lastID int

	mu        sync.Mutex    // protects what follows
	servers   []*server     // in the configuration's order
	untried   int           // servers whose first attempt is not over
	allTried  chan struct{} // closed when untried is 0
	waitUntil time.Time     // until when they are waited for
}

// New makes a client of servers, in that order, and starts to connect to them. It
// does not wait for any. The error is about the configuration.
func New(servers []config.Server, o Options) (*Client, error) {
	if err := config.Check(servers, o.Service != nil); err != nil {
		return nil, err
	}
	if err := config.CheckRedirects(servers, o.RedirectURL); err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Timeout <= 0 {
		o.Timeout = 60 * time.Second
	}
	if o.MaxConcurrentCalls <= 0 {
		o.MaxConcurrentCalls = 10
	}
	if o.StartWait <= 0 {
		o.StartWait = 3 * time.Second
	}
	if o.Version == "" {
		o.Version = "dev"
	}
	o.grants = &sharedGrants{all: map[grantKey]*sharedGrant{}}
	c := &Client{
		opts:      o,
		log:       o.Logger,
		catalog:   catalog.New(o.Logger),
		ready:     make(chan struct{}),
		createdAt: time.Now(),
	}
	c.life, c.cancel = context.WithCancelCause(context.Background())
	c.reload.Lock()
	defer c.reload.Unlock()
	c.applyServers(servers)
	return c, nil
}

// markTried records that one server's first attempt to connect is over.
func (c *Client) markTried() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.untried--
	c.signalTriedLocked()
}

// signalTriedLocked wakes those who wait for first attempts if all are over.
func (c *Client) signalTriedLocked() {
	if c.untried > 0 {
		return
	}
	if !isClosed(c.ready) {
		close(c.ready) // first: who waited for the other may ask for this one
	}
	close(c.allTried)
}

// Ready reports whether every enabled server that New was given has been tried once,
// with success or without, or has had 10 s to come up: a child process may take longer.
// It stays true when Reload brings more.
func (c *Client) Ready() bool {
	return isClosed(c.ready) || time.Since(c.createdAt) >= session.HandshakeTimeout
}

// Tools are the tools that a model may be offered, by server in the configuration's
// order and then by name. The slice is shared: don't change it. Tools makes no
// network call; it waits under ctx, at most Options.StartWait, only while a server
// is being connected for the first time, and for no server longer than the greater of
// that and 10 s in all. Those of servers that are used on behalf of
// their callers are there once ToolsFor was called for one.
func (c *Client) Tools(ctx context.Context) []catalog.Tool { return c.ToolsFor(ctx, auth.Identity{}) }

// ToolsFor is Tools, for a caller with whose token servers of AuthExchange are asked
// for their tools where nobody has asked them lately; it waits for them as Tools does.
func (c *Client) ToolsFor(ctx context.Context, who auth.Identity) []catalog.Tool {
	c.waitForFirstAttempts(ctx, who)
	return c.catalog.Offered()
}

// Tool returns the tool of that name, also one that is kept out of Tools
// (auto_register_tools: false), but not one that is disabled (pin).
func (c *Client) Tool(name string) (catalog.Tool, bool) {
	b, ok := c.catalog.Resolve(name)
	if !ok || b.Disabled != "" {
		return catalog.Tool{}, false
	}
	return b.Tool, true
}

// waitForFirstAttempts waits for the first attempts at connecting, and for those that take a
// caller's token, which it makes with who's.
func (c *Client) waitForFirstAttempts(ctx context.Context, who auth.Identity) {
	c.mu.Lock()
	begun, left := c.allTried, time.Until(c.waitUntil)
	c.mu.Unlock()
	shy := c.unlistedServers(who)
	if (isClosed(begun) || left <= 0) && len(shy) == 0 {
		return
	}
	ctx, stop := context.WithTimeout(ctx, c.opts.StartWait)
	defer stop()
	var all sync.WaitGroup
	for _, s := range shy {
		all.Go(func() { s.listForNewUser(ctx, who) })
	}
	all.Wait()
	enough := time.NewTimer(left)
	defer enough.Stop()
	select {
	case <-begun:
	case <-enough.C:
	case <-ctx.Done():
	case <-c.life.Done():
	}
}

// unlistedServers returns the servers of AuthExchange whose tools nobody has listed lately,
// if who could.
func (c *Client) unlistedServers(who auth.Identity) []*userSessions {
	var out []*userSessions
	for _, s := range c.allServers() {
		if s.callers != nil && s.callers.acceptsUser(who) && s.callers.needsListing() {
			out = append(out, s.callers)
		}
	}
	return out
}

// allServers returns the servers in the configuration's order. The slice must not be changed.
func (c *Client) allServers() []*server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers
}

// serverByID returns the server with that id, or nil if it was removed.
func (c *Client) serverByID(id int) *server {
	for _, s := range c.allServers() {
		if s.id == id {
			return s
		}
	}
	return nil
}

// Servers are the states of all configured servers, in the configuration's order.
func (c *Client) Servers() []ServerStatus {
	servers := c.allServers()
	out := make([]ServerStatus, len(servers))
	for i, s := range servers {
		out[i] = s.currentStatus()
	}
	return out
}

// Refresh lists the tools of one server again, connecting first if need be, and
// returns when that is done, has failed (a *ServerError), or ctx has ended.
func (c *Client) Refresh(ctx context.Context, name string) error {
	return c.RefreshFor(ctx, auth.Identity{}, name)
}

// RefreshFor is Refresh, asking a server of AuthExchange with who's token.
func (c *Client) RefreshFor(ctx context.Context, who auth.Identity, name string) error {
	s := c.serverByName(name)
	if s == nil {
		return fmt.Errorf("refresh %.64q: %w", name, ErrUnknownServer)
	}
	return s.refreshNow(ctx, who)
}

// serverByName returns the configured server of that name, or nil.
func (c *Client) serverByName(name string) *server {
	for _, s := range c.allServers() {
		if s.cfg.Name == name {
			return s
		}
	}
	return nil
}

// Close ends all calls, tells the servers that their sessions are over, and returns
// when every goroutine is gone, at most some 5 s later. It may be called more than
// once.
func (c *Client) Close() error {
	c.reload.Lock()
	defer c.reload.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	c.cancel(transport.ErrClosed)
	var all sync.WaitGroup
	for _, s := range c.allServers() {
		if s.isLive() {
			all.Go(s.closeServer)
		}
	}
	all.Wait()
	c.drains.Wait()
	return nil
}

// PinChanges returns the differences between what all pinned servers that have been listed offer
// and what the operator has accepted, by server in the configuration's order and then by tool.
func (c *Client) PinChanges() []catalog.PinChange { return c.catalog.PinChanges(c.opts.Pins) }

// AcceptPins writes the definitions of all pinned servers that have been listed to
// Options.Pins, and enables the tools. The definitions of other servers in the file stay.
func (c *Client) AcceptPins() error { return c.catalog.AcceptPins(c.opts.Pins) }

// ProtocolVersions are the protocol versions that this client speaks, the newest
// first: those of the SDK, which settles on one with each server.
func ProtocolVersions() []string { return sdk.SupportedProtocolVersions() }

// Repeatable reports whether a call of the tool may be sent again when nobody knows what
// became of it: it changes nothing, or the operator says so.
func (c *Client) Repeatable(tool string) bool {
	b, ok := c.catalog.Resolve(tool)
	if !ok {
		return false
	}
	s := c.serverByID(b.ServerID)
	return s != nil && s.isRepeatable(b)
}

// State is how a server's connection stands.
type State string

// The states of a server.
const (
	Connecting State = "connecting"
	Connected  State = "connected"
	Degraded   State = "degraded" // connected once, failing now, or its calls are; its last tool list is still offered
	Failed     State = "failed"
	Disabled   State = "disabled"
)

// ServerStatus is one server as GET /servers reports it.
type ServerStatus struct {
	Name     string    `json:"name"`
	Type     string    `json:"type"`
	State    State     `json:"state"`
	Reason   string    `json:"reason,omitempty"` // fit for the caller
	Since    time.Time `json:"since"`
	Protocol string    `json:"protocol_version,omitempty"`
	Tools    int       `json:"tools"`
	// DisabledTools are the server's own names for the tools whose definitions the
	// operator has not accepted (pin), sorted.
	DisabledTools []string `json:"disabled_tools,omitempty"`
}

// ServerError is why a server cannot be used now. Its text is fit for the caller;
// Err is the cause, for the log only, and may be nil.
type ServerError struct {
	Server string
	Reason string
	Err    error
}

func (e *ServerError) Error() string { return fmt.Sprintf("MCP server %s: %s", e.Server, e.Reason) }

func (e *ServerError) Unwrap() error { return e.Err }
