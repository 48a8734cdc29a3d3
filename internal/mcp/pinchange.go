package mcp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

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

// PinChanges are the differences of all pinned servers that have been listed, by
// server in the configuration's order and then by tool.
func (c *Client) PinChanges() []PinChange {
	accepted := readPins(c.opts.Pins)
	var out []PinChange
	for _, e := range c.names.pinned() {
		known := accepted.servers[e.cfg.Name]
		var changes []PinChange
		listed := map[string]bool{}
		for _, t := range e.offered() {
			listed[t.Original] = true
			ch := PinChange{Server: e.cfg.Name, Tool: t.Original, Kind: PinNew, offered: define(e.cfg, t)}
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

// AcceptPins writes the definitions of all pinned servers that have been listed to
// Options.Pins, and uses them. What was accepted of other servers stays.
func (c *Client) AcceptPins() error {
	listed := c.names.pinned()
	if len(listed) == 0 {
		return nil
	}
	before := readPins(c.opts.Pins)
	if before.problem != "" && before.problem != nothingAccepted {
		return errors.New(before.problem + ": repair or remove it")
	}
	now := &pins{servers: map[string]map[string]pin{}}
	maps.Copy(now.servers, before.servers)
	for _, e := range listed {
		tools := map[string]pin{}
		for _, t := range e.offered() {
			d := define(e.cfg, t)
			tools[t.Original] = pin{d.digest(), d}
		}
		now.servers[e.cfg.Name] = tools
	}
	if err := now.write(c.opts.Pins); err != nil {
		return err
	}
	c.names.pin(now)
	return nil
}

// offered is what the server offers and its configuration allows, accepted or not.
func (e entry) offered() []Tool {
	out := slices.Clone(e.kept)
	for _, b := range e.barred {
		out = append(out, b.Tool)
	}
	return out
}

// Diff is the difference for an operator's terminal: lines that begin with "-" were
// accepted, lines with "+" are offered now, and what is the same is left out but for
// two lines around. Tools describe themselves as they like, so what is not printable
// is written as its code, and no line can pass for another.
func (ch PinChange) Diff() string {
	old, new := ch.accepted.lines(), ch.offered.lines()
	switch ch.Kind {
	case PinNew:
		old = nil
	case PinRemoved:
		new = nil
	}
	d := lineDiff(old, new)
	if d == "" {
		return "  (what the file of accepted definitions shows is not what its digest stands for)\n"
	}
	return d
}

// lines is the definition to be read.
func (d definition) lines() []string {
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
		if s.raw == nil || json.Indent(&b, canonical(s.raw), "  ", "  ") != nil {
			continue
		}
		out = append(out, s.name)
		out = append(out, strings.Split("  "+b.String(), "\n")...)
	}
	for i, line := range out {
		out[i] = visible(line)
	}
	return out
}

// visible writes what is not printable as its code: escape sequences move a
// terminal's cursor, and tag characters (U+E0000 …) say things that only a model
// reads.
func visible(s string) string {
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
