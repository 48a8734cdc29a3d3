package mcp

import (
	"fmt"
	"reflect"
	"time"

	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
)

// Reload makes servers the configuration, in that order, and reads the accepted
// definitions again. It does not wait for any server. If the configuration is no good
// it says why, and nothing changes.
//
// A server whose configuration is as before keeps its session, its state and its
// calls. One that is gone, or configured otherwise, gets no new calls; those that were
// sent to it end as they would have, then its session does. A new one is connected; if
// it is an earlier one configured otherwise, at the same place, it offers that one's
// tools until it has listed its own.
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
	for _, s := range c.applyServers(servers) {
		c.drains.Go(s.drainAndClose)
	}
	return nil
}

// applyServers makes servers the configuration, and returns those that are in it no more. Its
// caller holds reload.
func (c *Client) applyServers(servers []config.Server) (left []*server) {
	c.catalog.LoadPins(c.opts.Pins)
	before := map[string]*server{}
	for _, s := range c.allServers() {
		before[s.cfg.Name] = s
	}
	next := make([]*server, len(servers))
	order := make([]int, len(servers))
	byID := map[int]*server{}
	heirs := map[int]int{} // the new server's id to that of the one it stands for
	for i, cfg := range servers {
		s := before[cfg.Name]
		if s == nil || !reflect.DeepEqual(s.given, cfg) {
			c.lastID++
			next[i] = newServer(c, c.lastID, cfg)
			if s != nil && next[i].isLive() && catalog.Endpoint(&s.cfg) == catalog.Endpoint(&cfg) {
				heirs[c.lastID] = s.id
			}
			if s != nil {
				left = append(left, s)
			}
			byID[c.lastID] = next[i]
		} else {
			next[i] = s
		}
		delete(before, cfg.Name)
		order[i] = next[i].id
	}
	for _, s := range before {
		left = append(left, s)
	}
	// The names first: a call that finds its server leaving looks its tool up again.
	c.catalog.SetServers(order, heirs, func(id int) *config.Server { return &byID[id].cfg })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.servers = next
	c.startServersLocked(byID)
	return left
}

// startServersLocked starts the supervisors of new servers. Tools then waits for them.
func (c *Client) startServersLocked(added map[int]*server) {
	c.untried++ // so that none of them ends the wait for the others
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

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
