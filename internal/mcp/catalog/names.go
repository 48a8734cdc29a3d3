package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strings"

	"answerd/internal/mcp/config"
)

// maxName is the greatest length of a tool name that all model providers accept.
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

// joinName returns prefix_name, or the name if there is no prefix.
func joinName(prefix, original string) string {
	if prefix == "" {
		return original
	}
	return prefix + "_" + original
}

// prefixedName returns the preferred name of a tool: its own name with the configured prefix.
func prefixedName(cfg *config.Server, original string) string {
	return providerSafe(joinName(cfg.ToolPrefix, original), toolID{cfg.Name, original})
}

// nameWithServer returns the name that a tool gets if another server's tool has its preferred one.
func nameWithServer(cfg *config.Server, original string) string {
	return providerSafe(joinName(cfg.Name, original), toolID{cfg.Name, original})
}

// providerSafe returns s as a name that all model providers accept. It does not change a name that
// they accept already. A name that must be truncated, or that has no safe character, gets the
// tool's digest, so that it stays unique.
func providerSafe(s string, of toolID) string {
	if s != "" && len(s) <= maxName && strings.IndexFunc(s, isUnsafe) < 0 {
		return s
	}
	t := sanitizeName(s)
	switch {
	case t == "":
		return withDigest("tool", of)
	case len(t) > maxName:
		return withDigest(t, of)
	default:
		return t
	}
}

// withDigest returns s, truncated as needed, with a digest of the tool. The digest depends only on
// the server's name and the tool's own name, so it is the same after a restart and on all
// replicas.
func withDigest(s string, of toolID) string {
	sum := sha256.Sum256([]byte(of.server + "\x00" + of.original))
	tail := "_" + hex.EncodeToString(sum[:4])
	return s[:min(len(s), maxName-len(tail))] + tail
}

// toolNamer chooses the names for the tools of one server.
type toolNamer struct {
	cfg     *config.Server
	isTaken func(name string, by toolID) bool
	// pending has the names of tools of earlier servers that have not been listed yet.
	pending map[string]bool
	wanted  map[string]int // number of the server's tools that have this preferred name
}

// sortTools returns a server's tools in an order that does not depend on the order of the list.
// Tools whose names are safe come first, so that they keep them.
func (n *toolNamer) sortTools(tools []Tool) []Tool {
	n.wanted = map[string]int{}
	for _, t := range tools {
		n.wanted[prefixedName(n.cfg, t.Original)]++
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

// isChanged reports whether the preferred name of a tool had to be changed to be safe.
func (n *toolNamer) isChanged(original string) bool {
	return prefixedName(n.cfg, original) != joinName(n.cfg.ToolPrefix, original)
}

// nameTool returns the name of a tool, and the reason if it is not the preferred one. In this
// order:
//
//   - the preferred name, with a digest if several tools of the server have it once made safe;
//   - <server>_<tool>, if another server's tool has the preferred name;
//   - the preferred name with a digest, if that is taken too.
//
// A name is also taken if an earlier server's configuration names it, even if that server has not
// been listed yet.
func (n *toolNamer) nameTool(original string) (name, clash string) {
	me := toolID{n.cfg.Name, original}
	plain := prefixedName(n.cfg, original)
	if n.wanted[plain] > 1 && n.isChanged(original) {
		return n.freeName(withDigest(sanitizeName(joinName(n.cfg.ToolPrefix, original)), me), me), "another tool of the server has the same name once made safe"
	}
	if !n.isTaken(plain, me) && !n.pending[plain] {
		return plain, ""
	}
	if s := nameWithServer(n.cfg, original); !n.isTaken(s, me) && !n.pending[s] {
		return s, "another server's tool has its name"
	}
	return n.freeName(withDigest(plain, me), me), "other tools have its names"
}

// possibleNames returns all names that a tool may get, depending on what other servers list.
func possibleNames(cfg *config.Server, original string) []string {
	me, plain := toolID{cfg.Name, original}, prefixedName(cfg, original)
	return []string{plain, nameWithServer(cfg, original), withDigest(plain, me), withDigest(sanitizeName(joinName(cfg.ToolPrefix, original)), me)}
}

// freeName returns name, or a name made from it that no tool has. The latter is needed only if a
// server puts such digests into the names of its tools.
func (n *toolNamer) freeName(name string, me toolID) string {
	for n.isTaken(name, me) {
		name = withDigest(name, toolID{me.server, me.original + name})
	}
	return name
}

// MatchAny reports whether any of the patterns (path.Match) matches any of the names.
func MatchAny(globs []string, names ...string) bool {
	for _, g := range globs {
		for _, n := range names {
			if ok, err := path.Match(g, n); ok && err == nil {
				return true
			}
		}
	}
	return false
}

// toolID identifies a tool by its server's name and its own name on that server.
type toolID struct{ server, original string }
