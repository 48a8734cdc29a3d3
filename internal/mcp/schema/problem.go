package schema

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// category is the kind of a problem, by which reportClosest ranks alternatives.
type category uint8

const (
	valueMismatch category = iota
	typeMismatch
	enumMismatch // of enum or const
	unexpectedField
	missingField
)

// violation is a problem with the properties by which reportClosest ranks alternatives.
type violation struct {
	at, detail string
	category   category
	depth      int    // levels of the location below the checked value
	kinds      kind   // of a typeMismatch: the expected types
	name       string // of a missingField: the name
}

// reportType reports a value of the wrong type. No type at all means that the schema is false.
func (w *validator) reportType(r *result, at *location, want kind, got *value) {
	w.report(r, at, violation{category: typeMismatch, kinds: want}, func() string {
		if want == 0 {
			return "nothing is allowed here, got " + describeValue(got)
		}
		return "expected " + want.String() + ", got " + describeValue(got)
	})
}

// reportMissing reports that the object at at lacks a field. why is added to the text.
func (w *validator) reportMissing(r *result, at *location, name, why string) {
	here := location{up: at, name: name}
	w.report(r, &here, violation{category: missingField, name: printable(name, 80)}, func() string {
		return "missing required field: " + printable(name, 80) + why
	})
}

// reportMissingOneOf reports an object that has none of several fields, of which each alternative
// requires one.
func (w *validator) reportMissingOneOf(r *result, at *location, names []string) {
	w.report(r, at, violation{category: missingField}, func() string {
		slices.Sort(names)
		return "missing required field: one of " + printable(strings.Join(slices.Compact(names), ", "), 200)
	})
}

// reportUnexpected reports a field that the schema n does not allow, and suggests a similar field that
// the object does not have yet.
func (w *validator) reportUnexpected(r *result, here *location, name string, n *node, in *value) {
	w.report(r, here, violation{category: unexpectedField}, func() string {
		detail := "unexpected field: " + printable(name, 80)
		taken := func(other string) bool { return in.member(other) != nil }
		if meant := w.similarName(name, n.names, taken); meant != "" {
			detail += "; did you mean " + literalText(meant) + "?"
		}
		return detail
	})
}

// problemsOf returns the problems of the whole value, or nil if it is valid.
func (w *validator) problemsOf(r result) []Problem {
	if w.over {
		return []Problem{{"", "cannot be checked: the schema has too many alternatives for a value of this size"}}
	}
	var out []Problem
	for _, f := range r.problems {
		// Two schemas of an allOf may report the same problem.
		if p := (Problem{f.at, f.detail}); !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	if r.more {
		out = append(out, Problem{"", fmt.Sprintf("and more than these %d", len(out))})
	}
	return out
}

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

// location is the place of a value within the checked value: a member or an item of the value at
// up. nil is the checked value itself. Its pointer is computed only if there is a problem.
type location struct {
	up    *location
	name  string // of a member
	index int    // of an item
	item  bool
}

// maxPointer bounds the bytes of a pointer in a Problem.
const maxPointer = 512

// depth returns the number of levels below the checked value.
func (s *location) depth() int {
	n := 0
	for ; s != nil; s = s.up {
		n++
	}
	return n
}

// pointer returns the JSON pointer (RFC 6901) of the location.
func (s *location) pointer() string {
	var b strings.Builder
	s.writePointer(&b)
	return truncate(b.String(), maxPointer)
}

// pointerEscaper escapes a member's name for a JSON pointer (RFC 6901 section 3).
var pointerEscaper = strings.NewReplacer("~", "~0", "/", "~1")

// writePointer writes the pointer of the location, from the root down.
func (s *location) writePointer(b *strings.Builder) {
	if s == nil {
		return
	}
	s.up.writePointer(b)
	b.WriteByte('/')
	if s.item {
		b.WriteString(strconv.Itoa(s.index))
		return
	}
	_, _ = pointerEscaper.WriteString(b, s.name)
}
