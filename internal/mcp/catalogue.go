package mcp

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/wire"
)

// maxHeld bounds the names that are remembered beyond the tools that there are.
const maxHeld = 8192

// ref is a tool's identity.
type ref struct{ server, original string }

// binding is what a name stands for.
type binding struct {
	Tool
	server   int // id of the server
	hidden   bool
	disabled string // why it cannot be called, fit for the caller; "": it can
}

// entry is one server's latest list.
type entry struct {
	cfg     *config.Server
	listed  []Tool
	digests map[string]string // of their definitions; nil where they are not pinned
	kept    []Tool            // of these, what may be called
	barred  []barred          // and what the operator has not accepted
}

// catalogue is the tools of all servers under unique names.
//
// Which tool gets a name depends on the configuration's order and the lists alone,
// not on which server answered first. But a name that was once offered stays with
// its tool for as long as the process lives: when an earlier server comes up late, or
// leaves the configuration, a run that is under way must not find another tool under
// a name that it was given.
type catalogue struct {
	log *slog.Logger

	mu      sync.Mutex // protects what follows
	order   []int      // the servers' ids in the configuration's order
	entries map[int]entry
	pins    *pins
	held    map[string]ref // names that were offered
	byName  map[string]binding
	offered []Tool // shared read-only
	stale   bool   // something changed since byName and offered were made
}

func newCatalogue(log *slog.Logger) *catalogue {
	return &catalogue{log: log, entries: map[int]entry{}, pins: &pins{}, held: map[string]ref{}, stale: true}
}

// set replaces the list of the server with that id, leaves out what its
// configuration does, and returns how many tools remain. A server that has left the
// configuration has none.
func (c *catalogue) set(id int, cfg *config.Server, tools []Tool) int {
	c.compile(id, tools)
	e := entry{cfg: cfg, listed: tools}
	if cfg.Pin {
		// Before the lock: these are some 60 MiB at worst, and calls wait for the lock.
		e.digests = digests(cfg, tools)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.order, id) {
		return 0
	}
	return c.setLocked(id, e)
}

// setLocked sifts e and puts it in its place.
func (c *catalogue) setLocked(id int, e entry) int {
	// The filters come before names are given: a tool that is not offered must not
	// take a name from one that is.
	e.kept = slices.DeleteFunc(slices.Clone(e.listed), func(t Tool) bool {
		switch {
		case t.reads: // our own; an heir may offer no resources any more
			return len(e.cfg.Resources) == 0
		case t.signsIn:
			return e.cfg.Auth != config.AuthAuthorizationCode
		}
		return !allowed(e.cfg, t.Original)
	})
	e.barred = nil
	if e.cfg.Pin {
		e.kept, e.barred = c.pins.sift(e.cfg, e.kept, e.digests)
		c.audit(e.cfg.Name, c.entries[id].barred, e.barred)
	}
	c.entries[id] = e
	c.stale = true
	return len(e.kept)
}

// maxAudit bounds the lines that one list of tools adds to the log.
const maxAudit = 50

// audit writes a line about each tool that is disabled now and wasn't for that reason
// before, and about each that no longer is.
func (c *catalogue) audit(server string, before, now []barred) {
	lines := 0
	for _, b := range now {
		if slices.ContainsFunc(before, b.same) {
			continue
		}
		if lines++; lines <= maxAudit {
			c.log.Warn("MCP tool disabled", "mcp_server", server, "tool", wire.Printable(b.Original, 80),
				"reason", b.why, "sha256", b.digest, "accepted_sha256", b.accepted)
		}
	}
	if lines > maxAudit {
		c.log.Warn("MCP tools disabled", "mcp_server", server, "tools", lines)
	}
	for _, b := range before {
		if !slices.ContainsFunc(now, func(n barred) bool { return n.Original == b.Original }) {
			c.log.Info("MCP tool no longer disabled", "mcp_server", server, "tool", wire.Printable(b.Original, 80))
		}
	}
}

// arrange sets which servers there are, by id, in the configuration's order. A server
// that stands for an earlier one (heirs: its id to the earlier one's) begins with that
// one's list, under its own configuration.
func (c *catalogue) arrange(order []int, heirs map[int]int, cfg func(id int) *config.Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.order = order
	for id, before := range heirs {
		if e, ok := c.entries[before]; ok {
			e.cfg = cfg(id)
			if e.cfg.Pin && e.digests == nil {
				e.digests = digests(e.cfg, e.listed)
			}
			c.setLocked(id, e)
		}
	}
	maps.DeleteFunc(c.entries, func(id int, _ entry) bool { return !slices.Contains(order, id) })
	c.stale = true
}

// pin sets the accepted definitions.
func (c *catalogue) pin(p *pins) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pins = p
	for id, e := range c.entries {
		c.setLocked(id, e)
	}
}

// count is how many tools of a server can be used, and the names of those that the
// operator has not accepted, sorted.
func (c *catalogue) count(id int) (int, []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[id]
	var disabled []string
	for _, b := range e.barred {
		disabled = append(disabled, b.Original)
	}
	slices.Sort(disabled)
	return len(e.kept), disabled
}

// pinned is, by server, the tools of the pinned servers that have been listed.
func (c *catalogue) pinned() []entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []entry
	for _, id := range c.order {
		if e, ok := c.entries[id]; ok && e.cfg.Pin {
			out = append(out, e)
		}
	}
	return out
}

// allowed applies a server's allow and deny lists to a tool's own name and to the
// names that it may be offered under.
func allowed(cfg *config.Server, original string) bool {
	names := []string{original, plainName(cfg, original), serverName(cfg, original)}
	if matches(cfg.DenyTools, names...) {
		return false
	}
	return len(cfg.AllowTools) == 0 || matches(cfg.AllowTools, names...)
}

// offer is the tools for a model. Their names are held from now on.
func (c *catalogue) offer() []Tool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rebuildLocked()
	if len(c.held) > maxHeld {
		c.held = map[string]ref{} // a server that keeps inventing tools
	}
	for name, b := range c.byName {
		if b.disabled == "" {
			c.held[name] = ref{b.Server, b.Original}
		}
	}
	return c.offered
}

// find is what name stands for.
func (c *catalogue) find(name string) (binding, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rebuildLocked()
	b, ok := c.byName[name]
	return b, ok
}

// rebuildLocked names all tools again, if a list has changed since. The slice that
// offer gave out before stays as it is: its readers have it without a lock.
func (c *catalogue) rebuildLocked() {
	if !c.stale {
		return
	}
	c.stale = false
	c.byName = map[string]binding{}
	c.offered = []Tool{} // a list in JSON, even when it is empty
	for _, id := range c.order {
		e, ok := c.entries[id]
		if !ok {
			continue
		}
		n := namer{cfg: e.cfg, taken: c.takenLocked}
		var own []Tool
		for _, t := range n.inOrder(e.kept) {
			name, clash := n.name(t.Original)
			if clash != "" && c.held[name] != (ref{t.Server, t.Original}) { // said once
				c.log.Warn("MCP tool renamed", "mcp_server", t.Server, "tool", wire.Printable(t.Original, 80),
					"name", name, "reason", clash)
			}
			t.Name, t.cfg, t.version = name, e.cfg, &version{}
			t.NeedsApproval = needsApproval(e.cfg, t)
			c.byName[name] = binding{Tool: t, server: id, hidden: e.cfg.Hidden}
			if !e.cfg.Hidden {
				own = append(own, t)
			}
		}
		slices.SortFunc(own, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
		c.offered = append(c.offered, own...)
	}
	c.nameBarredLocked()
}

// nameBarredLocked names the tools that cannot be called, so that a call learns why.
// They come last: they must not take a name from one that can.
func (c *catalogue) nameBarredLocked() {
	barred := map[ref]binding{}
	for _, id := range c.order {
		e := c.entries[id]
		for _, b := range e.barred {
			me := ref{b.Server, b.Original}
			barred[me] = binding{Tool: b.Tool, server: id, disabled: b.why}
			for _, name := range []string{plainName(e.cfg, b.Original), serverName(e.cfg, b.Original)} {
				if !c.takenLocked(name, me) {
					c.byName[name] = barred[me]
					break
				}
			}
		}
	}
	for name, r := range c.held { // under which a run may still know it
		if b, ok := barred[r]; ok && !c.takenLocked(name, r) {
			c.byName[name] = b
		}
	}
}

// takenLocked reports whether name belongs to another tool.
func (c *catalogue) takenLocked(name string, by ref) bool {
	if b, ok := c.byName[name]; ok {
		return ref{b.Server, b.Original} != by
	}
	r, ok := c.held[name]
	return ok && r != by
}
