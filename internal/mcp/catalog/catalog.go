// Package catalog holds the tools of all MCP servers under unique names. It leaves out tools that the
// configuration filters out or whose pinned definition has changed.
//
//	c := catalog.New(logger)
//	c.LoadPins("mcp.pins.json")
//	c.SetServers([]int{1}, nil, nil)  // ids in the configuration's order
//	c.SetTools(1, &server, tools)     // the tools that the server listed
//	for _, tool := range c.Offered() { // the tools to show to the model
//		offer(tool.Name, tool.InputSchema)
//	}
//	tool, ok := c.Resolve("crm_get_customer") // a name that the model wrote
//
// Which tool gets a name depends only on the order of the servers in the configuration and on their tool lists, not on
// which server answered first. No method blocks for longer than it takes to compile and name one server's tools. A
// Catalog may be used concurrently.
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

// maxReservedNames limits the number of names that are reserved for tools because a model has seen them.
const maxReservedNames = 8192

// Resolved is a tool that was found by its name, together with its server.
type Resolved struct {
	Tool
	ServerID int    // as in SetServers
	Disabled string // why the tool cannot be called; "" if it can be called
}

// serverEntry has the tools of a server's latest list. The slices and the map are never changed after they are set.
type serverEntry struct {
	cfg     *config.Server
	listed  []Tool            // as SetTools got them, with compiled schemas
	digests map[string]string // digests of the tools' definitions, by original name; nil without Pin
	usable  []Tool            // the listed tools that may be called
	blocked []blockedTool     // the tools that the configuration allows but whose definitions are not accepted
}

// hasOnlySignIn reports whether the entry has only the tool that asks users to sign in. The server's own tools are then
// unknown, because no user has signed in yet.
func (e *serverEntry) hasOnlySignIn() bool { return len(e.listed) == 1 && e.listed[0].SignsIn }

// Catalog holds the tools of all servers under unique names. Create one with New.
//
// Which tool gets a name depends only on the order of the servers in the configuration and on their tool lists, so that
// all replicas use the same names. While the process runs, a name that was offered to a model is never given to another
// tool of the same server or to a tool of a later server. Otherwise a run would call another tool than the model saw. A
// tool of an earlier server that is listed later does get the name. NameOf then returns the new name of the tool that
// the run was offered.
type Catalog struct {
	log *slog.Logger

	mu            sync.Mutex             // protects the fields below
	order         []int                  // the servers' ids, in the configuration's order
	configs       map[int]*config.Server // configurations of the servers in order, by id
	entries       map[int]serverEntry    // entries of the servers that have been listed, by id
	pins          *acceptedTools
	expected      map[string][]string // by server name: the original names of the tools that it listed in an earlier process
	reservedNames map[string]toolID   // the tools that were offered to a model, by the name used then
	byName        map[string]Resolved // all tools by their current names, including blocked tools and aliases
	offered       []Tool              // replaced and never changed, because callers read it without the lock
	isStale       bool                // byName and offered must be rebuilt
	isReserved    bool                // reservedNames already has the names of the tools in offered
}

// LoadPins reads the accepted tool definitions from the file at path and applies them to the tools of all servers. If
// the file cannot be read, no definition is accepted, and calls of pinned tools are refused with the reason.
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

// SetTools replaces the tools of the server with the given id and configuration. It returns how many of them can be
// called: those that the configuration allows and, with Pin, whose definitions are accepted. If the server was removed,
// SetTools does nothing and returns 0. It keeps the slice tools and sets the compiled schemas of its elements.
func (c *Catalog) SetTools(id int, cfg *config.Server, tools []Tool) int {
	c.compileSchemas(id, tools)
	entry := serverEntry{cfg: cfg, listed: tools}
	if cfg.Pin {
		// Compute the digests before locking, because calls wait for the lock and definitions can have 60 MiB.
		entry.digests = digestsOf(cfg, tools)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.order, id) {
		return 0
	}
	return c.storeLocked(id, entry)
}

// storeLocked filters entry.listed into usable and blocked tools, and stores entry for the server with the given id. It
// returns the number of usable tools. It logs which tools are newly blocked and which no longer are. c.mu must be held.
func (c *Catalog) storeLocked(id int, entry serverEntry) int {
	// Filter before naming, so that a tool that is not offered cannot take the name of one that is.
	entry.usable = slices.DeleteFunc(slices.Clone(entry.listed), func(t Tool) bool { return !isToolAllowed(entry.cfg, t) })
	entry.blocked = nil
	if entry.cfg.Pin {
		entry.usable, entry.blocked = c.pins.splitAccepted(entry.cfg, entry.usable, entry.digests)
		c.logBlocked(entry.cfg.Name, c.entries[id].blocked, entry.blocked)
	}
	c.entries[id] = entry
	c.isStale = true
	return len(entry.usable)
}

// isToolAllowed reports whether the server's configuration allows calls of tool. The tools that answerd adds are allowed
// while the setting that they serve is set: they may have been listed with the server's previous configuration.
func isToolAllowed(cfg *config.Server, tool Tool) bool {
	switch {
	case tool.ReadsResources:
		return len(cfg.Resources) > 0
	case tool.SignsIn:
		return cfg.Auth == config.AuthAuthorizationCode
	}
	return isAllowed(cfg, tool.Original)
}

// maxBlockedLogged is the maximum number of log lines about newly blocked tools in one list.
const maxBlockedLogged = 50

// logBlocked logs how now, a server's blocked tools, differs from before, those of its previous list. It logs each tool
// that is newly blocked, or is blocked for a new reason or with a new definition, but at most maxBlockedLogged of them
// and then their number. It also logs each tool that is no longer blocked.
func (c *Catalog) logBlocked(server string, before, now []blockedTool) {
	newlyBlocked := 0
	for _, tool := range now {
		if slices.ContainsFunc(before, tool.isSameAs) {
			continue
		}
		newlyBlocked++
		if newlyBlocked <= maxBlockedLogged {
			c.log.Warn("MCP tool disabled", "mcp_server", server, "tool", wire.Printable(tool.Original, 80),
				"reason", tool.reason, "sha256", tool.digest, "accepted_sha256", tool.accepted, help.Pins.Attr())
		}
	}
	if newlyBlocked > maxBlockedLogged {
		c.log.Warn("MCP tools disabled", "mcp_server", server, "tools", newlyBlocked, help.Pins.Attr())
	}
	for _, tool := range before {
		if !slices.ContainsFunc(now, func(b blockedTool) bool { return b.Original == tool.Original }) {
			c.log.Info("MCP tool no longer disabled", "mcp_server", server, "tool", wire.Printable(tool.Original, 80))
		}
	}
}

// SetServers sets the ids of the configured servers, in the configuration's order, and removes the tools of all other
// servers. replacements maps the new id of a reconfigured server to its former id. Such a server keeps the tools of its
// latest list, filtered by its new configuration, until it is listed again. configs has the configurations of all
// servers by id. SetServers keeps it.
func (c *Catalog) SetServers(order []int, replacements map[int]int, configs map[int]*config.Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.order = order
	c.configs = configs
	for id, formerID := range replacements {
		if entry, listed := c.entries[formerID]; listed {
			entry.cfg = c.configs[id]
			if entry.cfg.Pin && entry.digests == nil { // the previous configuration did not set Pin
				entry.digests = digestsOf(entry.cfg, entry.listed)
			}
			c.storeLocked(id, entry)
		}
	}
	maps.DeleteFunc(c.entries, func(id int, _ serverEntry) bool { return !slices.Contains(order, id) })
	c.isStale = true
}

// ExpectTools reserves the names of the tools that a server listed in an earlier process, until the server is listed
// again. originals are the tools' names on the server. No tool of a later server gets the reserved names.
func (c *Catalog) ExpectTools(server string, originals []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expected[server] = originals
	c.isStale = true
}

// IsExpected reports whether ExpectTools was called for the server.
func (c *Catalog) IsExpected(server string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.expected[server]
	return ok
}

// setPins replaces the accepted definitions and filters the tools of all servers again.
func (c *Catalog) setPins(p *acceptedTools) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pins = p
	for id, e := range c.entries {
		c.storeLocked(id, e)
	}
}

// ToolCounts returns how many tools of the server with the given id can be called. disabled has the original names,
// sorted, of the tools whose definitions the operator has not accepted.
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

// pinnedEntries returns the entries of the listed servers with Pin, in the configuration's order.
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

// Offered returns the tools to show to a model: all that can be called, except those of servers with Hidden. They are
// ordered by server in the configuration's order, and then by name. The slice is never nil. It is shared, so callers
// must not change it. Offered also reserves the names of all tools that can be called.
func (c *Catalog) Offered() []Tool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rebuildLocked()
	if !c.isReserved {
		c.reserveNamesLocked()
		c.isReserved = true
	}
	return c.offered
}

// reserveNamesLocked adds the names of all tools that can be called to reservedNames. c.mu must be held.
func (c *Catalog) reserveNamesLocked() {
	if len(c.reservedNames) > maxReservedNames {
		c.reservedNames = map[string]toolID{} // some server keeps listing new tools: bound the memory
	}
	for name, tool := range c.byName {
		isAlias := tool.Name != name
		if tool.Disabled == "" && !isAlias {
			c.reservedNames[name] = tool.id()
		}
	}
}

// Resolve returns the tool that currently has the name, which may be an alias or the name of a disabled tool. The
// second result is false if no tool has the name.
func (c *Catalog) Resolve(name string) (Resolved, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rebuildLocked()
	resolved, ok := c.byName[name]
	return resolved, ok
}

// rebuildLocked recomputes byName and offered if tools or servers have changed since the last time. It makes a new
// slice for offered, because callers read the old one without the lock. c.mu must be held.
//
// It names the tools server by server, in the configuration's order. A server that has not been listed yet will
// probably need certain names. These are pending, and no later server's tools get them. Blocked tools and aliases are
// named last, so that they never take a name from a tool that can be called.
func (c *Catalog) rebuildLocked() {
	if !c.isStale {
		return
	}
	c.isStale, c.isReserved = false, false
	c.byName = map[string]Resolved{}
	c.offered = []Tool{} // not nil, so that it is an array in JSON, and not null

	pending := map[string]bool{}
	for _, id := range c.order {
		entry, listed := c.entries[id]
		cfg := c.configs[id]
		mayListLater := cfg != nil && !cfg.Disabled && (!listed || entry.hasOnlySignIn())
		if mayListLater {
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

// nameToolsLocked names a server's usable tools, and adds them to byName and, unless the server is hidden, to offered.
// It uses no name in pending. It logs tools that do not get their preferred names, unless a model was offered the tool
// under the same name before.
func (c *Catalog) nameToolsLocked(id int, entry serverEntry, pending map[string]bool) {
	namer := toolNamer{cfg: entry.cfg, isTaken: c.isTakenLocked, pending: pending, preferring: map[string]int{}}
	for _, tool := range entry.usable {
		namer.preferring[prefixedName(entry.cfg, tool.Original)]++
	}
	var visible []Tool
	for _, tool := range sortForNaming(entry.cfg, entry.usable) {
		name, reason := namer.chooseName(tool.Original)
		wasOffered := c.reservedNames[name] == tool.id() // and logged before that
		if reason != "" && !wasOffered {
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

// addAliasesLocked adds the alias <server>_<tool> for each named tool, unless another tool has that name. With the
// alias, a name that includes the server works regardless of what other servers list. If several tools have the same
// alias, as the tools b_c of a server a and c of a server a_b have, the first one that was named gets it.
func (c *Catalog) addAliasesLocked() {
	tools := slices.SortedFunc(maps.Values(c.byName), func(a, b Resolved) int {
		if isBlocked := a.Disabled != ""; isBlocked != (b.Disabled != "") {
			return orderFalseFirst(isBlocked)
		}
		if order := cmp.Compare(slices.Index(c.order, a.ServerID), slices.Index(c.order, b.ServerID)); order != 0 {
			return order
		}
		return compareForNaming(c.entries[a.ServerID].cfg, a.Original, b.Original)
	})
	for _, tool := range tools {
		alias := nameWithServer(c.entries[tool.ServerID].cfg, tool.Original)
		if !c.isTakenLocked(alias, tool.id()) {
			c.byName[alias] = tool
		}
	}
}

// nameBlockedLocked adds the blocked tools to byName, so that a call of one is refused with the reason, rather than as
// a call of an unknown tool. A blocked tool gets its preferred name, or else the name that includes its server's name.
// It also keeps all names under which it was offered. It never takes a name that another tool has.
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
	for name, id := range c.reservedNames { // a run may still use the name that its model was shown
		if tool, ok := blocked[id]; ok && !c.isTakenLocked(name, id) {
			c.byName[name] = tool
		}
	}
}

// NameOf returns the current name of the tool that a run was offered under name. It can differ from name if other
// servers were listed since then, or if the run began on another replica. server is the configured name of the tool's
// server. NameOf returns name itself if server is "", or if server is not configured and no tool has that name. It
// returns "" if the tool is gone, or if the run may have been offered any of several tools.
func (c *Catalog) NameOf(server, name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rebuildLocked()
	current, isUsed := c.byName[name]
	isConfigured := slices.ContainsFunc(c.order, func(id int) bool {
		return c.configs[id] != nil && c.configs[id].Name == server
	})
	switch {
	case server == "", isUsed && current.Server == server:
		return name
	case !isUsed && !isConfigured:
		return name // no tool has this name, so a call of it fails
	}
	candidates := c.namedBeforeLocked(server, name)
	if len(candidates) != 1 {
		return ""
	}
	return candidates[0]
}

// namedBeforeLocked returns the current names of those tools of server that may have been called name before. If this
// process knows which of the server's tools it offered under that name, it considers only that tool.
func (c *Catalog) namedBeforeLocked(server, name string) []string {
	offered, isReserved := c.reservedNames[name]
	isKnown := isReserved && offered.server == server
	var candidates []string
	for currentName, tool := range c.byName {
		entry, listed := c.entries[tool.ServerID]
		isAlias := tool.Name != currentName
		if !listed || isAlias || tool.Server != server {
			continue
		}
		isOtherTool := isKnown && tool.id() != offered
		if !isOtherTool && slices.Contains(possibleNames(entry.cfg, tool.Original), name) {
			candidates = append(candidates, currentName)
		}
	}
	return candidates
}

// isTakenLocked reports whether name belongs to, or is reserved for, another tool than tool. A reservation for a tool
// of a later server does not count, because the earlier server's tool gets the name.
func (c *Catalog) isTakenLocked(name string, tool toolID) bool {
	if holder, ok := c.byName[name]; ok {
		return holder.id() != tool
	}
	reservedFor, ok := c.reservedNames[name]
	return ok && reservedFor != tool && !c.isLaterLocked(reservedFor.server, tool.server)
}

// isLaterLocked reports whether the server called later comes after the one called earlier in the configuration. It
// returns false if either has not been listed.
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

// compileSchemas sets the compiled schemas of tools, which the server with the given id has listed. It reuses the
// compiled schemas of the server's previous list where a schema has not changed, because some servers are listed every
// minute. c.mu must not be held: calls wait for it, and compiling a schema takes about 50 µs, or a hundred times as
// long for a bad one of 64 KiB.
func (c *Catalog) compileSchemas(id int, tools []Tool) {
	c.mu.Lock()
	before := c.entries[id].listed // never changed, so it is read below without the lock
	c.mu.Unlock()
	previous := make(map[string]Tool, len(before)) // by original name
	for _, tool := range before {
		previous[tool.Original] = tool
	}
	for i := range tools {
		tool := &tools[i]
		old, existed := previous[tool.Original]
		if existed && bytes.Equal(old.InputSchema, tool.InputSchema) {
			tool.inputSchema, tool.Unchecked = old.inputSchema, old.Unchecked
		} else {
			tool.inputSchema, tool.Unchecked = c.compileSchema(tool, "input", tool.InputSchema)
		}
		switch {
		case tool.OutputSchema == nil:
		case existed && bytes.Equal(old.OutputSchema, tool.OutputSchema):
			tool.outputSchema = old.outputSchema
		default:
			tool.outputSchema, _ = c.compileSchema(tool, "output", tool.OutputSchema)
		}
	}
}

// compileSchema compiles raw, a schema of t. kind is "input" or "output". If the schema cannot be used, compileSchema
// returns nil and the reason, which it also logs. The tool remains usable without the schema, because the server checks
// the arguments too.
func (c *Catalog) compileSchema(t *Tool, kind string, raw json.RawMessage) (_ *schema.Schema, reason string) {
	compiled, err := schema.Compile(raw)
	if err == nil {
		return compiled, ""
	}
	reason = "the " + kind + " schema cannot be used: " + err.Error()
	c.log.Warn("MCP tool not checked", "mcp_server", t.Server, "tool", wire.Printable(t.Original, 80), "reason", reason, help.ToolSchemas.Attr())
	return nil, reason
}
