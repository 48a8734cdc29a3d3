// Package mcp is the tools of many MCP servers behind one client: connect, recover,
// list, call.
//
//	servers, err := config.Parse(data, getenv)
//	c, err := mcp.New(servers, mcp.Options{Service: tokens})
//	defer c.Close()
//	for _, t := range c.Tools(ctx) { … }
//	res, err := c.Call(ctx, mcp.Call{Tool: "crm_get_customer", Args: args})
//
// Each enabled server has one long-lived session, shared by all runs, made at first
// use on one http.Transport and made again when the server forgets it. New returns at
// once: servers are connected in the background, and one that is down is reported,
// retried with backoff, and keeps nothing else from working.
//
// A call is sent at most once, unless it provably did not run. One bad reply fails
// the call that it answers and no other; a server that fails again and again gets no
// calls for a while. Where a server is pinned, tools whose definitions the operator has
// not accepted are disabled. Reload changes the configuration under way. Everything may
// be used concurrently; Close waits for every goroutine of the room and ends the
// servers' sessions.
//
// How the parts fit: a Client has one server per configured server, and the
// catalogue of their tools under names that are safe for every provider. A server
// has a supervisor goroutine, a pool that holds its one session, and a breaker. A
// session's connection checks every message before the SDK sees it: over HTTP a
// streamable, over a WebSocket or to a child process, where one connection carries all
// calls, a link. An exchange is what they learn about one request on its way. What a server says
// besides its answer, and what it asks, is the exchange's that it belongs to: notes go
// to the call's queue, requests to the call's talk. What it says beside all calls comes on
// its connection, on the standing stream of a session over HTTP, or on the stream of
// subscriptions/listen, and keeps the list of tools and the session's shelf of resources
// fresh. A sender puts a token on what goes out over HTTP; package oauth has those of
// authorization servers.
package mcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

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

	grants *grants // of all servers; New sets it
}

// ErrUnknownServer is returned by Refresh, Prompts and Prompt for a name that is not configured.
var ErrUnknownServer = errors.New("no such MCP server")

// Client is the tools of many MCP servers. New makes one.
type Client struct {
	opts    Options
	log     *slog.Logger
	catalog *catalog.Catalog

	life   context.Context // ends with Close
	end    context.CancelCauseFunc
	ready  chan struct{} // closed when the servers of New have been tried
	made   time.Time
	drains sync.WaitGroup // removed servers

	reload sync.Mutex // held by Reload and Close; protects closed and lastID
	closed bool
	lastID int

	mu      sync.Mutex    // protects what follows
	servers []*server     // in the configuration's order
	untried int           // servers whose first attempt is not over
	begun   chan struct{} // closed when untried is 0
	patient time.Time     // until when they are waited for
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
	o.grants = &grants{all: map[grantKey]*sharedGrant{}}
	c := &Client{
		opts:    o,
		log:     o.Logger,
		catalog: catalog.New(o.Logger),
		ready:   make(chan struct{}),
		made:    time.Now(),
	}
	c.life, c.end = context.WithCancelCause(context.Background())
	c.reload.Lock()
	defer c.reload.Unlock()
	c.use(servers)
	return c, nil
}

// tried notes that one server's first attempt is over.
func (c *Client) tried() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.untried--
	c.begunLocked()
}

// begunLocked tells who waits for first attempts if all are over.
func (c *Client) begunLocked() {
	if c.untried > 0 {
		return
	}
	if !isClosed(c.ready) {
		close(c.ready) // first: who waited for the other may ask for this one
	}
	close(c.begun)
}

// Ready reports whether every enabled server that New was given has been tried once,
// with success or without, or has had 10 s to come up: a child process may take longer.
// It stays true when Reload brings more.
func (c *Client) Ready() bool {
	return isClosed(c.ready) || time.Since(c.made) >= session.HandshakeTimeout
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
	c.awaitBegin(ctx, who)
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

// awaitBegin waits for the first attempts at connecting, and for those that take a
// caller's token, which it makes with who's.
func (c *Client) awaitBegin(ctx context.Context, who auth.Identity) {
	c.mu.Lock()
	begun, left := c.begun, time.Until(c.patient)
	c.mu.Unlock()
	shy := c.uncalled(who)
	if (isClosed(begun) || left <= 0) && len(shy) == 0 {
		return
	}
	ctx, stop := context.WithTimeout(ctx, c.opts.StartWait)
	defer stop()
	var all sync.WaitGroup
	for _, s := range shy {
		all.Go(func() { s.introduce(ctx, who) })
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

// uncalled are the servers of AuthExchange that nobody has listed the tools of lately,
// if who could.
func (c *Client) uncalled(who auth.Identity) []*callers {
	var out []*callers
	for _, s := range c.all() {
		if s.callers != nil && s.callers.takes(who) && s.callers.wanted() {
			out = append(out, s.callers)
		}
	}
	return out
}

// all is the configured servers, in the configuration's order. It is not changed.
func (c *Client) all() []*server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers
}

// server is the one with that id; nil if it has left the configuration.
func (c *Client) server(id int) *server {
	for _, s := range c.all() {
		if s.id == id {
			return s
		}
	}
	return nil
}

// Servers are the states of all configured servers, in the configuration's order.
func (c *Client) Servers() []ServerStatus {
	servers := c.all()
	out := make([]ServerStatus, len(servers))
	for i, s := range servers {
		out[i] = s.status()
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
	s := c.named(name)
	if s == nil {
		return fmt.Errorf("refresh %.64q: %w", name, ErrUnknownServer)
	}
	return s.refresh(ctx, who)
}

// named is the configured server of that name, nil where there is none.
func (c *Client) named(name string) *server {
	for _, s := range c.all() {
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
	c.end(transport.ErrClosed)
	var all sync.WaitGroup
	for _, s := range c.all() {
		if s.live() {
			all.Go(s.close)
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
