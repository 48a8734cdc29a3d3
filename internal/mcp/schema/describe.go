package schema

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxQuoted bounds the bytes of a value that a problem quotes.
const maxQuoted = 60

// String returns the types in words: "integer or null".
func (k kind) String() string {
	var names []string
	for _, one := range []struct {
		kind kind
		name string
	}{
		{text, "string"}, {number, "number"}, {integer, "integer"}, {boolean, "boolean"},
		{array, "array"}, {object, "object"}, {null, "null"},
	} {
		if k&one.kind == one.kind {
			names = append(names, one.name)
			k &^= one.kind
		}
	}
	if n := len(names); n > 1 {
		return strings.Join(names[:n-1], ", ") + " or " + names[n-1]
	}
	return strings.Join(names, "")
}

// describeValue returns a value in words: string "x", number 3.7, array of 2 items.
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

// literalOf returns a value as JSON, truncated if it is long.
func literalOf(v *value) string {
	if v.kind == text {
		return literalText(v.text)
	}
	return printable(string(v.raw), maxQuoted)
}

// literalText returns a string as JSON, truncated if it is long.
func literalText(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // models read it, not browsers
	_ = enc.Encode(truncate(s, maxQuoted))
	quoted := strings.TrimSpace(b.String())
	if len(s) > maxQuoted {
		return fmt.Sprintf("%s… (%d bytes)", quoted, len(s))
	}
	return quoted
}

// countOf returns n with what: "1 item" or "2 items".
func countOf(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// printable returns at most about n bytes of s on one line, because values and schemas are
// untrusted text that ends up in logs and prompts.
func printable(s string, n int) string {
	short := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(truncate(s, n), ""))
	if len(s) > n {
		return short + "…"
	}
	return short
}

// truncate returns at most n bytes of s, cut between characters.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
