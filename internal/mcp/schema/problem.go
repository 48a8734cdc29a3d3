package schema

import (
	"fmt"
	"slices"
	"strings"
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

// reportUnexpected reports a field that the schema does not allow, and suggests a similar field that
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
	if w.outOfSteps {
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

// Problem is one reason why a value is invalid. Pointer (RFC 6901) is the place; for a missing
// field, the place where it should be. Detail says what was expected and what was found. It is
// valid UTF-8 on one line, about 400 bytes at most, and may quote the value.
type Problem struct {
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}
