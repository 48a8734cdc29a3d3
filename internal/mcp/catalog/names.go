package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strings"

	"answerd/internal/mcp/config"
)

// maxName is the maximum length in bytes of a tool name that all model providers accept.
const maxName = 64

// sanitizeName replaces each character other than [A-Za-z0-9_-] by "_", and then removes "_" from both ends. The result
// may be empty or too long.
func sanitizeName(s string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if isUnsafe(r) {
			return '_'
		}
		return r
	}, s), "_")
}

// isUnsafe reports whether model providers reject r in a tool's name.
func isUnsafe(r rune) bool {
	isAlphanumeric := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
	return !isAlphanumeric && r != '_' && r != '-'
}

// joinName returns <prefix>_<original>, or original if prefix is "".
func joinName(prefix, original string) string {
	if prefix == "" {
		return original
	}
	return prefix + "_" + original
}

// prefixedName returns a tool's preferred name: its original name with the configured prefix, made safe by
// providerSafe.
func prefixedName(cfg *config.Server, original string) string {
	return providerSafe(joinName(cfg.ToolPrefix, original), toolID{cfg.Name, original})
}

// nameWithServer returns <server>_<tool>, made safe by providerSafe. A tool gets this name if another server's tool has
// its preferred name.
func nameWithServer(cfg *config.Server, original string) string {
	return providerSafe(joinName(cfg.Name, original), toolID{cfg.Name, original})
}

// providerSafe turns name, a name for the given tool, into one that all model providers accept. It does not change a
// name that they accept already. If the name must be truncated or has no safe character, it adds a digest of the tool
// to keep the result unique.
func providerSafe(name string, tool toolID) string {
	if name != "" && len(name) <= maxName && strings.IndexFunc(name, isUnsafe) < 0 {
		return name
	}
	safe := sanitizeName(name)
	if safe == "" {
		return withDigest("tool", tool)
	}
	if len(safe) > maxName {
		return withDigest(safe, tool)
	}
	return safe
}

// withDigest returns name followed by a digest of the tool, and truncates name to make the result fit. The digest
// depends only on the server's name and the tool's original name, so it is the same after a restart and on all
// replicas.
func withDigest(name string, tool toolID) string {
	sum := sha256.Sum256([]byte(tool.server + "\x00" + tool.original))
	suffix := "_" + hex.EncodeToString(sum[:4]) // 8 digits: short, and two tools rarely have the same
	return name[:min(len(name), maxName-len(suffix))] + suffix
}

// toolNamer chooses names for the tools of one server.
type toolNamer struct {
	cfg        *config.Server
	isTaken    func(name string, tool toolID) bool // reports whether another tool than tool has name, or has it reserved
	pending    map[string]bool                     // names kept for tools of earlier servers that have not been listed
	preferring map[string]int                      // number of the server's tools by their preferred name
}

// sortForNaming returns a copy of a server's tools in the order in which they must be named, whatever the order of the
// server's list. Tools whose prefixed names are safe come first, so that they get those names.
func sortForNaming(cfg *config.Server, tools []Tool) []Tool {
	sorted := slices.Clone(tools)
	slices.SortFunc(sorted, func(a, b Tool) int { return compareForNaming(cfg, a.Original, b.Original) })
	return sorted
}

// compareForNaming compares two tools of one server, given by their original names, for sortForNaming.
func compareForNaming(cfg *config.Server, a, b string) int {
	if isUnsafe := hasUnsafeName(cfg, a); isUnsafe != hasUnsafeName(cfg, b) {
		return orderFalseFirst(isUnsafe)
	}
	return strings.Compare(a, b)
}

// orderFalseFirst returns the result of comparing a with b, which differ in a bool, so that false comes first. a is the
// value of the first one.
func orderFalseFirst(a bool) int {
	if a {
		return 1
	}
	return -1
}

// hasUnsafeName reports whether a model provider may reject the tool's original name with the configured prefix. The
// tool's preferred name then differs from it.
func hasUnsafeName(cfg *config.Server, original string) bool {
	return prefixedName(cfg, original) != joinName(cfg.ToolPrefix, original)
}

// chooseName returns a name for the tool with the given original name. It does not reserve the name. reason says why it
// is not the tool's preferred name, and is "" if it is. The name is the first of these that applies:
//
//   - the unsafe name made safe, with a digest, if the tool has an unsafe name and shares its preferred name with
//     another tool of the server;
//   - the preferred name, if it is free;
//   - <server>_<tool>, if it is free;
//   - the preferred name with a digest.
func (n *toolNamer) chooseName(original string) (name, reason string) {
	tool := toolID{n.cfg.Name, original}
	preferred := prefixedName(n.cfg, original)
	if n.preferring[preferred] > 1 && hasUnsafeName(n.cfg, original) {
		return n.firstFreeName(safeNameWithDigest(n.cfg, original), tool), "another tool of the server has the same name once made safe"
	}
	if n.isFree(preferred, tool) {
		return preferred, ""
	}
	if withServer := nameWithServer(n.cfg, original); n.isFree(withServer, tool) {
		return withServer, "another server's tool has its name"
	}
	return n.firstFreeName(withDigest(preferred, tool), tool), "other tools have its names"
}

// isFree reports whether tool may get name: no other tool has it or has reserved it, and it is not pending.
func (n *toolNamer) isFree(name string, tool toolID) bool {
	return !n.isTaken(name, tool) && !n.pending[name]
}

// safeNameWithDigest returns the tool's prefixed name, made safe, with a digest of the tool.
func safeNameWithDigest(cfg *config.Server, original string) string {
	return withDigest(sanitizeName(joinName(cfg.ToolPrefix, original)), toolID{cfg.Name, original})
}

// possibleNames returns the names that chooseName may return for a tool, depending on what other servers list. It does
// not include names that only firstFreeName makes.
func possibleNames(cfg *config.Server, original string) []string {
	preferred := prefixedName(cfg, original)
	return []string{
		preferred,
		nameWithServer(cfg, original),
		withDigest(preferred, toolID{cfg.Name, original}),
		safeNameWithDigest(cfg, original),
	}
}

// namesBeforeListing returns the names that a server's tools may get, as far as they are known before the server is
// listed. accepted and expected are original names of tools. With Pin, the result has the preferred names of the
// accepted tools. Otherwise it has the names without wildcards in the allow list, and the preferred names of the
// expected tools that are allowed.
func namesBeforeListing(cfg *config.Server, accepted, expected []string) map[string]bool {
	names := map[string]bool{}
	if cfg.Pin {
		for _, original := range accepted {
			names[prefixedName(cfg, original)] = true
		}
		return names
	}
	for _, pattern := range cfg.AllowTools {
		hasWildcard := strings.ContainsAny(pattern, `*?[\`)
		if !hasWildcard {
			names[pattern] = true // the allow list may use the name under which the tool is offered
			names[prefixedName(cfg, pattern)] = true
		}
	}
	for _, original := range expected {
		if isAllowed(cfg, original) {
			names[prefixedName(cfg, original)] = true
		}
	}
	return names
}

// firstFreeName returns name, or a variant of it with another digest if name is taken. The variant is needed only if a
// server lists tools whose original names contain the digests of other tools.
func (n *toolNamer) firstFreeName(name string, tool toolID) string {
	for n.isTaken(name, tool) {
		name = withDigest(name, toolID{tool.server, tool.original + name})
	}
	return name
}

// isAllowed reports whether a server's allow and deny lists permit calls of the tool with the given original name. The
// lists' patterns may match that name, the name with the configured prefix, or the name with the server's name.
func isAllowed(cfg *config.Server, original string) bool {
	names := []string{original, prefixedName(cfg, original), nameWithServer(cfg, original)}
	if MatchAny(cfg.DenyTools, names...) {
		return false
	}
	return len(cfg.AllowTools) == 0 || MatchAny(cfg.AllowTools, names...)
}

// MatchAny reports whether any of the patterns matches any of the names, as path.Match does. A malformed pattern
// matches nothing.
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

// toolID identifies a tool by its server's name and its original name on that server.
type toolID struct{ server, original string }

// id returns the identity of the tool.
func (t Tool) id() toolID { return toolID{t.Server, t.Original} }
