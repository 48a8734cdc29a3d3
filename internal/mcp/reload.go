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
// A server with an unchanged configuration keeps its session, its state and its calls. A server
// that was removed or changed gets no new calls; when the calls in flight have ended, its session
// ends. A new server is connected. If it replaces one of the same name at the same endpoint, it
// offers that one's tools until it has listed its own.
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
		c.drains.Go(s.drainAndClose)
	}
	return nil
}

// ReloadTLS reads the TLS files of all servers again. Sessions continue: their next requests use the
// new certificates. A file that cannot be used is logged, and the certificates in use stay.
func (c *Client) ReloadTLS() {
	c.reload.Lock()
	defer c.reload.Unlock()
	for _, source := range c.opts.tls.all {
		if err := source.Reload(); err != nil {
			c.log.Error("TLS files of an MCP server refused; those in use stay", "error", err, help.SecretFiles.Attr())
		}
	}
}

// applyServers makes servers the configuration, starts the new ones, and returns the replaced and
// removed ones. The caller holds c.reload.
func (c *Client) applyServers(servers []config.Server) (left []*server) {
	c.catalog.LoadPins(c.opts.Pins)
	c.expectToolNames(servers)

	before := map[string]*server{}
	for _, s := range c.allServers() {
		before[s.cfg.Name] = s
	}

	next := make([]*server, len(servers))
	order := make([]int, len(servers))
	byID := map[int]*server{}
	replaced := map[int]int{} // id of a new server → id of the server that it replaces
	for i, cfg := range servers {
		srv := before[cfg.Name]
		if srv == nil || !reflect.DeepEqual(srv.given, cfg) {
			c.lastID++
			next[i] = newServer(c, c.lastID, cfg)
			if srv != nil && next[i].isLive() && catalog.Endpoint(&srv.cfg) == catalog.Endpoint(&cfg) {
				replaced[c.lastID] = srv.id
			}
			if srv != nil {
				left = append(left, srv)
			}
			byID[c.lastID] = next[i]
		} else {
			next[i] = srv
		}
		delete(before, cfg.Name)
		order[i] = next[i].id
	}

	for _, s := range before {
		left = append(left, s)
	}

	// Set the catalog first: a call whose server is being removed looks its tool up again.
	configs := map[int]*config.Server{}
	for _, s := range next {
		configs[s.id] = &s.cfg
	}

	c.catalog.SetServers(order, replaced, func(id int) *config.Server { return configs[id] })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.servers = next
	c.startServersLocked(byID)
	return left
}

// startServersLocked starts the supervisors of new servers. Tools then waits for them.
func (c *Client) startServersLocked(added map[int]*server) {
	c.untried++ // keep allTried open until all have been started
	if c.allTried == nil || isClosed(c.allTried) {
		c.allTried = make(chan struct{})
	}
	c.waitUntil = time.Now().Add(max(session.HandshakeTimeout, c.opts.StartWait))
	for _, s := range added {
		if s.isLive() {
			c.untried++
			go s.superviseLoop()
		}
	}
	c.untried--
	c.signalTriedLocked()
}
