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

// acceptedTools has the tool definitions that the operator has accepted. On a server with Pin, a tool with any other
// definition cannot be called. Otherwise a server could change a tool after the operator's review, without the operator
// noticing (CVE-2025-54136). An acceptedTools is never changed.
type acceptedTools struct {
	servers map[string]map[string]acceptedTool // by the server's name and the tool's original name
	problem string                             // why the file could not be read; "" if it was read
}

// acceptedTool is one accepted definition. A tool is accepted if the digest of its definition is SHA256. Definition
// serves only to show the operator what has changed.
type acceptedTool struct {
	SHA256     string     `json:"sha256"`
	Definition definition `json:"definition"`
}

// pinsFile is the JSON content of the file of accepted definitions.
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

// readPinsFile reads the accepted definitions from the file at path. It returns no error: if the file cannot be read,
// the result has a problem and no definitions, and the service runs without the tools of pinned servers.
func readPinsFile(path string) *acceptedTools {
	if path == "" {
		return &acceptedTools{problem: "there is no file of accepted definitions"}
	}
	data, err := readBounded(path, maxPins+1)
	var file pinsFile
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &acceptedTools{problem: noPinsFile}
	case err != nil:
		return &acceptedTools{problem: "the file of accepted definitions cannot be read"}
	case len(data) > maxPins:
		return &acceptedTools{problem: "the file of accepted definitions is too large"}
	case json.Unmarshal(data, &file) != nil, file.Version != pinsVersion:
		return &acceptedTools{problem: "the file of accepted definitions is damaged"}
	}
	return &acceptedTools{servers: file.Servers}
}

// readBounded returns at most the first limit bytes of the file at path.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// writeFile atomically replaces the file at path by the accepted definitions. A crash leaves either the old or the new
// file, and perhaps a temporary file beside it.
func (p *acceptedTools) writeFile(path string) error {
	data, err := json.MarshalIndent(pinsFile{pinsComment, pinsVersion, p.servers}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the accepted definitions: %w", err)
	}
	// CreateTemp uses mode 0600, which suits descriptions of tools that are confidential.
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
	reason   string // why it cannot be called
	digest   string // digest of its current definition
	accepted string // digest of its accepted definition; "" if there is none
}

// isSameAs reports whether other is the same tool with the same definition, blocked for the same reason.
func (b blockedTool) isSameAs(other blockedTool) bool {
	return b.Original == other.Original && b.digest == other.digest && b.reason == other.reason
}

// digestsOf returns the digests of the tools' definitions, by the tools' original names.
func digestsOf(cfg *config.Server, tools []Tool) map[string]string {
	digests := make(map[string]string, len(tools))
	for _, t := range tools {
		digests[t.Original] = newDefinition(cfg, t).digest()
	}
	return digests
}

// splitAccepted splits a server's tools into usable ones, whose definitions are accepted, and blocked ones. digests are
// those that digestsOf returns for the tools.
func (p *acceptedTools) splitAccepted(cfg *config.Server, tools []Tool, digests map[string]string) (usable []Tool, blocked []blockedTool) {
	for _, tool := range tools {
		digest := digests[tool.Original]
		reason := p.blockReason(toolID{cfg.Name, tool.Original}, digest)
		if reason == "" {
			usable = append(usable, tool)
			continue
		}
		accepted := p.servers[cfg.Name][tool.Original].SHA256
		blocked = append(blocked, blockedTool{Tool: tool, reason: "the tool is disabled: " + reason, digest: digest, accepted: accepted})
	}
	return usable, blocked
}

// blockReason returns why the tool cannot be called, or "" if it can. digest is that of the tool's current definition.
func (p *acceptedTools) blockReason(tool toolID, digest string) string {
	accepted, wasAccepted := p.servers[tool.server][tool.original]
	switch {
	case p.problem != "":
		return "its definition is not accepted: " + p.problem
	case !wasAccepted:
		return "it is new, and its definition has not been accepted by the operator"
	case accepted.SHA256 != digest:
		return "its definition has changed since the operator accepted it"
	}
	return ""
}

// PinKind says how a tool differs from its accepted definition.
type PinKind string

// The values of PinKind. New and changed tools cannot be called. A removed tool is no longer listed by the server, or
// no longer allowed by the configuration.
const (
	PinNew     PinKind = "new"
	PinChanged PinKind = "changed"
	PinRemoved PinKind = "removed"
)

// PinChange is a difference between a pinned server's tool and its accepted definition.
type PinChange struct {
	Server string
	Tool   string // its name on the server
	Kind   PinKind

	accepted definition // zero for a new tool
	offered  definition // zero for a removed tool
}

// PinChanges compares the tools of all pinned servers that have been listed with the accepted definitions in the file
// at path. It returns the differences by server in the configuration's order, and then by tool. If the file cannot be
// read, all tools count as new.
func (c *Catalog) PinChanges(path string) []PinChange {
	file := readPinsFile(path)
	var all []PinChange
	for _, entry := range c.pinnedEntries() {
		changes := entry.pinChanges(file.servers[entry.cfg.Name])
		slices.SortFunc(changes, func(a, b PinChange) int { return cmp.Compare(a.Tool, b.Tool) })
		all = append(all, changes...)
	}
	return all
}

// pinChanges returns the differences between the server's allowed tools and its accepted definitions, in any order.
// accepted has the definitions by the tools' original names.
func (e serverEntry) pinChanges(accepted map[string]acceptedTool) []PinChange {
	var changes []PinChange
	allowed := map[string]bool{}
	for _, tool := range e.allowedTools() {
		allowed[tool.Original] = true
		offered := newDefinition(e.cfg, tool)
		former, wasAccepted := accepted[tool.Original]
		kind := PinNew
		if wasAccepted {
			kind = PinChanged
		}
		if !wasAccepted || former.SHA256 != offered.digest() {
			changes = append(changes, PinChange{
				Server: e.cfg.Name, Tool: tool.Original, Kind: kind, accepted: former.Definition, offered: offered,
			})
		}
	}
	for name, former := range accepted {
		if !allowed[name] {
			changes = append(changes, PinChange{Server: e.cfg.Name, Tool: name, Kind: PinRemoved, accepted: former.Definition})
		}
	}
	return changes
}

// AcceptPins accepts the current tool definitions of all pinned servers that have been listed. It writes them to the
// file at path, in place of those servers' former definitions, and enables the tools. The definitions of other servers
// stay in the file. It returns an error if path is "", or if the file exists but cannot be read, or cannot be written.
// If no pinned server has been listed, it does nothing.
func (c *Catalog) AcceptPins(path string) error {
	listed := c.pinnedEntries()
	if len(listed) == 0 {
		return nil
	}
	before := readPinsFile(path)
	if before.problem != "" && before.problem != noPinsFile {
		return errors.New(before.problem + ": repair or remove it")
	}
	accepted := &acceptedTools{servers: map[string]map[string]acceptedTool{}}
	maps.Copy(accepted.servers, before.servers)
	for _, entry := range listed {
		tools := map[string]acceptedTool{}
		for _, tool := range entry.allowedTools() {
			current := newDefinition(entry.cfg, tool)
			tools[tool.Original] = acceptedTool{SHA256: current.digest(), Definition: current}
		}
		accepted.servers[entry.cfg.Name] = tools
	}
	if err := accepted.writeFile(path); err != nil {
		return err
	}
	c.setPins(accepted)
	return nil
}

// allowedTools returns the tools that the configuration allows, both usable and blocked ones.
func (e serverEntry) allowedTools() []Tool {
	tools := slices.Clone(e.usable)
	for _, b := range e.blocked {
		tools = append(tools, b.Tool)
	}
	return tools
}

// Diff returns the difference as text for an operator's terminal. Lines with "-" were accepted, and lines with "+" are
// offered now. Up to two unchanged lines precede and follow them. Servers choose the texts, so unprintable characters
// are escaped and every line is indented, so that no text can imitate another line.
func (ch PinChange) Diff() string {
	var accepted, offered []string
	if ch.Kind != PinNew {
		accepted = ch.accepted.printedLines()
	}
	if ch.Kind != PinRemoved {
		offered = ch.offered.printedLines()
	}
	if diff := diffLines(accepted, offered); diff != "" {
		return diff
	}
	// The digests differ although the definitions are equal, so one of them was edited in the file.
	return "  (what the file of accepted definitions shows is not what its digest stands for)\n"
}

// printedLines returns the definition, without its name, as lines for a terminal. Unprintable characters are escaped.
func (d definition) printedLines() []string {
	lines := []string{"endpoint: " + d.Endpoint}
	if d.Title != "" {
		lines = append(lines, "title: "+d.Title)
	}
	lines = append(lines, "description:")
	for line := range strings.SplitSeq(d.Description, "\n") {
		lines = append(lines, "  "+line)
	}
	if d.Annotations != nil {
		text, _ := json.Marshal(d.Annotations) // cannot fail: they are booleans
		lines = append(lines, fmt.Sprintf("annotations: %s", text))
	}
	lines = append(lines, schemaLines("input schema:", d.InputSchema)...)
	lines = append(lines, schemaLines("output schema:", d.OutputSchema)...)
	for i, line := range lines {
		lines[i] = escapeUnprintable(line)
	}
	return lines
}

// schemaLines returns heading, followed by the lines of the indented schema. It returns nil if schema is nil or not JSON.
func schemaLines(heading string, schema json.RawMessage) []string {
	var indented bytes.Buffer
	if schema == nil || json.Indent(&indented, canonicalJSON(schema), "  ", "  ") != nil {
		return nil
	}
	return append([]string{heading}, strings.Split("  "+indented.String(), "\n")...)
}

// escapeUnprintable returns s with escapes in place of unprintable characters. Otherwise escape sequences could move
// the terminal's cursor, and tag characters (U+E0000 …) would be visible to a model but not to the operator.
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
