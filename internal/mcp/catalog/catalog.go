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
	Disabled string // the reason why the tool cannot be called, for the caller; "" if it can be called
}

// serverEntry has the tools of the server's latest list. The slices and the map are never changed.
type serverEntry struct {
	cfg     *config.Server
	listed  []Tool            // as SetTools got them, with compiled schemas
	digests map[string]string // of the tools' definitions, by their own names; nil without Pin
	usable  []Tool            // the listed tools that may be called
	blocked []blockedTool     // the listed tools that the configuration allows but the operator has not accepted
}

// hasOnlySignIn reports whether the server's own tools are unknown, because no user has signed in yet: the entry has
// only the tool that asks users to sign in.
func (e *serverEntry) hasOnlySignIn() bool { return len(e.listed) == 1 && e.listed[0].SignsIn }

// Catalog holds the tools of all servers under unique names. Create it with New.
//
// Which tool gets a name depends only on the configuration's order and the lists, so that all replicas use the same
// names. While the process runs, a name that was offered once is never given to a tool of a later server, or to another
// tool of the same server: a run would call another tool than the model saw. A tool of an earlier server that
// is listed later does get the name. NameOf then returns the new name of the tool that the run was offered.
type Catalog struct {
	log *slog.Logger

	mu            sync.Mutex             // protects the fields below
	order         []int                  // the servers' ids, in the configuration's order
	configs       map[int]*config.Server // of the servers in order
	entries       map[int]serverEntry    // of the servers that were listed
	pins          *acceptedTools
	expected      map[string][]string // by server: the own names of the tools that it listed in an earlier process
	reservedNames map[string]toolID   // by the name under which the tool was offered
	byName        map[string]Resolved // by all present names, including aliases and those of blocked tools
	offered       []Tool              // callers read it without the lock: replaced, never changed
	isStale       bool                // byName and offered must be rebuilt
	isReserved    bool                // reservedNames has the names of offered
}

// LoadPins reads the accepted definitions from the file at path and filters the tools of all servers by them. If the
// file cannot be read, no definition is accepted, and the reason is that of the blocked tools.
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

// SetTools replaces the tools of the server with that id and the configuration cfg. It returns how many of the tools
// can be called: those that the configuration allows and, with Pin, whose definitions are accepted. For a removed
// server it does nothing and returns 0. It keeps tools and writes the compiled schemas to its elements.
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

// storeLocked sets the usable and blocked tools of entry from its listed tools, makes it the entry of the server with
// that id, and returns the number of usable tools. It logs tools that are blocked now, or not any more.
func (c *Catalog) storeLocked(id int, entry serverEntry) int {
	// Filter before naming: a tool that is not offered must not take the name of a tool that is.
	entry.usable = slices.DeleteFunc(slices.Clone(entry.listed), func(t Tool) bool {
		switch {
		case t.ReadsResources: // of the former configuration, which may have had resources
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

// logBlocked logs the differences between the tools of a server that were blocked before and are blocked now: tools
// that are blocked for a new reason, with a line each for the first maxBlockedLogged, and tools that are no longer
// blocked.
func (c *Catalog) logBlocked(server string, before, now []blockedTool) {
	changed := 0
	for _, tool := range now {
		if slices.ContainsFunc(before, tool.isSameAs) {
			continue
		}
		changed++
		if changed <= maxBlockedLogged {
			c.log.Warn("MCP tool disabled", "mcp_server", server, "tool", wire.Printable(tool.Original, 80),
				"reason", tool.reason, "sha256", tool.digest, "accepted_sha256", tool.accepted, help.Pins.Attr())
		}
	}
	if changed > maxBlockedLogged {
		c.log.Warn("MCP tools disabled", "mcp_server", server, "tools", changed, help.Pins.Attr())
	}
	for _, tool := range before {
		if !slices.ContainsFunc(now, func(b blockedTool) bool { return b.Original == tool.Original }) {
			c.log.Info("MCP tool no longer disabled", "mcp_server", server, "tool", wire.Printable(tool.Original, 80))
		}
	}
}

// SetServers sets the ids of the configured servers, in the configuration's order, and removes the tools of all other
// servers. replacements maps the new id of a reconfigured server to the id that it had before. Such a server keeps
// the tools of its latest list, filtered by its new configuration, until it is listed again. cfg returns the
// configuration of a server; it may be nil if there are no replacements.
func (c *Catalog) SetServers(order []int, replacements map[int]int, cfg func(id int) *config.Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.order = order
	c.configs = map[int]*config.Server{}
	for _, id := range order {
		if cfg != nil {
			c.configs[id] = cfg(id)
		}
	}
	for id, before := range replacements {
		if entry, ok := c.entries[before]; ok {
			entry.cfg = c.configs[id]
			if entry.cfg.Pin && entry.digests == nil { // the former configuration had no Pin
				entry.digests = digestsOf(entry.cfg, entry.listed)
			}
			c.storeLocked(id, entry)
		}
	}
	maps.DeleteFunc(c.entries, func(id int, _ serverEntry) bool { return !slices.Contains(order, id) })
	c.isStale = true
}

// ExpectTools reserves names for a server until it is listed: those of the tools that it listed in an earlier
// process. originals are the tools' own names. No tool of a later server gets these names.
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

// ToolCounts returns how many tools of the server with that id can be called, and the own names, sorted, of the tools
// whose definitions the operator has not accepted.
func (c *Catalog) ToolCounts(id int) (usable int, disabled []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry := c.entries[id]
	for _, tool := range entry.blocked {
		disabled = append(disabled, tool.Original)
	}
	slices.Sort(disabled)
	return len(entry.usable), disabled
}

// pinnedEntries returns the entries of the servers with Pin that have been listed, in the configuration's order.
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

// Offered returns the tools to show to a model: those that can be called, except for tools of servers with Hidden.
// They are ordered by server in the configuration's order and then by name. Offered reserves the names of all tools
// that can be called. The slice is not nil; it is shared and must not be changed.
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

// Resolve returns the tool that has the name at present, which may be an alias or the name of a disabled tool, and
// whether there is one.
func (c *Catalog) Resolve(name string) (Resolved, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rebuildLocked()
	resolved, ok := c.byName[name]
	return resolved, ok
}

// rebuildLocked sets byName and offered, if tools or servers have changed since the last time. It makes a new slice
// for offered, because callers read the old one without the lock.
//
// The tools are named server by server, in the configuration's order. The names that a server without a list will
// probably take are pending: tools of later servers do not get them. Blocked tools and aliases are named last, so
// that they never take a name from a tool that can be called.
func (c *Catalog) rebuildLocked() {
	if !c.isStale {
		return
	}
	c.isStale, c.isReserved = false, false
	c.byName = map[string]Resolved{}
	c.offered = []Tool{} // not nil, so that JSON has an array

	pending := map[string]bool{}
	for _, id := range c.order {
		entry, listed := c.entries[id]
		if cfg := c.configs[id]; cfg != nil && !cfg.Disabled && (!listed || entry.hasOnlySignIn()) {
			accepted := slices.Collect(maps.Keys(c.pins.servers[cfg.Name]))
			maps.Copy(pending, namesBeforeListing(cfg, accepted, c.expected[cfg.Name]))
		}
		if listed {
			c.nameToolsLocked(id, entry, pending)
		}
	}
	c.nameBlockedLocked()
	c.addAliasesLocked()
}

// nameToolsLocked names the usable tools of a server, and adds them to byName and, unless they are hidden, to
// offered. It does not use names in pending. It logs tools that do not get their preferred names.
func (c *Catalog) nameToolsLocked(id int, entry serverEntry, pending map[string]bool) {
	namer := toolNamer{cfg: entry.cfg, isTaken: c.isTakenLocked, pending: pending}
	var visible []Tool
	for _, tool := range namer.sortTools(entry.usable) {
		name, reason := namer.nameTool(tool.Original)
		isLogged := c.reservedNames[name] == tool.id() // it was offered under the same name before
		if reason != "" && !isLogged {
			c.log.Warn("MCP tool renamed", "mcp_server", tool.Server, "tool", wire.Printable(tool.Original, 80),
				"name", name, "reason", reason, help.ToolLists.Attr())
		}
		tool.Name = name
		tool.cfg = entry.cfg
		tool.lazyVersion = &lazyDigest{}
		tool.NeedsApproval = needsApproval(entry.cfg, tool)
		c.byName[name] = Resolved{Tool: tool, ServerID: id}
		if !entry.cfg.Hidden {
			visible = append(visible, tool)
		}
	}
	slices.SortFunc(visible, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
	c.offered = append(c.offered, visible...)
}

// addAliasesLocked adds the alias <server>_<tool> for each named tool if no other tool has that name, so that a name
// with the server works whatever other servers list.
func (c *Catalog) addAliasesLocked() {
	aliases := map[string]Resolved{}
	for _, tool := range c.byName {
		if entry, ok := c.entries[tool.ServerID]; ok {
			if name := nameWithServer(entry.cfg, tool.Original); !c.isTakenLocked(name, tool.id()) {
				aliases[name] = tool
			}
		}
	}
	maps.Copy(c.byName, aliases)
}

// nameBlockedLocked adds the blocked tools to byName, so that a call of one is refused with the reason and not as an
// unknown tool. A blocked tool gets its preferred name, or else the name with its server's name, and all names under
// which it was offered, unless other tools have them.
func (c *Catalog) nameBlockedLocked() {
	blocked := map[toolID]Resolved{}
	for _, id := range c.order {
		entry := c.entries[id]
		for _, b := range entry.blocked {
			tool := Resolved{Tool: b.Tool, ServerID: id, Disabled: b.reason}
			blocked[tool.id()] = tool
			preferred, withServer := prefixedName(entry.cfg, b.Original), nameWithServer(entry.cfg, b.Original)
			if !c.isTakenLocked(preferred, tool.id()) {
				c.byName[preferred] = tool
			} else if !c.isTakenLocked(withServer, tool.id()) {
				c.byName[withServer] = tool
			}
		}
	}
	for name, id := range c.reservedNames { // a run may still use the name that it was offered
		if tool, ok := blocked[id]; ok && !c.isTakenLocked(name, id) {
			c.byName[name] = tool
		}
	}
}

// NameOf returns the present name of the tool that a run was offered under name. It may be another one because other
// servers were listed since then, or because the run began on another replica. server is the configured name of the
// tool's server. With "", or for a server that is not configured, NameOf returns name. It returns "" if the tool is
// gone, or if it cannot tell which of several tools the run was offered.
func (c *Catalog) NameOf(server, name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rebuildLocked()
	present, ok := c.byName[name]
	isConfigured := slices.ContainsFunc(c.order, func(id int) bool {
		return c.configs[id] != nil && c.configs[id].Name == server
	})
	switch {
	case server == "", ok && present.Server == server:
		return name
	case !ok && !isConfigured:
		return name // a call of it fails, because no tool has the name
	}
	candidates := c.namedBeforeLocked(server, name)
	if len(candidates) != 1 {
		return ""
	}
	return candidates[0]
}

// namedBeforeLocked returns the present names of the server's tools that may have had the name before. If this process
// has offered a tool of the server under the name, it is only that tool.
func (c *Catalog) namedBeforeLocked(server, name string) []string {
	offered, isKnown := c.reservedNames[name]
	isKnown = isKnown && offered.server == server
	var candidates []string
	for presentName, tool := range c.byName {
		entry, listed := c.entries[tool.ServerID]
		isAlias := tool.Name != presentName
		if !listed || isAlias || tool.Server != server || isKnown && tool.Original != offered.original {
			continue
		}
		if slices.Contains(possibleNames(entry.cfg, tool.Original), name) {
			candidates = append(candidates, presentName)
		}
	}
	return candidates
}

// isTakenLocked reports whether a tool other than tool has the name, or has it reserved. A reservation for a tool of
// a later server does not count: its name goes to the tool of the earlier server.
func (c *Catalog) isTakenLocked(name string, tool toolID) bool {
	if present, ok := c.byName[name]; ok {
		return present.id() != tool
	}
	reserved, ok := c.reservedNames[name]
	return ok && reserved != tool && !c.isLaterLocked(reserved.server, tool.server)
}

// isLaterLocked reports whether the server later comes after the server earlier in the configuration. It returns
// false if one of them has not been listed.
func (c *Catalog) isLaterLocked(later, earlier string) bool {
	passedEarlier := false
	for _, id := range c.order {
		entry, listed := c.entries[id]
		if !listed {
			continue
		}
		if passedEarlier && entry.cfg.Name == later {
			return true
		}
		passedEarlier = passedEarlier || entry.cfg.Name == earlier
	}
	return false
}

// compileSchemas sets the compiled schemas of the tools of the server with that id. It reuses schemas of its latest
// list that have not changed, because some servers are listed every minute. The caller must not hold the lock, which
// calls wait for: compiling a schema takes about 50 µs, and a hundred times as long for a bad one of 64 KiB.
func (c *Catalog) compileSchemas(id int, tools []Tool) {
	c.mu.Lock()
	before := c.entries[id].listed // never changed, so it can be read without the lock
	c.mu.Unlock()
	previous := make(map[string]*Tool, len(before)) // by their own names
	for i := range before {
		previous[before[i].Original] = &before[i]
	}
	for i := range tools {
		tool := &tools[i]
		old := previous[tool.Original]
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

// compileSchema returns a schema of the tool t compiled, or nil and the reason why it cannot be used, which it also
// logs. The tool stays usable without the schema, because the server checks the arguments too. which is "input" or
// "output".
func (c *Catalog) compileSchema(t *Tool, which string, raw json.RawMessage) (*schema.Schema, string) {
	s, err := schema.Compile(raw)
	if err == nil {
		return s, ""
	}
	reason := "the " + which + " schema cannot be used: " + err.Error()
	c.log.Warn("MCP tool not checked", "mcp_server", t.Server, "tool", wire.Printable(t.Original, 80), "reason", reason, help.ToolSchemas.Attr())
	return nil, reason
}
