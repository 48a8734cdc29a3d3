package mcp

import (
	"fmt"
	"reflect"
	"time"

	"answerd/internal/help"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
)

// Reload replaces the configuration with servers, in that order, and reads the file of accepted
// tool definitions again. It does not wait for any server. If the configuration is not valid,
// Reload returns the error and changes nothing.
//
// A server with an unchanged configuration keeps its session, its state and its calls. A server that was removed or
// changed gets no new calls; when the calls in flight have ended, its session ends. A new server is connected. If it
// replaces a server of the same name at the same endpoint, it offers the tools of the replaced server until it has
// listed its own.
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
	if err := c.opts.tls.load(servers); err != nil {
		return err
	}
	for _, s := range c.applyServers(servers) {
		c.removals.Go(s.drainAndClose)
	}
	return nil
}

// ReloadTLS reads the TLS files of all servers again. Sessions continue, and their next requests use the new
// certificates. If a file cannot be used, ReloadTLS logs that and the server keeps its present certificates.
func (c *Client) ReloadTLS() {
	c.reload.Lock()
	defer c.reload.Unlock()
	for _, source := range c.opts.tls.byFiles {
		if err := source.Reload(); err != nil {
			c.log.Error("TLS files of an MCP server refused; those in use stay", "error", err, help.SecretFiles.Attr())
		}
	}
}

// applyServers makes servers the configuration, and starts those that are new or have changed. It returns the servers
// that were removed or replaced, which the caller must drain. It reads the accepted definitions and the stored tool
// names, but waits for no server. The caller holds c.reload and has checked servers.
func (c *Client) applyServers(servers []config.Server) (removed []*server) {
	c.catalog.LoadPins(c.opts.Pins)
	c.expectToolNames(servers)

	existing := map[string]*server{} // by name: the present servers, without those that stay unchanged
	for _, s := range c.allServers() {
		existing[s.cfg.Name] = s
	}

	next := make([]*server, 0, len(servers))
	var added []*server
	replacements := map[int]int{} // id of a new server → id of the server that it replaces
	for _, cfg := range servers {
		present := existing[cfg.Name]
		if present != nil && reflect.DeepEqual(present.configured, cfg) {
			next = append(next, present)
			delete(existing, cfg.Name)
			continue
		}
		c.lastID++
		s := newServer(c, c.lastID, cfg)
		next = append(next, s)
		added = append(added, s)
		if present != nil && s.isLive() && catalog.Endpoint(&present.cfg) == catalog.Endpoint(&cfg) {
			replacements[s.id] = present.id
		}
	}
	for _, s := range existing {
		removed = append(removed, s)
	}
	order := make([]int, 0, len(next))
	configs := map[int]*config.Server{}
	for _, s := range next {
		order = append(order, s.id)
		configs[s.id] = &s.cfg
	}

	// Set the catalog before the caller drains the removed servers: their waiting calls then look their tools up
	// again.
	c.catalog.SetServers(order, replacements, func(id int) *config.Server { return configs[id] })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.servers = next
	c.startServersLocked(added)
	return removed
}

// startServersLocked starts the supervisors of the enabled ones of added, and makes Tools wait for their first
// attempts to connect.
func (c *Client) startServersLocked(added []*server) {
	c.untriedServers++ // so that allTried is not closed before all have been started
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
