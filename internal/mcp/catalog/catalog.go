// Package catalog holds the tools of all MCP servers under unique names. It leaves out tools that the
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
// Which tool gets a name depends only on the configuration's order and the lists, and not on which
// server answered first. No method blocks for longer than it takes to compile and name the tools of
// one server. A Catalog may be used concurrently.
package catalog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"answerd/internal/help"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/schema"
	"answerd/internal/mcp/wire"
)

// maxReservedNames bounds the names that are reserved for tools that were offered to a model.
const maxReservedNames = 8192

// Resolved is a tool that was found by its name, with its server.
type Resolved struct {
	Tool
	ServerID int    // as in SetServers
	Disabled string // the reason why it cannot be called, for the caller; "" if it can be
}

// serverEntry has the tools of the server's latest list.
type serverEntry struct {
	cfg     *config.Server
	listed  []Tool
	digests map[string]string // of the tools' definitions, by their own names; nil without Pin
	usable  []Tool            // the listed tools that may be called
	blocked []blockedTool     // the listed tools whose definitions the operator has not accepted
}

// isSignInAlone reports whether nobody has signed in to the server yet, so that its own tools are unknown.
func (e *serverEntry) isSignInAlone() bool { return len(e.listed) == 1 && e.listed[0].SignsIn }

// Catalog holds the tools of all servers under unique names. Create it with New.
//
// Which tool gets a name depends only on the configuration's order and the lists, so that all replicas
// use the same names. A name that was offered once is never given to a tool of a later server, or to
// another tool of the same server, while the process runs: a run would call another tool than the
// model saw. A tool of an earlier server that connects late does get the name. NameOf then leads a run
// to the tool that it was offered.
type Catalog struct {
	log *slog.Logger

	mu            sync.Mutex             // protects the fields below
	order         []int                  // the servers' ids, in the configuration's order
	configs       map[int]*config.Server // of the servers in order
	entries       map[int]serverEntry    // of the servers that were listed
	pins          *acceptedTools
	expected      map[string][]string // by server: the tools that it listed in an earlier process
	reservedNames map[string]toolID   // by the name that was offered
	byName        map[string]Resolved // all names, including aliases and those of blocked tools
	offered       []Tool              // callers read it without the lock: replaced, never changed
	isStale       bool                // byName and offered must be rebuilt
	isReserved    bool                // the names of offered are reserved
}

// LoadPins reads the accepted definitions from the file at path and applies them.
func (c *Catalog) LoadPins(path string) { c.setPins(readPinsFile(path)) }

// New returns a catalog without servers.
func New(log *slog.Logger) *Catalog {
	return &Catalog{
		log:           log,
		entries:       map[int]serverEntry{},
		pins:          &acceptedTools{},
		expected:      map[string][]string{},
		reservedNames: map[string]toolID{},
		isStale:       true,
	}
}

// SetTools replaces the tools of the server with that id. It returns how many can be called: those
// that the configuration allows and, with Pin, whose definitions are accepted. It ignores the
// tools of a removed server.
func (c *Catalog) SetTools(id int, cfg *config.Server, tools []Tool) int {
	c.compileSchemas(id, tools)
	entry := serverEntry{cfg: cfg, listed: tools}
	if cfg.Pin {
		// Compute digests before locking: definitions have up to 60 MiB, and calls wait for the lock.
		entry.digests = digestsOf(cfg, tools)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.order, id) {
		return 0
	}
	return c.storeLocked(id, entry)
}

// storeLocked filters the tools of entry, stores it, and returns the number of tools that can be
// called.
func (c *Catalog) storeLocked(id int, entry serverEntry) int {
	// Filter before naming: a tool that is not offered must not take the name of one that is.
	entry.usable = slices.DeleteFunc(slices.Clone(entry.listed), func(t Tool) bool {
		switch {
		case t.ReadsResources: // a reconfigured server may offer no resources any more
			return len(entry.cfg.Resources) == 0
		case t.SignsIn:
			return entry.cfg.Auth != config.AuthAuthorizationCode
		}
		return !isAllowed(entry.cfg, t.Original)
	})
	entry.blocked = nil
	if entry.cfg.Pin {
		entry.usable, entry.blocked = c.pins.splitAccepted(entry.cfg, entry.usable, entry.digests)
		c.logBlocked(entry.cfg.Name, c.entries[id].blocked, entry.blocked)
	}
	c.entries[id] = entry
	c.isStale = true
	return len(entry.usable)
}

// maxBlockedLogged bounds the log lines for one list of tools.
const maxBlockedLogged = 50

// logBlocked logs the tools whose state has changed: those that are blocked for a new reason, and
// those that are no longer blocked.
func (c *Catalog) logBlocked(server string, before, now []blockedTool) {
	lines := 0
	for _, b := range now {
		if slices.ContainsFunc(before, b.sameAs) {
			continue
		}
		lines++
		if lines <= maxBlockedLogged {
			c.log.Warn("MCP tool disabled", "mcp_server", server, "tool", wire.Printable(b.Original, 80),
				"reason", b.reason, "sha256", b.digest, "accepted_sha256", b.accepted, help.Pins.Attr())
		}
	}
	if lines > maxBlockedLogged {
		c.log.Warn("MCP tools disabled", "mcp_server", server, "tools", lines, help.Pins.Attr())
	}
	for _, b := range before {
		if !slices.ContainsFunc(now, func(n blockedTool) bool { return n.Original == b.Original }) {
			c.log.Info("MCP tool no longer disabled", "mcp_server", server, "tool", wire.Printable(b.Original, 80))
		}
	}
}

// SetServers sets the ids of the configured servers, in the configuration's order. replacements
// maps the new id of a reconfigured server to the id that it had before. Such a server keeps the
// tools of its latest list, filtered by its new configuration, until it is listed again. cfg
// returns the configuration of each server.
func (c *Catalog) SetServers(order []int, replacements map[int]int, cfg func(id int) *config.Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.order, c.configs = order, map[int]*config.Server{}
	for _, id := range order {
		if cfg != nil {
			c.configs[id] = cfg(id)
		}
	}
	for id, before := range replacements {
		if e, ok := c.entries[before]; ok {
			e.cfg = c.configs[id]
			if e.cfg.Pin && e.digests == nil {
				e.digests = digestsOf(e.cfg, e.listed)
			}
			c.storeLocked(id, e)
		}
	}
	maps.DeleteFunc(c.entries, func(id int, _ serverEntry) bool { return !slices.Contains(order, id) })
	c.isStale = true
}

// ExpectTools makes the names of the tools that a server listed in an earlier process stay with it until it
// is listed. originals are their own names.
func (c *Catalog) ExpectTools(server string, originals []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expected[server] = originals
	c.isStale = true
}

// IsExpected reports whether ExpectTools was called for a server.
func (c *Catalog) IsExpected(server string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.expected[server]
	return ok
}

// setPins sets the accepted definitions and filters all tools again.
func (c *Catalog) setPins(p *acceptedTools) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pins = p
	for id, e := range c.entries {
		c.storeLocked(id, e)
	}
}

// ToolCounts returns how many tools of a server can be called, and the sorted names of those whose
// definitions the operator has not accepted.
func (c *Catalog) ToolCounts(id int) (usable int, disabled []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[id]
	for _, b := range e.blocked {
		disabled = append(disabled, b.Original)
	}
	slices.Sort(disabled)
	return len(e.usable), disabled
}

// pinnedEntries returns the entries of the servers with Pin that have been listed.
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

// isAllowed reports whether a server's allow and deny lists permit calls of a tool. Their patterns
// are compared with the tool's own name and with the names under which it may be offered.
func isAllowed(cfg *config.Server, original string) bool {
	names := []string{original, prefixedName(cfg, original), nameWithServer(cfg, original)}
	if MatchAny(cfg.DenyTools, names...) {
		return false
	}
	return len(cfg.AllowTools) == 0 || MatchAny(cfg.AllowTools, names...)
}

// Offered returns the tools to show to a model, and reserves their names. The slice is shared and
// must not be changed.
func (c *Catalog) Offered() []Tool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rebuildLocked()
	if c.isReserved {
		return c.offered
	}
	c.isReserved = true
	if len(c.reservedNames) > maxReservedNames {
		c.reservedNames = map[string]toolID{} // a server keeps listing new tools, so start again
	}
	for name, tool := range c.byName {
		if tool.Disabled == "" && tool.Name == name { // not an alias
			c.reservedNames[name] = toolID{tool.Server, tool.Original}
		}
	}
	return c.offered
}

// Resolve returns the tool that has the name at this time.
func (c *Catalog) Resolve(name string) (Resolved, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rebuildLocked()
	b, ok := c.byName[name]
	return b, ok
}

// rebuildLocked names all tools again if a list has changed. It creates a new slice for Offered,
// because callers read the old one without the lock.
//
// Servers are named in the configuration's order. The names that a server without a list would
// take by its configuration are pending, and stay free for it. Blocked tools and aliases come
// last, so that they never take a name from a tool that can be called.
func (c *Catalog) rebuildLocked() {
	if !c.isStale {
		return
	}
	c.isStale, c.isReserved = false, false
	c.byName = map[string]Resolved{}
	c.offered = []Tool{} // not nil, so that JSON has an array

	pending := map[string]bool{}
	for _, id := range c.order {
		entry, ok := c.entries[id]
		if cfg := c.configs[id]; cfg != nil && !cfg.Disabled && (!ok || entry.isSignInAlone()) {
			maps.Copy(pending, c.namesBefore(cfg))
		}
		if !ok {
			continue
		}
		n := toolNamer{cfg: entry.cfg, isTaken: c.isTakenLocked, pending: pending}
		var own []Tool
		for _, tool := range n.sortTools(entry.usable) {
			name, clash := n.nameTool(tool.Original)
			if clash != "" && c.reservedNames[name] != (toolID{tool.Server, tool.Original}) { // log it once
				c.log.Warn("MCP tool renamed", "mcp_server", tool.Server, "tool", wire.Printable(tool.Original, 80),
					"name", name, "reason", clash, help.ToolLists.Attr())
			}
			tool.Name = name
			tool.cfg = entry.cfg
			tool.lazyVersion = &lazyDigest{}
			tool.NeedsApproval = needsApproval(entry.cfg, tool)
			c.byName[name] = Resolved{Tool: tool, ServerID: id}
			if !entry.cfg.Hidden {
				own = append(own, tool)
			}
		}
		slices.SortFunc(own, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
		c.offered = append(c.offered, own...)
	}

	c.nameBlockedLocked()
	c.addAliasesLocked()
}

// addAliasesLocked adds the alias <server>_<tool> for each tool, so that a name with the server
// works whatever other servers list.
func (c *Catalog) addAliasesLocked() {
	aliases := map[string]Resolved{}
	for _, b := range c.byName {
		if e, ok := c.entries[b.ServerID]; ok {
			if name := nameWithServer(e.cfg, b.Original); !c.isTakenLocked(name, toolID{b.Server, b.Original}) {
				aliases[name] = b
			}
		}
	}
	maps.Copy(c.byName, aliases)
}

// nameBlockedLocked names the blocked tools, so that a call of one is refused with the reason and
// not as an unknown tool.
func (c *Catalog) nameBlockedLocked() {
	blocked := map[toolID]Resolved{}
	for _, id := range c.order {
		e := c.entries[id]
		for _, b := range e.blocked {
			me := toolID{b.Server, b.Original}
			blocked[me] = Resolved{Tool: b.Tool, ServerID: id, Disabled: b.reason}
			for _, name := range []string{prefixedName(e.cfg, b.Original), nameWithServer(e.cfg, b.Original)} {
				if !c.isTakenLocked(name, me) {
					c.byName[name] = blocked[me]
					break
				}
			}
		}
	}
	for name, r := range c.reservedNames { // a run may still use the name that it was offered
		if b, ok := blocked[r]; ok && !c.isTakenLocked(name, r) {
			c.byName[name] = b
		}
	}
}

// NameOf returns the present name of the tool of a server that a run was offered under name. It
// may differ because other servers were listed since then, or because the run began on another
// replica. It returns "" if there is no such tool, or if that is uncertain. An empty server stands for any server.
func (c *Catalog) NameOf(server, name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rebuildLocked()
	b, ok := c.byName[name]
	isConfigured := func() bool {
		return slices.ContainsFunc(slices.Collect(maps.Values(c.configs)), func(cfg *config.Server) bool { return cfg.Name == server })
	}
	switch {
	case server == "", ok && b.Server == server:
		return name
	case !ok && !isConfigured():
		return name // the call fails with the reason that there is no such server
	}
	offered, known := c.reservedNames[name]
	known = known && offered.server == server
	var found []string
	for now, b := range c.byName {
		e, ok := c.entries[b.ServerID]
		isOther := known && b.Original != offered.original
		if !ok || isOther || b.Server != server || b.Name != now {
			continue
		}
		if slices.Contains(possibleNames(e.cfg, b.Original), name) {
			found = append(found, now)
		}
	}
	if len(found) != 1 { // of several tools, the run may have been offered another one
		return ""
	}
	return found[0]
}

// isTakenLocked reports whether another tool has the name, or has it reserved. A tool of a later
// server has no name reserved against a tool of an earlier one.
func (c *Catalog) isTakenLocked(name string, by toolID) bool {
	if b, ok := c.byName[name]; ok {
		return toolID{b.Server, b.Original} != by
	}
	r, ok := c.reservedNames[name]
	return ok && r != by && !c.isLaterLocked(r.server, by.server)
}

// isLaterLocked reports whether a server comes after another one in the configuration.
func (c *Catalog) isLaterLocked(server, than string) bool {
	passed := false
	for _, id := range c.order {
		e, ok := c.entries[id]
		if !ok {
			continue
		}
		if passed && e.cfg.Name == server {
			return true
		}
		passed = passed || e.cfg.Name == than
	}
	return false
}

// compileSchemas compiles the schemas of the tools of the server with that id. It reuses schemas
// that have not changed, because some servers are listed every minute. It runs without the lock,
// which calls wait for: compiling a schema takes about 50 µs, and a hundred times as long for a
// bad one of 64 KiB.
func (c *Catalog) compileSchemas(id int, tools []Tool) {
	c.mu.Lock()
	before := c.entries[id].listed // never written
	c.mu.Unlock()
	known := make(map[string]*Tool, len(before))
	for i := range before {
		known[before[i].Original] = &before[i]
	}
	for i := range tools {
		tool := &tools[i]
		old := known[tool.Original]
		if old != nil && bytes.Equal(old.InputSchema, tool.InputSchema) {
			tool.inputSchema, tool.Unchecked = old.inputSchema, old.Unchecked
		} else {
			tool.inputSchema, tool.Unchecked = c.compileSchema(tool, "input", tool.InputSchema)
		}
		switch {
		case tool.OutputSchema == nil:
		case old != nil && bytes.Equal(old.OutputSchema, tool.OutputSchema):
			tool.outputSchema = old.outputSchema
		default:
			tool.outputSchema, _ = c.compileSchema(tool, "output", tool.OutputSchema)
		}
	}
}

// compileSchema returns a compiled schema, or nil and the reason why it cannot be used, which it
// also logs. The tool stays usable, because the server checks the arguments too.
func (c *Catalog) compileSchema(t *Tool, which string, raw json.RawMessage) (*schema.Schema, string) {
	s, err := schema.Compile(raw)
	if err == nil {
		return s, ""
	}
	reason := "the " + which + " schema cannot be used: " + err.Error()
	c.log.Warn("MCP tool not checked", "mcp_server", t.Server, "tool", wire.Printable(t.Original, 80), "reason", reason, help.ToolSchemas.Attr())
	return nil, reason
}

// namesBefore returns the names that the tools of a server may get, as far as that is known before the
// server is listed: with Pin those of the accepted tools, otherwise those of an allow list without
// wildcards, and those of the tools that it listed in an earlier process (ExpectTools).
func (c *Catalog) namesBefore(cfg *config.Server) map[string]bool {
	names := map[string]bool{}
	if cfg.Pin {
		for original := range c.pins.servers[cfg.Name] {
			names[prefixedName(cfg, original)] = true
		}
		return names
	}
	for _, name := range cfg.AllowTools { // a tool's own name or one that it may be offered under
		if !strings.ContainsAny(name, `*?[\`) {
			names[name], names[prefixedName(cfg, name)] = true, true
		}
	}
	for _, original := range c.expected[cfg.Name] {
		if isAllowed(cfg, original) {
			names[prefixedName(cfg, original)] = true
		}
	}
	return names
}
