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

// acceptedTools has the tool definitions that the operator has accepted. On a server with Pin, a
// tool with another definition cannot be called. Otherwise a server could change what the operator
// has reviewed without the operator noticing (CVE-2025-54136). An acceptedTools is never changed.
type acceptedTools struct {
	servers map[string]map[string]acceptedTool // by the server's name and the tool's own name
	problem string                             // the reason why the file was not read; "" if it was
}

// acceptedTool is one accepted definition. The digest decides; the definition is there to show the
// operator the difference.
type acceptedTool struct {
	SHA256     string     `json:"sha256"`
	Definition definition `json:"definition"`
}

// pinsFile is the content of the file of accepted definitions.
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

// readPinsFile reads the file at path. If that fails, it returns the problem: the service then
// runs without the tools of pinned servers.
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

// writeFile replaces the file at path atomically: a crash leaves the old or the new file.
func (p *acceptedTools) writeFile(path string) error {
	data, err := json.MarshalIndent(pinsFile{pinsComment, pinsVersion, p.servers}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the accepted definitions: %w", err)
	}
	// CreateTemp uses mode 0600: descriptions of tools may be confidential.
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
	reason   string // for the caller
	digest   string
	accepted string // the accepted digest; "" if there is none
}

// sameAs reports whether other is the same tool, blocked for the same reason.
func (b blockedTool) sameAs(other blockedTool) bool {
	return b.Original == other.Original && b.digest == other.digest && b.reason == other.reason
}

// digestsOf returns the digests of a server's tools, by the tools' own names.
func digestsOf(cfg *config.Server, tools []Tool) map[string]string {
	out := make(map[string]string, len(tools))
	for _, t := range tools {
		out[t.Original] = newDefinition(cfg, t).digest()
	}
	return out
}

// splitAccepted splits a server's tools into those whose definitions are accepted and the others.
func (p *acceptedTools) splitAccepted(cfg *config.Server, tools []Tool, digests map[string]string) (usable []Tool, blocked []blockedTool) {
	for _, tool := range tools {
		digest := digests[tool.Original]
		known, ok := p.servers[cfg.Name][tool.Original]
		reason := ""
		switch {
		case p.problem != "":
			reason = "its definition is not accepted: " + p.problem
		case !ok:
			reason = "it is new, and its definition has not been accepted by the operator"
		case known.SHA256 != digest:
			reason = "its definition has changed since the operator accepted it"
		default:
			usable = append(usable, tool)
			continue
		}
		blocked = append(blocked, blockedTool{tool, "the tool is disabled: " + reason, digest, known.SHA256})
	}
	return usable, blocked
}

// PinKind is the way in which a tool differs from its accepted definition.
type PinKind string

// The values of PinKind. New and changed tools cannot be called. A removed tool is only in the file.
const (
	PinNew     PinKind = "new"
	PinChanged PinKind = "changed"
	PinRemoved PinKind = "removed"
)

// PinChange is a difference between a tool of a pinned server and its accepted definition.
type PinChange struct {
	Server string
	Tool   string // its name on the server
	Kind   PinKind

	accepted, offered definition
}

// PinChanges returns the differences between the file of pins at path and all pinned servers that
// have been listed, by server in the configuration's order and then by tool.
func (c *Catalog) PinChanges(path string) []PinChange {
	accepted := readPinsFile(path)
	var out []PinChange
	for _, entry := range c.pinnedEntries() {
		known := accepted.servers[entry.cfg.Name]
		var changes []PinChange
		listed := map[string]bool{}
		for _, t := range entry.allTools() {
			listed[t.Original] = true
			ch := PinChange{Server: entry.cfg.Name, Tool: t.Original, Kind: PinNew, offered: newDefinition(entry.cfg, t)}
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
				changes = append(changes, PinChange{Server: entry.cfg.Name, Tool: name, Kind: PinRemoved, accepted: p.Definition})
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

// allTools returns the tools that the configuration allows, accepted or not.
func (e serverEntry) allTools() []Tool {
	out := slices.Clone(e.usable)
	for _, b := range e.blocked {
		out = append(out, b.Tool)
	}
	return out
}

// Diff returns the difference for an operator's terminal. Lines with "-" were accepted, lines with
// "+" are offered now, with two unchanged lines around each. Servers choose the texts, so
// unprintable characters are escaped and no line can look like another one.
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

// printedLines returns the definition as lines for a terminal.
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
	for _, raw := range []struct {
		name string
		raw  json.RawMessage
	}{{"input schema:", d.InputSchema}, {"output schema:", d.OutputSchema}} {
		var b bytes.Buffer
		if raw.raw == nil || json.Indent(&b, canonicalJSON(raw.raw), "  ", "  ") != nil {
			continue
		}
		out = append(out, raw.name)
		out = append(out, strings.Split("  "+b.String(), "\n")...)
	}
	for i, line := range out {
		out[i] = escapeUnprintable(line)
	}
	return out
}

// escapeUnprintable replaces unprintable characters by their escapes. Escape sequences could move
// a terminal's cursor, and tag characters (U+E0000 …) would be visible only to a model.
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
