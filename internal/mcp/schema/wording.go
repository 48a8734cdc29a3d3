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

// String is the types in words: "integer or null".
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

// describe is what a value is: string "x", number 3.7, array of 2 items.
func describe(v *value) string {
	switch v.kind {
	case text:
		return "string " + literal(v)
	case integer, fraction:
		return "number " + literal(v)
	case boolean:
		return literal(v)
	case array:
		return "array of " + counted(len(v.items), "item")
	case object:
		return "object with " + counted(len(v.items), "field")
	}
	return "null"
}

// literal is a value as JSON, cut where it is long.
func literal(v *value) string {
	if v.kind == text {
		return literalText(v.text)
	}
	return printable(string(v.raw), maxQuoted)
}

// literalText is a string as JSON, cut where it is long.
func literalText(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // a model reads it
	_ = enc.Encode(cut(s, maxQuoted))
	quoted := strings.TrimSpace(b.String())
	if len(s) > maxQuoted {
		return fmt.Sprintf("%s… (%d bytes)", quoted, len(s))
	}
	return quoted
}

// printable is s on one line, at most some n bytes of it.
func printable(s string, n int) string {
	short := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(cut(s, n), ""))
	if len(s) > n {
		return short + "…"
	}
	return short
}

// cut is at most n bytes of s, ending with a whole character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
