package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strings"

	"answerd/internal/mcp/config"
)

// maxName is the longest tool name that all providers take.
const maxName = 64

// sanitizeName is s with everything outside [A-Za-z0-9_-] as "_", trimmed; it may be empty
// and too long.
func sanitizeName(s string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if isUnsafe(r) {
			return '_'
		}
		return r
	}, s), "_")
}

func isUnsafe(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-':
		return false
	}
	return true
}

// joinName is prefix_tool, or the bare name without a prefix (S4.3).
func joinName(prefix, original string) string {
	if prefix == "" {
		return original
	}
	return prefix + "_" + original
}

// prefixedName is the name that a tool has if nothing stands against it.
func prefixedName(cfg *config.Server, original string) string {
	return providerSafe(joinName(cfg.ToolPrefix, original), toolID{cfg.Name, original})
}

// nameWithServer is the name of a tool whose plain name an earlier server has.
func nameWithServer(cfg *config.Server, original string) string {
	return providerSafe(joinName(cfg.Name, original), toolID{cfg.Name, original})
}

// providerSafe makes a provider-safe name of s. One that is cut, or of which nothing remains,
// gets the tool's digest; an s that is safe as it is stays letter by letter.
func providerSafe(s string, of toolID) string {
	if s != "" && len(s) <= maxName && strings.IndexFunc(s, isUnsafe) < 0 {
		return s
	}
	switch t := sanitizeName(s); {
	case t == "":
		return withDigest("tool", of)
	case len(t) > maxName:
		return withDigest(t, of)
	default:
		return t
	}
}

// withDigest is s, cut as needed, with the digest of the tool that it stands for. The
// digest depends on server and original name alone, so it is the same after every
// restart.
func withDigest(s string, of toolID) string {
	sum := sha256.Sum256([]byte(of.server + "\x00" + of.original))
	tail := "_" + hex.EncodeToString(sum[:4])
	return s[:min(len(s), maxName-len(tail))] + tail
}

// toolNamer names the tools of one server.
type toolNamer struct {
	cfg     *config.Server
	isTaken func(name string, by toolID) bool
	wanted  map[string]int // how many of the server's tools want a plain name
}

// sortTools sorts a server's tools so that their names don't depend on the order that
// it lists them in: those whose names are safe as they are come first, and keep them.
func (n *toolNamer) sortTools(tools []Tool) []Tool {
	n.wanted = map[string]int{}
	for _, t := range tools {
		n.wanted[prefixedName(n.cfg, t.Original)]++
	}
	out := slices.Clone(tools)
	slices.SortFunc(out, func(a, b Tool) int {
		if x, y := n.isChanged(a.Original), n.isChanged(b.Original); x != y {
			if x {
				return 1
			}
			return -1
		}
		return strings.Compare(a.Original, b.Original)
	})
	return out
}

// isChanged reports whether making a name safe changes it.
func (n *toolNamer) isChanged(original string) bool {
	return prefixedName(n.cfg, original) != joinName(n.cfg.ToolPrefix, original)
}

// nameTool is the name of a tool: its plain one; if its server has others that come to
// the same, the digest tells them apart; if another server has it, <server>_<tool>;
// and if that is taken too, the digest again. clash says why it isn't the plain one.
func (n *toolNamer) nameTool(original string) (name, clash string) {
	me := toolID{n.cfg.Name, original}
	plain := prefixedName(n.cfg, original)
	if n.wanted[plain] > 1 && n.isChanged(original) {
		return n.freeName(withDigest(sanitizeName(joinName(n.cfg.ToolPrefix, original)), me), me), "another tool of the server has the same name once made safe"
	}
	if !n.isTaken(plain, me) {
		return plain, ""
	}
	if s := nameWithServer(n.cfg, original); !n.isTaken(s, me) {
		return s, "another server's tool has its name"
	}
	return n.freeName(withDigest(plain, me), me), "other tools have its names"
}

// freeName is name, or a name made from it that nobody has. Only a server that makes
// its tool names from our digests gets to the second.
func (n *toolNamer) freeName(name string, me toolID) string {
	for n.isTaken(name, me) {
		name = withDigest(name, toolID{me.server, me.original + name})
	}
	return name
}

// MatchAny reports whether one of the globs matches one of the names.
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
