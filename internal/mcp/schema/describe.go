package schema

import (
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/mcp/wire"
)

// maxQuoted is the maximum number of a value's bytes that a problem's text quotes.
const maxQuoted = 60

// String lists the types in words, such as "integer or null".
func (k kind) String() string {
	var names []string
	for _, named := range []struct {
		kind kind
		name string
	}{
		{text, "string"}, {number, "number"}, {integer, "integer"}, {boolean, "boolean"}, // number includes integer
		{array, "array"}, {object, "object"}, {null, "null"},
	} {
		if k&named.kind == named.kind {
			names = append(names, named.name)
			k &^= named.kind
		}
	}
	if len(names) == 0 {
		return ""
	}
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// describeValue describes a value in words: string "x", number 3.7, array of 2 items.
func describeValue(v *value) string {
	switch v.kind {
	case text:
		return "string " + literalOf(v)
	case integer, fraction:
		return "number " + literalOf(v)
	case boolean:
		return literalOf(v)
	case array:
		return "array of " + countOf(len(v.items), "item")
	case object:
		return "object with " + countOf(len(v.items), "field")
	}
	return "null"
}

// literalOf returns a value as JSON on one line, cut after maxQuoted bytes.
func literalOf(v *value) string {
	if v.kind == text {
		return literalText(v.text)
	}
	return printable(string(v.raw), maxQuoted)
}

// literalText returns s as a JSON string. If s is longer than maxQuoted bytes, the result has only its beginning,
// followed by the length of s.
func literalText(s string) string {
	var encoded strings.Builder
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)                    // a model reads the text, not a browser
	_ = encoder.Encode(wire.Truncate(s, maxQuoted)) // cannot fail for a string
	quoted := strings.TrimSpace(encoded.String())
	if len(s) > maxQuoted {
		return fmt.Sprintf("%s… (%d bytes)", quoted, len(s))
	}
	return quoted
}

// countOf returns n followed by noun, in the plural unless n is 1: "1 item" or "2 items". It forms the plural by adding
// an "s".
func countOf(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// printable makes s, which may come from an untrusted value or schema, safe for a log or a prompt. It returns at most
// the first n bytes, followed by "…" if s is longer. The result is valid UTF-8, and has a space in place of each
// control character.
func printable(s string, n int) string {
	short := wire.Printable(wire.Truncate(s, n), n)
	if len(s) > n {
		return short + "…"
	}
	return short
}
