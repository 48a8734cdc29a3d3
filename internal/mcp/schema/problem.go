package schema

import (
	"fmt"
	"slices"
	"strings"
)

// category is the kind of a problem, by which reportClosest ranks alternatives.
type category uint8

const (
	valueMismatch category = iota // of any keyword without a category of its own
	typeMismatch
	enumMismatch // of enum or const
	unexpectedField
	missingField
)

// violation is a problem with the fields by which reportClosest ranks alternatives. pointer, detail and depth are
// empty if the validator was quiet (see validator).
type violation struct {
	pointer  string
	detail   string
	category category
	depth    int    // levels of the location below the checked value
	kinds    kind   // of a typeMismatch: the expected types
	name     string // of a missingField: the name of the field, or "" if one of several fields is required
}

// reportType adds to r that got, the value at loc, has the wrong type. want has the expected types; 0 means that the
// schema allows no value.
func (w *validator) reportType(r *result, loc *location, want kind, got *value) {
	w.report(r, loc, violation{category: typeMismatch, kinds: want}, func() string {
		if want == 0 {
			return "nothing is allowed here, got " + describeValue(got)
		}
		return "expected " + want.String() + ", got " + describeValue(got)
	})
}

// reportMissing adds to r that the object at loc lacks the field name. The text ends with reason, which begins with a
// space or is empty.
func (w *validator) reportMissing(r *result, loc *location, name, reason string) {
	w.report(r, loc.member(name), violation{category: missingField, name: printable(name, 80)}, func() string {
		return "missing required field: " + printable(name, 80) + reason
	})
}

// reportMissingOneOf adds to r that the object at loc has none of the fields in names. Each alternative requires one
// of them. It sorts names.
func (w *validator) reportMissingOneOf(r *result, loc *location, names []string) {
	w.report(r, loc, violation{category: missingField}, func() string {
		slices.Sort(names)
		return "missing required field: one of " + printable(strings.Join(slices.Compact(names), ", "), 200)
	})
}

// reportUnexpected adds to r that v, the object at loc, has a field that the schema n does not allow. The text suggests
// a similar name among n's properties, except those that v has.
func (w *validator) reportUnexpected(r *result, loc *location, name string, n *node, v *value) {
	w.report(r, loc.member(name), violation{category: unexpectedField}, func() string {
		detail := "unexpected field: " + printable(name, 80)
		isPresent := func(property string) bool { return v.member(property) != nil }
		if similar := w.similarName(name, n.names, isPresent); similar != "" {
			detail += "; did you mean " + literalText(similar) + "?"
		}
		return detail
	})
}

// problemsOf returns the problems in r, the result for the whole value, without duplicates, or nil if the value is
// valid. If the steps have run out, the only problem is that the value cannot be checked.
func (w *validator) problemsOf(r result) []Problem {
	if w.outOfSteps {
		return []Problem{{"", "cannot be checked: the schema has too many alternatives for a value of this size"}}
	}
	var out []Problem
	for _, found := range r.problems {
		// Several schemas of an allOf may report the same problem.
		if p := (Problem{found.pointer, found.detail}); !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	if r.more {
		out = append(out, Problem{"", fmt.Sprintf("and more than these %d", len(out))})
	}
	return out
}

// Problem is one reason why a value is invalid.
type Problem struct {
	// Pointer is the JSON pointer (RFC 6901) of the invalid value, or of a missing field as if the object had it.
	// It is "" for the whole value, and truncated to 512 bytes.
	Pointer string `json:"pointer"`
	// Detail says what was expected and what was found. It is valid UTF-8 on one line, about 400 bytes at most, and
	// may quote the value.
	Detail string `json:"detail"`
}
