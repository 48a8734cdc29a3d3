package mcp

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"answerd/internal/help"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
)

// Reload replaces the configuration with servers, in that order, and reads the file of accepted tool definitions
// again. It does not wait for any server. If servers is not valid or a TLS file cannot be used, Reload returns an
// error and changes nothing. After Close, the error wraps transport.ErrClosed.
//
// A server with an unchanged configuration keeps its session, its state and its calls. A server that was removed or
// changed gets no new calls, and its session ends when its calls in flight have ended. New and changed servers are
// connected. If a server's configuration was changed but not its endpoint, the new server offers the tools of the old
// one until it has listed its own.
func (c *Client) Reload(servers []config.Server) error {
	if err := config.Check(servers, c.opts.Service != nil); err != nil {
		return err
	}
	if err := config.CheckRedirects(servers, c.opts.RedirectURL); err != nil {
		return err
	}
	c.reload.Lock()
	defer c.reload.Unlock()
	if c.closed {
		return fmt.Errorf("reload: %w", transport.ErrClosed)
	}
	if err := c.opts.tls.setServers(servers); err != nil {
		return err
	}
	for _, s := range c.applyServers(servers) {
		c.removals.Go(s.drainAndClose)
	}
	return nil
}

// ReloadTLS reads the TLS files of all servers again. Sessions continue, and their next requests use the new
// certificates. If a file cannot be used, ReloadTLS logs that, and the servers that use it keep their certificates.
func (c *Client) ReloadTLS() {
	c.reload.Lock()
	defer c.reload.Unlock()
	for _, source := range c.opts.tls.byFiles {
		if err := source.Reload(); err != nil {
			c.log.Error("TLS files of an MCP server refused; those in use stay", "error", err, help.SecretFiles.Attr())
		}
	}
}

// applyServers makes servers the configuration and starts those that are new or have changed. It returns the servers
// that were removed or replaced, which the caller must then drain. It reads the accepted definitions and the stored tool
// names, but waits for no server. c.reload must be held, and servers must be valid.
func (c *Client) applyServers(servers []config.Server) (removed []*server) {
	c.catalog.LoadPins(c.opts.Pins)
	c.expectToolNames(servers)

	unmatched := map[string]*server{} // the present servers by name, without those that are kept
	for _, s := range c.allServers() {
		unmatched[s.cfg.Name] = s
	}
	all := make([]*server, 0, len(servers))
	var added []*server
	replacements := map[int]int{} // id of a new server → id of the server that it replaces
	for _, cfg := range servers {
		old := unmatched[cfg.Name]
		if old != nil && reflect.DeepEqual(old.configured, cfg) {
			all = append(all, old)
			delete(unmatched, cfg.Name)
			continue
		}
		c.lastID++
		s := newServer(c, c.lastID, cfg)
		all = append(all, s)
		added = append(added, s)
		hasSameEndpoint := old != nil && catalog.Endpoint(&old.cfg) == catalog.Endpoint(&cfg)
		if hasSameEndpoint && s.isLive() {
			replacements[s.id] = old.id
		}
	}

	// Set the catalog before the removed servers are drained: calls that wait for one of them then look their tools up
	// again.
	order := make([]int, 0, len(all))
	configs := map[int]*config.Server{}
	for _, s := range all {
		order = append(order, s.id)
		configs[s.id] = &s.cfg
	}
	c.catalog.SetServers(order, replacements, configs)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.servers = all
	c.startServersLocked(added)
	return slices.Collect(maps.Values(unmatched))
}

// startServersLocked starts the supervisors of the live servers in added, and makes Tools wait for their first
// attempts to connect. c.mu must be held.
func (c *Client) startServersLocked(added []*server) {
	c.untriedServers++ // keeps allTried open until all supervisors are started
	if c.allTried == nil || transport.IsClosed(c.allTried) {
		c.allTried = make(chan struct{})
	}
	c.waitUntil = time.Now().Add(max(session.HandshakeTimeout, c.opts.StartWait))
	for _, s := range added {
		if s.isLive() {
			c.untriedServers++
			go s.superviseLoop()
		}
	}
	c.untriedServers--
	c.signalTriedLocked()
}
