// Package mcp puts all configured MCP servers behind one client, which finds tools, calls them, and keeps the servers
// connected.
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
// Each enabled server has one long-lived session, which all runs share. A server with per-user tokens has a session
// per user instead. New does not wait: it connects to the servers in the background. A server that is down is reported
// and retried with backoff, and does not affect other servers.
//
// A call is sent at most once, unless it provably did not run or the tool is repeatable. A bad reply fails only its own
// call. A server that keeps failing gets no calls for a while. On a pinned server, tools are disabled until the
// operator has accepted their definitions. Reload changes the configuration while calls run. Everything may be used
// concurrently. Close waits for every goroutine of the package and ends the sessions.
//
// The parts: a Client has one server for each configured server, and the catalog of all tools (package catalog). A
// server has a supervisor goroutine, which lists its tools and reconnects it; a session pool (package session), which
// uses connections (package transport); and a breaker. The tokens come from package oauth.
package mcp

import (
	"cmp"
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

// New returns a Client for servers, in their order, and starts to connect to them in the background. It returns an
// error if the configuration is not valid, if a TLS file cannot be used, or if it cannot generate a key for sign-ins.
func New(servers []config.Server, opts Options) (*Client, error) {
	if err := config.Check(servers, opts.Service != nil); err != nil {
		return nil, err
	}
	if err := config.CheckRedirects(servers, opts.RedirectURL); err != nil {
		return nil, err
	}
	opts.Logger = cmp.Or(opts.Logger, slog.Default())
	opts.Timeout = orElse(opts.Timeout, 60*time.Second)
	opts.MaxToolBytes = orElse(opts.MaxToolBytes, 64<<20)
	opts.StartWait = orElse(opts.StartWait, 3*time.Second)
	opts.Version = cmp.Or(opts.Version, "dev")
	opts.oauthClients = &sharedClients{byKey: map[clientKey]*sharedClient{}}
	opts.inMemory = opts.SignIns == nil
	if opts.inMemory {
		var err error
		if opts.SignIns, err = sealed.NewInMemory(opts.Logger); err != nil {
			return nil, fmt.Errorf("generate a key for sign-ins: %w", err)
		}
	}

	opts.tls = &tlsSources{}
	if err := opts.tls.setServers(servers); err != nil {
		return nil, err
	}

	client := &Client{
		opts:      opts,
		log:       opts.Logger,
		catalog:   catalog.New(opts.Logger),
		createdAt: time.Now(),
	}
	client.life, client.cancel = context.WithCancelCause(context.Background())
	client.reload.Lock()
	defer client.reload.Unlock()
	client.applyServers(servers)
	return client, nil
}

// Ready reports whether New's first attempt to connect to each enabled server has ended, with or without success. From
// 10 s after New on, Ready always returns true, because a child process may take longer than that to start. It stays
// true when Reload adds servers.
func (c *Client) Ready() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.everTried || time.Since(c.createdAt) >= session.HandshakeTimeout
}

// Tools returns the tools to offer to a model, ordered by server as in the configuration, then by name. The slice is
// shared and must not be changed. While the first attempt to connect to a server runs, Tools waits for that attempt:
// for at most Options.StartWait per call, and until ctx ends. It does not wait once both Options.StartWait and 10 s
// have passed since New or the latest Reload. The tools of a server with per-user tokens are included once they have
// been listed with a user's token, which ToolsFor does.
func (c *Client) Tools(ctx context.Context) []catalog.Tool { return c.ToolsFor(ctx, auth.Identity{}) }

// ToolsFor returns the tools to offer to a model that acts for user. For servers with per-user tokens, it first
// requests missing and outdated lists of tools with user's token. It waits only for a server's first list, for at most
// Options.StartWait and until ctx ends. Otherwise it does what Tools does.
func (c *Client) ToolsFor(ctx context.Context, user auth.Identity) []catalog.Tool {
	c.waitForFirstAttempts(ctx, user)
	return c.catalog.Offered()
}

// Tool returns the tool with this name. It also finds tools that Tools leaves out (auto_register_tools: false), but not
// tools that a pin disables. It returns false for any other name.
func (c *Client) Tool(name string) (catalog.Tool, bool) {
	resolved, ok := c.catalog.Resolve(name)
	if !ok || resolved.Disabled != "" {
		return catalog.Tool{}, false
	}
	return resolved.Tool, true
}

// NameOf returns the present name of the tool that a run was offered under name. A tool's name depends on the tools of
// other servers, so it may differ if a server was down when the run began, or is down now. server is the configured
// name of the tool's server. If server is "" or is not configured, NameOf returns name. It returns "" if the tool is
// gone, or if several tools may be meant.
func (c *Client) NameOf(server, name string) string { return c.catalog.NameOf(server, name) }

// waitForFirstAttempts waits until the first attempt to connect to each server has ended. Before that, it lists the
// tools of unlistedServers with user's token. It stops waiting when ctx or the Client ends, after Options.StartWait,
// and at c.waitUntil, which does not limit the time for lists.
func (c *Client) waitForFirstAttempts(ctx context.Context, user auth.Identity) {
	c.mu.Lock()
	allTried, remaining := c.allTried, time.Until(c.waitUntil)
	c.mu.Unlock()
	unlisted := c.unlistedServers(user)
	isOver := transport.IsClosed(allTried) || remaining <= 0 // the attempts, or the time to wait for them
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

// unlistedServers returns the servers whose tools should be listed with user's token now. They use per-user tokens,
// accept user, and have no list or an outdated one.
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

// Unavailable returns the names of the enabled servers that cannot be used at present, in the configuration's order. A
// server is unavailable if the latest attempt to list its tools failed, or its configuration cannot be used. With
// waited, a server that has never been connected is unavailable too; pass true if ToolsFor has waited for it. A server
// whose connection was just lost is not included, because the next call opens a new connection.
func (c *Client) Unavailable(waited bool) []string {
	var names []string
	for _, s := range c.allServers() {
		if s.isUnavailable(waited) {
			names = append(names, s.cfg.Name)
		}
	}
	return names
}

// Refresh lists the tools of one server again and connects to it first if needed. It waits for the outcome until ctx
// ends. The error is ErrUnknownServer, a *ServerError, or the cause of the end of ctx or of the server's life.
func (c *Client) Refresh(ctx context.Context, name string) error {
	return c.RefreshFor(ctx, auth.Identity{}, name)
}

// RefreshFor does what Refresh does. If the server uses per-user tokens, RefreshFor uses user's token.
func (c *Client) RefreshFor(ctx context.Context, user auth.Identity, name string) error {
	s := c.serverByName(name)
	if s == nil {
		return fmt.Errorf("refresh %.64q: %w", name, ErrUnknownServer)
	}
	return s.refreshNow(ctx, user)
}

// Close ends all calls and ends the sessions with the servers. It waits until every goroutine of the Client has ended,
// about 5 s at most. Close always returns nil, and may be called more than once.
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

// PinChanges returns the differences between the tools that pinned servers list and the definitions that the operator
// has accepted, ordered by server as in the configuration, then by tool. Pinned servers that have not been listed yet
// are not included.
func (c *Client) PinChanges() []catalog.PinChange { return c.catalog.PinChanges(c.opts.Pins) }

// AcceptPins writes the tool definitions of all pinned servers that have been listed to the file Options.Pins, and
// enables these tools. The file's definitions of other servers are kept.
func (c *Client) AcceptPins() error { return c.catalog.AcceptPins(c.opts.Pins) }

// ProtocolVersions returns the MCP protocol versions that this client supports, newest first. They
// are those of the SDK, which negotiates one with each server.
func ProtocolVersions() []string { return sdk.SupportedProtocolVersions() }

// Certificate is a certificate of one end of a connection to an MCP server.
type Certificate struct {
	Server  string // its configured name
	Role    string // "client": answerd's own; "server": the one that the server presented last
	Expires time.Time
}

// Certificates returns up to two certificates per server: answerd's client certificate if one is configured, and the
// server's certificate if a TLS connection has been made. The order of the two is not defined.
func (c *Client) Certificates() []Certificate {
	var certificates []Certificate
	for _, s := range c.allServers() {
		if s.dialer.tls == nil { // the server is not reached over HTTP
			continue
		}
		expiries := map[string]time.Time{"client": s.dialer.tls.Source().Expiry(), "server": s.dialer.tls.PeerExpiry()}
		for role, expires := range expiries {
			if !expires.IsZero() { // zero: the server has no such certificate
				certificates = append(certificates, Certificate{Server: s.cfg.Name, Role: role, Expires: expires})
			}
		}
	}
	return certificates
}
