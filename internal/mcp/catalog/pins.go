package catalog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"answerd/internal/mcp/config"
)

// acceptedTools are the tool definitions that the operator has accepted. A tool of a server
// with Pin whose definition is another, or new, cannot be called: what a model was
// told about a tool, and what was judged harmless, is not to change behind the
// operator's back (F22; CVE-2025-54136). It is read-only once made.
type acceptedTools struct {
	servers map[string]map[string]acceptedTool // by server and the tool's own name
	problem string                             // why there are none; "" where they were read
}

// acceptedTool is one accepted definition. The digest decides; the definition beside it is
// for the difference that an operator is shown.
type acceptedTool struct {
	SHA256     string     `json:"sha256"`
	Definition definition `json:"definition"`
}

// pinsFile is the file of pins.
type pinsFile struct {
	Comment string                             `json:"_comment"`
	Version int                                `json:"version"`
	Servers map[string]map[string]acceptedTool `json:"servers"`
}

const (
	pinsVersion = 1
	maxPins     = 64 << 20 // bytes of the file

	noPinsFile  = "nothing has been accepted yet"
	pinsComment = "Tool definitions that were accepted with: answerd check -accept"
)

// readPinsFile reads the file at path. What is wrong with it is in problem: a service
// with an unreadable file of pins runs, without the tools that need one.
func readPinsFile(path string) *acceptedTools {
	none := func(problem string) *acceptedTools { return &acceptedTools{problem: problem} }
	if path == "" {
		return none("there is no file of accepted definitions")
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none(noPinsFile)
	}
	if err != nil {
		return none("the file of accepted definitions cannot be read")
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxPins+1))
	var file pinsFile
	switch {
	case err != nil:
		return none("the file of accepted definitions cannot be read")
	case len(data) > maxPins:
		return none("the file of accepted definitions is too large")
	case json.Unmarshal(data, &file) != nil, file.Version != pinsVersion:
		return none("the file of accepted definitions is damaged")
	}
	return &acceptedTools{servers: file.Servers}
}

// writeFile replaces the file at path whole: whoever reads it gets the old one or the new.
func (p *acceptedTools) writeFile(path string) error {
	data, err := json.MarshalIndent(pinsFile{pinsComment, pinsVersion, p.servers}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the accepted definitions: %w", err)
	}
	// 0600, since what a tool says of itself may be confidential.
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write the accepted definitions: %w", err)
	}
	_, err = f.Write(append(data, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write the accepted definitions: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// blockedTool is a tool that cannot be called until the operator accepts its definition.
type blockedTool struct {
	Tool
	reason   string // fit for the caller
	digest   string
	accepted string // the digest that was accepted; "" where there is none
}

func (b blockedTool) sameAs(other blockedTool) bool {
	return b.Original == other.Original && b.digest == other.digest && b.reason == other.reason
}

// digestsOf are those of a server's tools, by their own names.
func digestsOf(cfg *config.Server, tools []Tool) map[string]string {
	out := make(map[string]string, len(tools))
	for _, t := range tools {
		out[t.Original] = newDefinition(cfg, t).digest()
	}
	return out
}

// split splits a server's tools into those whose definitions are as accepted, and the
// others.
func (p *acceptedTools) split(cfg *config.Server, tools []Tool, digests map[string]string) (kept []Tool, out []blockedTool) {
	for _, t := range tools {
		digest := digests[t.Original]
		known, ok := p.servers[cfg.Name][t.Original]
		why := ""
		switch {
		case p.problem != "":
			why = "its definition is not accepted: " + p.problem
		case !ok:
			why = "it is new, and its definition has not been accepted by the operator"
		case known.SHA256 != digest:
			why = "its definition has changed since the operator accepted it"
		default:
			kept = append(kept, t)
			continue
		}
		out = append(out, blockedTool{t, "the tool is disabled: " + why, digest, known.SHA256})
	}
	return kept, out
}

// PinKind is how a tool differs from what was accepted.
type PinKind string

// The first two disable the tool; of the third there is none to disable.
const (
	PinNew     PinKind = "new"
	PinChanged PinKind = "changed"
	PinRemoved PinKind = "removed"
)

// PinChange is a difference between what a pinned server offers and what the operator
// has accepted.
type PinChange struct {
	Server string
	Tool   string // the server's own name for it
	Kind   PinKind

	accepted, offered definition
}

// PinChanges returns the differences between the file of pins at path and all pinned servers that
// have been listed, by server in the configuration's order and then by tool.
func (c *Catalog) PinChanges(path string) []PinChange {
	accepted := readPinsFile(path)
	var out []PinChange
	for _, e := range c.pinnedEntries() {
		known := accepted.servers[e.cfg.Name]
		var changes []PinChange
		listed := map[string]bool{}
		for _, t := range e.allTools() {
			listed[t.Original] = true
			ch := PinChange{Server: e.cfg.Name, Tool: t.Original, Kind: PinNew, offered: newDefinition(e.cfg, t)}
			if p, ok := known[t.Original]; ok {
				if p.SHA256 == ch.offered.digest() {
					continue
				}
				ch.Kind, ch.accepted = PinChanged, p.Definition
			}
			changes = append(changes, ch)
		}
		for name, p := range known {
			if !listed[name] {
				changes = append(changes, PinChange{Server: e.cfg.Name, Tool: name, Kind: PinRemoved, accepted: p.Definition})
			}
		}
		slices.SortFunc(changes, func(a, b PinChange) int { return cmp.Compare(a.Tool, b.Tool) })
		out = append(out, changes...)
	}
	return out
}

// AcceptPins writes the definitions of all pinned servers that have been listed to the file at
// path, and enables the tools. The definitions of other servers in the file stay.
func (c *Catalog) AcceptPins(path string) error {
	listed := c.pinnedEntries()
	if len(listed) == 0 {
		return nil
	}
	before := readPinsFile(path)
	if before.problem != "" && before.problem != noPinsFile {
		return errors.New(before.problem + ": repair or remove it")
	}
	now := &acceptedTools{servers: map[string]map[string]acceptedTool{}}
	maps.Copy(now.servers, before.servers)
	for _, e := range listed {
		tools := map[string]acceptedTool{}
		for _, t := range e.allTools() {
			d := newDefinition(e.cfg, t)
			tools[t.Original] = acceptedTool{d.digest(), d}
		}
		now.servers[e.cfg.Name] = tools
	}
	if err := now.writeFile(path); err != nil {
		return err
	}
	c.setPins(now)
	return nil
}

// allTools is what the server offers and its configuration allows, accepted or not.
func (e serverEntry) allTools() []Tool {
	out := slices.Clone(e.usable)
	for _, b := range e.blocked {
		out = append(out, b.Tool)
	}
	return out
}

// Diff is the difference for an operator's terminal: lines that begin with "-" were
// accepted, lines with "+" are offered now, and what is the same is left out but for
// two lines around. Tools describe themselves as they like, so what is not printable
// is written as its code, and no line can pass for another.
func (ch PinChange) Diff() string {
	old, new := ch.accepted.printedLines(), ch.offered.printedLines()
	switch ch.Kind {
	case PinNew:
		old = nil
	case PinRemoved:
		new = nil
	}
	d := diffLines(old, new)
	if d == "" {
		return "  (what the file of accepted definitions shows is not what its digest stands for)\n"
	}
	return d
}

// printedLines is the definition to be read.
func (d definition) printedLines() []string {
	out := []string{"endpoint: " + d.Endpoint}
	if d.Title != "" {
		out = append(out, "title: "+d.Title)
	}
	out = append(out, "description:")
	for line := range strings.SplitSeq(d.Description, "\n") {
		out = append(out, "  "+line)
	}
	if d.Annotations != nil {
		text, _ := json.Marshal(d.Annotations) // four booleans
		out = append(out, fmt.Sprintf("annotations: %s", text))
	}
	for _, s := range []struct {
		name string
		raw  json.RawMessage
	}{{"input schema:", d.InputSchema}, {"output schema:", d.OutputSchema}} {
		var b bytes.Buffer
		if s.raw == nil || json.Indent(&b, canonicalJSON(s.raw), "  ", "  ") != nil {
			continue
		}
		out = append(out, s.name)
		out = append(out, strings.Split("  "+b.String(), "\n")...)
	}
	for i, line := range out {
		out[i] = escapeUnprintable(line)
	}
	return out
}

// escapeUnprintable writes what is not printable as its code: escape sequences move a
// terminal's cursor, and tag characters (U+E0000 …) say things that only a model
// reads.
func escapeUnprintable(s string) string {
	var b strings.Builder
	for _, r := range s {
		if strconv.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
	}
	return b.String()
}
