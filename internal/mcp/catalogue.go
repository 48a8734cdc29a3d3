package mcp

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
)

// maxHeld bounds the names that are remembered beyond the tools that there are.
const maxHeld = 8192

// ref is a tool's identity.
type ref struct{ server, original string }

// binding is what a name stands for.
type binding struct {
	Tool
	server int // index of the server
	hidden bool
}

// entry is one server's latest list.
type entry struct {
	cfg   *ServerConfig
	tools []Tool
}

// catalogue is the tools of all servers under unique names.
//
// Which tool gets a name depends on the configuration's order and the lists alone,
// not on which server answered first. But a name that was once offered stays with
// its tool for as long as the process lives: when an earlier server comes up late, a
// run that is under way must not find another tool under a name that it was given.
type catalogue struct {
	log *slog.Logger

	mu      sync.Mutex // protects what follows
	entries map[int]entry
	held    map[string]ref // names that were offered
	byName  map[string]binding
	offered []Tool // shared read-only
	stale   bool   // entries changed since byName and offered were made
}

func newCatalogue(log *slog.Logger) *catalogue {
	return &catalogue{log: log, entries: map[int]entry{}, held: map[string]ref{}, stale: true}
}

// set replaces the list of the server with that index, leaves out what its
// configuration does, and returns how many tools remain.
func (c *catalogue) set(index int, cfg *ServerConfig, tools []Tool) int {
	// The filter comes before names are given: a tool that is not offered must not
	// take a name from one that is.
	kept := slices.DeleteFunc(tools, func(t Tool) bool { return !allowed(cfg, t.Original) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries[index] = entry{cfg, kept}
	c.stale = true
	return len(kept)
}

// allowed applies a server's allow and deny lists to a tool's own name and to the
// names that it may be offered under.
func allowed(cfg *ServerConfig, original string) bool {
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
		c.held[name] = ref{b.Server, b.Original}
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
	for _, index := range slices.Sorted(maps.Keys(c.entries)) {
		e := c.entries[index]
		n := namer{cfg: e.cfg, taken: c.takenLocked}
		var own []Tool
		for _, t := range n.inOrder(e.tools) {
			name, clash := n.name(t.Original)
			if clash != "" && c.held[name] != (ref{t.Server, t.Original}) { // said once
				c.log.Warn("MCP tool renamed", "mcp_server", t.Server, "tool", printable(t.Original, 80),
					"name", name, "reason", clash)
			}
			t.Name = name
			c.byName[name] = binding{Tool: t, server: index, hidden: e.cfg.Hidden}
			if !e.cfg.Hidden {
				own = append(own, t)
			}
		}
		slices.SortFunc(own, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
		c.offered = append(c.offered, own...)
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
