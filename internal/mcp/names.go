package mcp

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"answerd/internal/mcp/config"
)

// maxName is the longest tool name that all providers take.
const maxName = 64

// safe is s with everything outside [A-Za-z0-9_-] as "_", trimmed; it may be empty
// and too long.
func safe(s string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if unsafe(r) {
			return '_'
		}
		return r
	}, s), "_")
}

func unsafe(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-':
		return false
	}
	return true
}

// joined is prefix_tool, or the bare name without a prefix (S4.3).
func joined(prefix, original string) string {
	if prefix == "" {
		return original
	}
	return prefix + "_" + original
}

// plainName is the name that a tool has if nothing stands against it.
func plainName(cfg *config.Server, original string) string {
	return fit(joined(cfg.ToolPrefix, original), ref{cfg.Name, original})
}

// serverName is the name of a tool whose plain name an earlier server has.
func serverName(cfg *config.Server, original string) string {
	return fit(joined(cfg.Name, original), ref{cfg.Name, original})
}

// fit makes a provider-safe name of s. One that is cut, or of which nothing remains,
// gets the tool's digest; an s that is safe as it is stays letter by letter.
func fit(s string, of ref) string {
	if s != "" && len(s) <= maxName && strings.IndexFunc(s, unsafe) < 0 {
		return s
	}
	switch t := safe(s); {
	case t == "":
		return marked("tool", of)
	case len(t) > maxName:
		return marked(t, of)
	default:
		return t
	}
}

// marked is s, cut as needed, with the digest of the tool that it stands for. The
// digest depends on server and original name alone, so it is the same after every
// restart.
func marked(s string, of ref) string {
	sum := sha256.Sum256([]byte(of.server + "\x00" + of.original))
	tail := "_" + hex.EncodeToString(sum[:4])
	return s[:min(len(s), maxName-len(tail))] + tail
}

// namer names the tools of one server.
type namer struct {
	cfg   *config.Server
	taken func(name string, by ref) bool
	plain map[string]int // how many of the server's tools want a plain name
}

// inOrder sorts a server's tools so that their names don't depend on the order that
// it lists them in: those whose names are safe as they are come first, and keep them.
func (n *namer) inOrder(tools []Tool) []Tool {
	n.plain = map[string]int{}
	for _, t := range tools {
		n.plain[plainName(n.cfg, t.Original)]++
	}
	out := slices.Clone(tools)
	slices.SortFunc(out, func(a, b Tool) int {
		if x, y := n.changed(a.Original), n.changed(b.Original); x != y {
			if x {
				return 1
			}
			return -1
		}
		return strings.Compare(a.Original, b.Original)
	})
	return out
}

// changed reports whether making a name safe changes it.
func (n *namer) changed(original string) bool {
	return plainName(n.cfg, original) != joined(n.cfg.ToolPrefix, original)
}

// name is the name of a tool: its plain one; if its server has others that come to
// the same, the digest tells them apart; if another server has it, <server>_<tool>;
// and if that is taken too, the digest again. clash says why it isn't the plain one.
func (n *namer) name(original string) (name, clash string) {
	me := ref{n.cfg.Name, original}
	plain := plainName(n.cfg, original)
	if n.plain[plain] > 1 && n.changed(original) {
		return n.free(marked(safe(joined(n.cfg.ToolPrefix, original)), me), me), "another tool of the server has the same name once made safe"
	}
	if !n.taken(plain, me) {
		return plain, ""
	}
	if s := serverName(n.cfg, original); !n.taken(s, me) {
		return s, "another server's tool has its name"
	}
	return n.free(marked(plain, me), me), "other tools have its names"
}

// free is name, or a name made from it that nobody has. Only a server that makes
// its tool names from our digests gets to the second.
func (n *namer) free(name string, me ref) string {
	for n.taken(name, me) {
		name = marked(name, ref{me.server, me.original + name})
	}
	return name
}
