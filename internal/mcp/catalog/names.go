package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strings"

	"answerd/internal/mcp/config"
)

// maxName is the greatest length in bytes of a tool name that all model providers accept.
const maxName = 64

// sanitizeName replaces characters other than [A-Za-z0-9_-] by "_" and removes "_" from both ends.
// The result may be empty or too long.
func sanitizeName(s string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if isUnsafe(r) {
			return '_'
		}
		return r
	}, s), "_")
}

// isUnsafe reports whether model providers refuse the character in the name of a tool.
func isUnsafe(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-':
		return false
	}
	return true
}

// joinName returns <prefix>_<original>, or original if there is no prefix.
func joinName(prefix, original string) string {
	if prefix == "" {
		return original
	}
	return prefix + "_" + original
}

// prefixedName returns the preferred name of a tool: its own name with the configured prefix, made safe.
func prefixedName(cfg *config.Server, original string) string {
	return providerSafe(joinName(cfg.ToolPrefix, original), toolID{cfg.Name, original})
}

// nameWithServer returns the name that a tool gets if another server's tool has its preferred name: <server>_<tool>,
// made safe.
func nameWithServer(cfg *config.Server, original string) string {
	return providerSafe(joinName(cfg.Name, original), toolID{cfg.Name, original})
}

// providerSafe returns name for the tool as a name that all model providers accept. It does not change a name that
// they accept already. A name that must be truncated, or that has no safe character, gets a digest of the tool, so
// that it is unique.
func providerSafe(name string, tool toolID) string {
	if name != "" && len(name) <= maxName && strings.IndexFunc(name, isUnsafe) < 0 {
		return name
	}
	safe := sanitizeName(name)
	switch {
	case safe == "":
		return withDigest("tool", tool)
	case len(safe) > maxName:
		return withDigest(safe, tool)
	default:
		return safe
	}
}

// withDigest returns the name, truncated as needed, with a digest of the tool. The digest depends only on the
// server's name and the tool's own name, so it is the same after a restart and on all replicas.
func withDigest(name string, tool toolID) string {
	sum := sha256.Sum256([]byte(tool.server + "\x00" + tool.original))
	suffix := "_" + hex.EncodeToString(sum[:4])
	return name[:min(len(name), maxName-len(suffix))] + suffix
}

// toolNamer chooses the names for the tools of one server. sortTools must be called before nameTool.
type toolNamer struct {
	cfg       *config.Server
	isTaken   func(name string, tool toolID) bool // whether a tool other than tool has the name, or has it reserved
	pending   map[string]bool                     // names for tools of earlier servers that have not been listed
	preferred map[string]int                      // by preferred name: how many of the server's tools have it
}

// sortTools returns the server's tools in the order in which they are to be named, which does not depend on the order
// of the list. Tools whose preferred names are safe without a change come first, so that they get them. It also
// counts the preferred names for nameTool.
func (n *toolNamer) sortTools(tools []Tool) []Tool {
	n.preferred = map[string]int{}
	for _, t := range tools {
		n.preferred[prefixedName(n.cfg, t.Original)]++
	}
	sorted := slices.Clone(tools)
	slices.SortFunc(sorted, func(a, b Tool) int {
		aChanged, bChanged := n.isChanged(a.Original), n.isChanged(b.Original)
		switch {
		case !aChanged && bChanged:
			return -1
		case aChanged && !bChanged:
			return 1
		}
		return strings.Compare(a.Original, b.Original)
	})
	return sorted
}

// isChanged reports whether the name of a tool with the configured prefix is not safe, so that its preferred name
// differs.
func (n *toolNamer) isChanged(original string) bool {
	return prefixedName(n.cfg, original) != joinName(n.cfg.ToolPrefix, original)
}

// nameTool returns the name for a tool, and the reason if that is not its preferred name; otherwise "". It returns
// the first of these that fits:
//
//   - the preferred name with a digest, if several tools of the server have that name and this one had to be changed to
//     be safe;
//   - the preferred name, if it is free;
//   - <server>_<tool>, if it is free;
//   - the preferred name with a digest.
//
// A name is free if no other tool has it or has it reserved, and it is not pending.
func (n *toolNamer) nameTool(original string) (name, reason string) {
	tool := toolID{n.cfg.Name, original}
	preferred := prefixedName(n.cfg, original)
	if n.preferred[preferred] > 1 && n.isChanged(original) {
		distinct := withDigest(sanitizeName(joinName(n.cfg.ToolPrefix, original)), tool)
		return n.freeName(distinct, tool), "another tool of the server has the same name once made safe"
	}
	if !n.isTaken(preferred, tool) && !n.pending[preferred] {
		return preferred, ""
	}
	if withServer := nameWithServer(n.cfg, original); !n.isTaken(withServer, tool) && !n.pending[withServer] {
		return withServer, "another server's tool has its name"
	}
	return n.freeName(withDigest(preferred, tool), tool), "other tools have its names"
}

// possibleNames returns the names that nameTool may return for a tool, depending on what other servers list, without
// those that only freeName makes.
func possibleNames(cfg *config.Server, original string) []string {
	tool := toolID{cfg.Name, original}
	preferred := prefixedName(cfg, original)
	return []string{
		preferred,
		nameWithServer(cfg, original),
		withDigest(preferred, tool),
		withDigest(sanitizeName(joinName(cfg.ToolPrefix, original)), tool),
	}
}

// namesBeforeListing returns the names that the tools of a server may get, as far as they are known before the server
// is listed. With Pin these are the names of the tools whose own names are in accepted. Otherwise they are the names in
// the allow list that have no wildcards, and the names of the allowed tools whose own names are in expected.
func namesBeforeListing(cfg *config.Server, accepted, expected []string) map[string]bool {
	names := map[string]bool{}
	if cfg.Pin {
		for _, original := range accepted {
			names[prefixedName(cfg, original)] = true
		}
		return names
	}
	for _, name := range cfg.AllowTools {
		if !strings.ContainsAny(name, `*?[\`) {
			names[name] = true // it may be a name under which the tool is offered
			names[prefixedName(cfg, name)] = true
		}
	}
	for _, original := range expected {
		if isAllowed(cfg, original) {
			names[prefixedName(cfg, original)] = true
		}
	}
	return names
}

// freeName returns name if it is not taken, or else a name with another digest that is not. The latter is needed only
// if a server lists tools whose own names have the digests of other tools.
func (n *toolNamer) freeName(name string, tool toolID) string {
	for n.isTaken(name, tool) {
		name = withDigest(name, toolID{tool.server, tool.original + name})
	}
	return name
}

// isAllowed reports whether a server's allow and deny lists permit calls of the tool with that own name. Their
// patterns are compared with its own name, the name with the configured prefix, and the name with the server's name.
func isAllowed(cfg *config.Server, original string) bool {
	names := []string{original, prefixedName(cfg, original), nameWithServer(cfg, original)}
	if MatchAny(cfg.DenyTools, names...) {
		return false
	}
	return len(cfg.AllowTools) == 0 || MatchAny(cfg.AllowTools, names...)
}

// MatchAny reports whether any of the patterns (path.Match) matches any of the names. A malformed pattern matches
// nothing.
func MatchAny(patterns []string, names ...string) bool {
	for _, pattern := range patterns {
		for _, name := range names {
			if ok, err := path.Match(pattern, name); ok && err == nil {
				return true
			}
		}
	}
	return false
}

// toolID identifies a tool by its server's name and its own name on that server.
type toolID struct{ server, original string }

// id returns the identity of the tool.
func (t Tool) id() toolID { return toolID{t.Server, t.Original} }
