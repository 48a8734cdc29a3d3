// Package mcp puts all configured MCP servers behind one client: it finds a tool, calls it, and
// keeps the servers connected.
//
//	servers, warnings, err := config.Parse(data, getenv)
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
// Each enabled server has one long-lived session, which all runs share; a server that is used on behalf of its
// callers has one per caller. New does not wait: servers are connected in the background. A server that is down is
// reported and retried with backoff; it does not affect other servers.
//
// A call is sent at most once, unless it provably did not run or the tool is repeatable. A bad reply fails its own
// call only. A server that keeps failing gets no calls for a while. On a pinned server, tools whose definitions the
// operator has not accepted are disabled. Reload changes the configuration while calls run. Everything may be used
// concurrently; Close waits for every goroutine of the package and ends the sessions.
//
// How the parts fit: a Client has a server for each configured server, and the catalog of all tools (package
// catalog). A server has a supervisor goroutine, which lists its tools and connects it again, a session pool (package
// session), which uses one connection (package transport), and a breaker. The tokens come from package oauth.
package mcp

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth"
	"answerd/internal/auth/sealed"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
)

// New makes a client of servers, in that order, and starts to connect to them in the background. An
// error means that the configuration is not valid.
func New(servers []config.Server, opts Options) (*Client, error) {
	if err := config.Check(servers, opts.Service != nil); err != nil {
		return nil, err
	}
	if err := config.CheckRedirects(servers, opts.RedirectURL); err != nil {
		return nil, err
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.Timeout <= 0 {
		opts.Timeout = 60 * time.Second
	}
	if opts.MaxToolBytes <= 0 {
		opts.MaxToolBytes = 64 << 20
	}
	if opts.StartWait <= 0 {
		opts.StartWait = 3 * time.Second
	}
	if opts.Version == "" {
		opts.Version = "dev"
	}
	opts.oauthClients = &sharedClients{byKey: map[clientKey]*sharedClient{}}
	opts.inMemory = opts.SignIns == nil

	if opts.inMemory {
		var err error
		if opts.SignIns, err = sealed.NewInMemory(opts.Logger); err != nil {
			return nil, fmt.Errorf("generate a key for sign-ins: %w", err)
		}
	}

	opts.tls = &tlsSources{}
	if err := opts.tls.load(servers); err != nil {
		return nil, err
	}

	client := &Client{
		opts:      opts,
		log:       opts.Logger,
		catalog:   catalog.New(opts.Logger),
		ready:     make(chan struct{}),
		createdAt: time.Now(),
	}
	client.life, client.cancel = context.WithCancelCause(context.Background())
	client.reload.Lock()
	defer client.reload.Unlock()
	client.applyServers(servers)
	return client, nil
}

// Ready reports whether the first attempt to connect to every enabled server of New has ended, whether or not it
// succeeded. From 10 s after New on, Ready returns true in any case, since a child process may take longer to start.
// Ready stays true when Reload adds servers.
func (c *Client) Ready() bool {
	return transport.IsClosed(c.ready) || time.Since(c.createdAt) >= session.HandshakeTimeout
}

// Tools returns the tools to offer to a model, by server in the configuration's order and then by name. The slice is
// shared; do not change it. While a server is being connected for the first time, Tools waits for it under ctx: at
// most Options.StartWait in each call, and not at all once both Options.StartWait and 10 s have passed since New or
// the latest Reload. The tools of servers that are used on behalf of their callers are included after ToolsFor was
// called for a caller.
func (c *Client) Tools(ctx context.Context) []catalog.Tool { return c.ToolsFor(ctx, auth.Identity{}) }

// ToolsFor returns the tools to offer to a model in a run of the user. Before that, it lists the tools of those
// servers that are used on behalf of their callers, with the token of the user, if a list is missing or out of date.
// It waits for first lists only, under ctx and for Options.StartWait at most. Otherwise it does what Tools does.
func (c *Client) ToolsFor(ctx context.Context, user auth.Identity) []catalog.Tool {
	c.waitForFirstAttempts(ctx, user)
	return c.catalog.Offered()
}

// Tool returns the tool with that name. That includes tools that Tools leaves out
// (auto_register_tools: false), but not tools that a pin disables.
func (c *Client) Tool(name string) (catalog.Tool, bool) {
	resolved, ok := c.catalog.Resolve(name)
	if !ok || resolved.Disabled != "" {
		return catalog.Tool{}, false
	}
	return resolved.Tool, true
}

// NameOf returns the present name of the tool that a run was offered under name. The tools of other servers decide
// which tool has which name, so it may have changed since then if a server was down when the run began, or is down
// now. server is the configured name of the tool's server. With "", or for a server that is not configured, NameOf
// returns name. It returns "" if the tool is gone, or if several tools may be meant.
func (c *Client) NameOf(server, name string) string { return c.catalog.NameOf(server, name) }

// waitForFirstAttempts waits until the first attempts to connect to all servers have ended. Before that, it lists the
// tools of those servers that are used on behalf of their callers and have no up-to-date list, with the token of the
// user. It waits under ctx, for Options.StartWait at most, and for connections not beyond c.waitUntil.
func (c *Client) waitForFirstAttempts(ctx context.Context, user auth.Identity) {
	c.mu.Lock()
	allTried, remaining := c.allTried, time.Until(c.waitUntil)
	c.mu.Unlock()
	unlisted := c.unlistedServers(user)
	isOver := transport.IsClosed(allTried) || remaining <= 0
	if isOver && len(unlisted) == 0 {
		return
	}
	ctx, stop := context.WithTimeout(ctx, c.opts.StartWait)
	defer stop()
	var listings sync.WaitGroup
	for _, s := range unlisted {
		listings.Go(func() { s.listForNewUser(ctx, user) })
	}
	listings.Wait()
	timer := time.NewTimer(remaining)
	defer timer.Stop()
	select {
	case <-allTried:
	case <-timer.C:
	case <-ctx.Done():
	case <-c.life.Done():
	}
}

// unlistedServers returns the sessions of those servers that are used on behalf of their callers, whose list of tools
// is missing or out of date, and that the identity of the user is sufficient for.
func (c *Client) unlistedServers(user auth.Identity) []*userSessions {
	var unlisted []*userSessions
	for _, s := range c.allServers() {
		if s.userSessions != nil && s.userSessions.acceptsUser(user) && s.userSessions.needsListing() {
			unlisted = append(unlisted, s.userSessions)
		}
	}
	return unlisted
}

// Servers returns the states of all configured servers, in the configuration's order.
func (c *Client) Servers() []ServerStatus {
	servers := c.allServers()
	statuses := make([]ServerStatus, len(servers))
	for i, s := range servers {
		statuses[i] = s.currentStatus()
	}
	return statuses
}

// Unavailable returns the names of the enabled servers that cannot be used at present, in the configuration's order:
// those whose tools could not be listed the last time and, with waited, those that have not been connected yet.
// waited says that the caller has waited for them with ToolsFor. A server whose connection was just lost is not
// included, because the next call replaces the connection.
func (c *Client) Unavailable(waited bool) []string {
	var names []string
	for _, s := range c.allServers() {
		if s.isUnavailable(waited) {
			names = append(names, s.cfg.Name)
		}
	}
	return names
}

// Refresh lists the tools of one server again and connects first if needed. It returns when that has succeeded or
// failed, or ctx has ended. The error is ErrUnknownServer, a *ServerError, or the cause of the ended context.
func (c *Client) Refresh(ctx context.Context, name string) error {
	return c.RefreshFor(ctx, auth.Identity{}, name)
}

// RefreshFor does the same as Refresh, and lists a server that is used on behalf of its callers with the token of the
// user.
func (c *Client) RefreshFor(ctx context.Context, user auth.Identity, name string) error {
	s := c.serverByName(name)
	if s == nil {
		return fmt.Errorf("refresh %.64q: %w", name, ErrUnknownServer)
	}
	return s.refreshNow(ctx, user)
}

// Close ends all calls, and the sessions at the servers. It returns when every goroutine has ended, after about 5 s
// at most. It always returns nil, and may be called more than once.
func (c *Client) Close() error {
	c.reload.Lock()
	defer c.reload.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	c.cancel(transport.ErrClosed)
	var closings sync.WaitGroup
	for _, s := range c.allServers() {
		if s.isLive() {
			closings.Go(s.closeServer)
		}
	}
	closings.Wait()
	c.removals.Wait()
	return nil
}

// PinChanges returns the differences between the tools that pinned servers list and those that the
// operator has accepted, by server in the configuration's order and then by tool. Pinned servers
// that have not been listed yet are not included.
func (c *Client) PinChanges() []catalog.PinChange { return c.catalog.PinChanges(c.opts.Pins) }

// AcceptPins writes the tool definitions of all pinned servers that have been listed to
// Options.Pins and enables the tools. It keeps the definitions of other servers in the file.
func (c *Client) AcceptPins() error { return c.catalog.AcceptPins(c.opts.Pins) }

// ProtocolVersions returns the MCP protocol versions that this client supports, newest first. They
// are those of the SDK, which negotiates one with each server.
func ProtocolVersions() []string { return sdk.SupportedProtocolVersions() }

// Certificate is a certificate of a connection to an MCP server.
type Certificate struct {
	Server  string // its configured name
	Role    string // "client": ours; "server": the one that the server showed last
	Expires time.Time
}

// Certificates returns, for each server, our client certificate if one is configured, and the server's certificate if
// a TLS connection has been made. The order of the two is not defined.
func (c *Client) Certificates() []Certificate {
	var certificates []Certificate
	for _, s := range c.allServers() {
		if s.dialer.tls == nil { // no HTTP
			continue
		}
		for role, expires := range map[string]time.Time{"client": s.dialer.tls.Source().Expiry(), "server": s.dialer.tls.PeerExpiry()} {
			if !expires.IsZero() {
				certificates = append(certificates, Certificate{Server: s.cfg.Name, Role: role, Expires: expires})
			}
		}
	}
	return certificates
}
