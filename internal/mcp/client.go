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
// Each enabled server has one long-lived session, which all runs share; a server that is used on
// behalf of its callers has one per caller. New does not wait: servers are connected in the
// background. A server that is down is reported and retried with backoff; it does not affect the
// others.
//
// A call is sent at most once, unless it provably did not run. A bad reply fails its own call only.
// A server that keeps failing gets no calls for a while. On a pinned server, tools whose
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
	opts.grants = &sharedGrants{all: map[grantKey]*sharedGrant{}}
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

// Ready reports whether the first attempt to connect to every enabled server of New has ended,
// whether or not it succeeded. After 10 s it returns true in any case, since a child process may
// take longer to start. It stays true when Reload adds servers.
func (c *Client) Ready() bool {
	return isClosed(c.ready) || time.Since(c.createdAt) >= session.HandshakeTimeout
}

// Tools returns the tools to offer to a model, by server in the configuration's order and then by
// name. The slice is shared; do not change it. Tools does no network requests. While a server is
// being connected for the first time, Tools waits for it under ctx, at most Options.StartWait; a
// server that takes longer than that and than 10 s is not waited for. The tools of servers that are
// used on behalf of their callers are included after ToolsFor was called for a caller.
func (c *Client) Tools(ctx context.Context) []catalog.Tool { return c.ToolsFor(ctx, auth.Identity{}) }

// ToolsFor returns the same as Tools, and first lists the tools of servers of AuthExchange with the
// token of the user if their list is missing or out of date. It waits for that as Tools does.
func (c *Client) ToolsFor(ctx context.Context, who auth.Identity) []catalog.Tool {
	c.waitForFirstAttempts(ctx, who)
	return c.catalog.Offered()
}

// Tool returns the tool with that name. That includes tools that Tools leaves out
// (auto_register_tools: false), but not tools that a pin disables.
func (c *Client) Tool(name string) (catalog.Tool, bool) {
	b, ok := c.catalog.Resolve(name)
	if !ok || b.Disabled != "" {
		return catalog.Tool{}, false
	}
	return b.Tool, true
}

// NameOf returns the present name of the tool that a run was offered as name, of that server, and ""
// if there is no such tool. A server that was down when the run began, or is down now, can change which
// tool the name itself stands for. An empty server stands for any.
func (c *Client) NameOf(server, name string) string { return c.catalog.NameOf(server, name) }

// waitForFirstAttempts waits for the first attempts to connect, and lists the tools of servers that
// need a caller's token with that of the user. It waits for Options.StartWait at most.
func (c *Client) waitForFirstAttempts(ctx context.Context, user auth.Identity) {
	c.mu.Lock()
	allTried, remaining := c.allTried, time.Until(c.waitUntil)
	c.mu.Unlock()
	unlisted := c.unlistedServers(user)
	isOver := isClosed(allTried) || remaining <= 0
	if isOver && len(unlisted) == 0 {
		return
	}
	ctx, stop := context.WithTimeout(ctx, c.opts.StartWait)
	defer stop()
	var all sync.WaitGroup
	for _, s := range unlisted {
		all.Go(func() { s.listForNewUser(ctx, user) })
	}
	all.Wait()
	timer := time.NewTimer(remaining)
	defer timer.Stop()
	select {
	case <-allTried:
	case <-timer.C:
	case <-ctx.Done():
	case <-c.life.Done():
	}
}

// unlistedServers returns the servers that are used on behalf of their callers, whose list of tools
// is missing or out of date, and for which the user has a token.
func (c *Client) unlistedServers(user auth.Identity) []*userSessions {
	var out []*userSessions
	for _, s := range c.allServers() {
		if s.callers != nil && s.callers.acceptsUser(user) && s.callers.needsListing() {
			out = append(out, s.callers)
		}
	}
	return out
}

// Servers returns the states of all configured servers, in the configuration's order.
func (c *Client) Servers() []ServerStatus {
	servers := c.allServers()
	out := make([]ServerStatus, len(servers))
	for i, s := range servers {
		out[i] = s.currentStatus()
	}
	return out
}

// Unavailable returns the names of the enabled servers that cannot be used at present, in the
// configuration's order: those whose latest attempt to connect failed and, if waited says that the
// caller waited for their tools with ToolsFor, those that have never been connected. A connection
// that was just lost does not count, because the next call replaces it.
func (c *Client) Unavailable(waited bool) []string {
	var names []string
	for _, s := range c.allServers() {
		if s.isUnavailable(waited) {
			names = append(names, s.cfg.Name)
		}
	}
	return names
}

// Refresh lists the tools of one server again and connects first if needed. It returns when that
// has succeeded, has failed (a *ServerError), or ctx has ended.
func (c *Client) Refresh(ctx context.Context, name string) error {
	return c.RefreshFor(ctx, auth.Identity{}, name)
}

// RefreshFor does the same as Refresh and uses the token of the user for a server of AuthExchange.
func (c *Client) RefreshFor(ctx context.Context, user auth.Identity, name string) error {
	s := c.serverByName(name)
	if s == nil {
		return fmt.Errorf("refresh %.64q: %w", name, ErrUnknownServer)
	}
	return s.refreshNow(ctx, user)
}

// Close ends all calls and the sessions at the servers. It returns when every goroutine has ended,
// after about 5 s at most. It may be called more than once.
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
	Role    string // "client" for ours, "server" for the one that the server showed last
	Expires time.Time
}

// Certificates returns the client certificates of all servers, and the certificates that the servers
// showed, as far as they are known.
func (c *Client) Certificates() []Certificate {
	var out []Certificate
	for _, s := range c.allServers() {
		if s.dialer.tls == nil {
			continue
		}
		for role, at := range map[string]time.Time{"client": s.dialer.tls.Source().Expiry(), "server": s.dialer.tls.PeerExpiry()} {
			if !at.IsZero() {
				out = append(out, Certificate{s.cfg.Name, role, at})
			}
		}
	}
	return out
}
