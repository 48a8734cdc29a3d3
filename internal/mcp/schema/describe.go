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

// literalOf returns a value as JSON on one line, of which it shows at most maxQuoted bytes.
func literalOf(v *value) string {
	if v.kind == text {
		return literalText(v.text)
	}
	return printable(string(v.raw), maxQuoted)
}

// literalText returns a string as JSON. Of a string of more than maxQuoted bytes it shows the beginning, and the number
// of bytes.
func literalText(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // a model reads the text, not a browser
	_ = enc.Encode(truncate(s, maxQuoted))
	quoted := strings.TrimSpace(b.String())
	if len(s) > maxQuoted {
		return fmt.Sprintf("%s… (%d bytes)", quoted, len(s))
	}
	return quoted
}

// countOf returns n with the noun what, whose plural it forms with "s": "1 item" or "2 items".
func countOf(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// printable returns s for a log or a prompt, because s comes from an untrusted value or schema: at most n bytes, and
// "…" if there are more, as valid UTF-8, with a space in place of each control character.
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

// truncate returns the first n bytes of s, or some fewer, so that no character is cut.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
