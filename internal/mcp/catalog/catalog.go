// Package catalog has the tools of all MCP servers under unique names, without those that the
// configuration filters out or whose pinned definition has changed.
//
//	c := catalog.New(logger)
//	c.LoadPins("mcp.pins.json")
//	c.SetServers([]int{1}, nil, nil)  // ids, in the order of the configuration
//	c.SetTools(1, &server, tools)     // as the server listed them
//	for _, tool := range c.Offered() { // to the model
//		offer(tool.Name, tool.InputSchema)
//	}
//	tool, ok := c.Resolve("crm_get_customer") // a name that the model wrote
//
// Which tool gets a name depends on the configuration's order and the lists alone, not on which
// server answered first; a name that was offered stays with its tool. No method blocks for longer
// than it takes to compile and name the tools of one server. A Catalog may be used concurrently.
package catalog

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/wire"
)

// maxReservedNames bounds the names that are remembered beyond the tools that there are.
const maxReservedNames = 8192

// toolID is a tool's identity.
type toolID struct{ server, original string }

// Resolved is what a name stands for.
type Resolved struct {
	Tool
	ServerID int    // id of the server
	Disabled string // why it cannot be called, fit for the caller; "": it can
}

// serverEntry is one server's latest list.
type serverEntry struct {
	cfg     *config.Server
	listed  []Tool
	digests map[string]string // of their definitions; nil where they are not pinned
	usable  []Tool            // of these, what may be called
	blocked []blockedTool     // and what the operator has not accepted
}

// Catalog is the tools of all servers under unique names.
//
// Which tool gets a name depends on the configuration's order and the lists alone,
// not on which server answered first. But a name that was once offered stays with
// its tool for as long as the process lives: when an earlier server comes up late, or
// leaves the configuration, a run that is under way must not find another tool under
// a name that it was given.
type Catalog struct {
	log *slog.Logger

	mu            sync.Mutex // protects what follows
	order         []int      // the servers' ids in the configuration's order
	entries       map[int]serverEntry
	pins          *acceptedTools
	reservedNames map[string]toolID // names that were offered
	byName        map[string]Resolved
	offered       []Tool // shared read-only
	isStale       bool   // something changed since byName and offered were made
}

// LoadPins reads the accepted definitions in the file at path and applies them.
func (c *Catalog) LoadPins(path string) { c.setPins(readPinsFile(path)) }

func New(log *slog.Logger) *Catalog {
	return &Catalog{log: log, entries: map[int]serverEntry{}, pins: &acceptedTools{}, reservedNames: map[string]toolID{}, isStale: true}
}

// SetTools replaces the list of the server with that id, leaves out what its
// configuration does, and returns how many tools remain. A server that has left the
// configuration has none.
func (c *Catalog) SetTools(id int, cfg *config.Server, tools []Tool) int {
	c.compileSchemas(id, tools)
	e := serverEntry{cfg: cfg, listed: tools}
	if cfg.Pin {
		// Before the lock: these are some 60 MiB at worst, and calls wait for the lock.
		e.digests = digestsOf(cfg, tools)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.order, id) {
		return 0
	}
	return c.storeLocked(id, e)
}

// storeLocked sifts e and puts it in its place.
func (c *Catalog) storeLocked(id int, e serverEntry) int {
	// The filters come before names are given: a tool that is not offered must not
	// take a name from one that is.
	e.usable = slices.DeleteFunc(slices.Clone(e.listed), func(t Tool) bool {
		switch {
		case t.ReadsResources: // our own; an heir may offer no resources any more
			return len(e.cfg.Resources) == 0
		case t.SignsIn:
			return e.cfg.Auth != config.AuthAuthorizationCode
		}
		return !isAllowed(e.cfg, t.Original)
	})
	e.blocked = nil
	if e.cfg.Pin {
		e.usable, e.blocked = c.pins.split(e.cfg, e.usable, e.digests)
		c.logBlocked(e.cfg.Name, c.entries[id].blocked, e.blocked)
	}
	c.entries[id] = e
	c.isStale = true
	return len(e.usable)
}

// maxBlockedLogged bounds the lines that one list of tools adds to the log.
const maxBlockedLogged = 50

// logBlocked writes a line about each tool that is disabled now and wasn't for that reason
// before, and about each that no longer is.
func (c *Catalog) logBlocked(server string, before, now []blockedTool) {
	lines := 0
	for _, b := range now {
		if slices.ContainsFunc(before, b.sameAs) {
			continue
		}
		if lines++; lines <= maxBlockedLogged {
			c.log.Warn("MCP tool disabled", "mcp_server", server, "tool", wire.Printable(b.Original, 80),
				"reason", b.reason, "sha256", b.digest, "accepted_sha256", b.accepted)
		}
	}
	if lines > maxBlockedLogged {
		c.log.Warn("MCP tools disabled", "mcp_server", server, "tools", lines)
	}
	for _, b := range before {
		if !slices.ContainsFunc(now, func(n blockedTool) bool { return n.Original == b.Original }) {
			c.log.Info("MCP tool no longer disabled", "mcp_server", server, "tool", wire.Printable(b.Original, 80))
		}
	}
}

// SetServers sets which servers there are, by id, in the configuration's order. A server
// that stands for an earlier one (heirs: its id to the earlier one's) begins with that
// one's list, under its own configuration.
func (c *Catalog) SetServers(order []int, heirs map[int]int, cfg func(id int) *config.Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.order = order
	for id, before := range heirs {
		if e, ok := c.entries[before]; ok {
			e.cfg = cfg(id)
			if e.cfg.Pin && e.digests == nil {
				e.digests = digestsOf(e.cfg, e.listed)
			}
			c.storeLocked(id, e)
		}
	}
	maps.DeleteFunc(c.entries, func(id int, _ serverEntry) bool { return !slices.Contains(order, id) })
	c.isStale = true
}

// setPins sets the accepted definitions.
func (c *Catalog) setPins(p *acceptedTools) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pins = p
	for id, e := range c.entries {
		c.storeLocked(id, e)
	}
}

// Counts is how many tools of a server can be used, and the names of those that the
// operator has not accepted, sorted.
func (c *Catalog) Counts(id int) (int, []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[id]
	var disabled []string
	for _, b := range e.blocked {
		disabled = append(disabled, b.Original)
	}
	slices.Sort(disabled)
	return len(e.usable), disabled
}

// pinnedEntries is, by server, the tools of the pinned servers that have been listed.
func (c *Catalog) pinnedEntries() []serverEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []serverEntry
	for _, id := range c.order {
		if e, ok := c.entries[id]; ok && e.cfg.Pin {
			out = append(out, e)
		}
	}
	return out
}

// isAllowed applies a server's allow and deny lists to a tool's own name and to the
// names that it may be offered under.
func isAllowed(cfg *config.Server, original string) bool {
	names := []string{original, prefixedName(cfg, original), nameWithServer(cfg, original)}
	if MatchAny(cfg.DenyTools, names...) {
		return false
	}
	return len(cfg.AllowTools) == 0 || MatchAny(cfg.AllowTools, names...)
}

// Offered is the tools for a model. Their names are held from now on.
func (c *Catalog) Offered() []Tool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rebuildLocked()
	if len(c.reservedNames) > maxReservedNames {
		c.reservedNames = map[string]toolID{} // a server that keeps inventing tools
	}
	for name, b := range c.byName {
		if b.Disabled == "" {
			c.reservedNames[name] = toolID{b.Server, b.Original}
		}
	}
	return c.offered
}

// Resolve is what name stands for.
func (c *Catalog) Resolve(name string) (Resolved, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rebuildLocked()
	b, ok := c.byName[name]
	return b, ok
}

// rebuildLocked names all tools again, if a list has changed since. The slice that
// offer gave out before stays as it is: its readers have it without a lock.
func (c *Catalog) rebuildLocked() {
	if !c.isStale {
		return
	}
	c.isStale = false
	c.byName = map[string]Resolved{}
	c.offered = []Tool{} // a list in JSON, even when it is empty
	for _, id := range c.order {
		e, ok := c.entries[id]
		if !ok {
			continue
		}
		n := toolNamer{cfg: e.cfg, isTaken: c.isTakenLocked}
		var own []Tool
		for _, t := range n.sortTools(e.usable) {
			name, clash := n.nameTool(t.Original)
			if clash != "" && c.reservedNames[name] != (toolID{t.Server, t.Original}) { // said once
				c.log.Warn("MCP tool renamed", "mcp_server", t.Server, "tool", wire.Printable(t.Original, 80),
					"name", name, "reason", clash)
			}
			t.Name, t.cfg, t.lazyVersion = name, e.cfg, &lazyDigest{}
			t.NeedsApproval = needsApproval(e.cfg, t)
			c.byName[name] = Resolved{Tool: t, ServerID: id}
			if !e.cfg.Hidden {
				own = append(own, t)
			}
		}
		slices.SortFunc(own, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
		c.offered = append(c.offered, own...)
	}
	c.nameBlockedLocked()
}

// nameBlockedLocked names the tools that cannot be called, so that a call learns why.
// They come last: they must not take a name from one that can.
func (c *Catalog) nameBlockedLocked() {
	barred := map[toolID]Resolved{}
	for _, id := range c.order {
		e := c.entries[id]
		for _, b := range e.blocked {
			me := toolID{b.Server, b.Original}
			barred[me] = Resolved{Tool: b.Tool, ServerID: id, Disabled: b.reason}
			for _, name := range []string{prefixedName(e.cfg, b.Original), nameWithServer(e.cfg, b.Original)} {
				if !c.isTakenLocked(name, me) {
					c.byName[name] = barred[me]
					break
				}
			}
		}
	}
	for name, r := range c.reservedNames { // under which a run may still know it
		if b, ok := barred[r]; ok && !c.isTakenLocked(name, r) {
			c.byName[name] = b
		}
	}
}

// isTakenLocked reports whether name belongs to another tool.
func (c *Catalog) isTakenLocked(name string, by toolID) bool {
	if b, ok := c.byName[name]; ok {
		return toolID{b.Server, b.Original} != by
	}
	r, ok := c.reservedNames[name]
	return ok && r != by
}
