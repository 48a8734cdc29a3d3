package schema

import (
	"fmt"
	"slices"
	"strings"
)

// category classifies a problem, so that reportClosest can rank the alternatives of anyOf and oneOf.
type category uint8

const (
	valueMismatch category = iota // any problem not listed below
	typeMismatch
	enumMismatch // the value is not the one of const, or none of those of enum
	unexpectedField
	missingField
)

// violation is a Problem with the additional fields by which reportClosest ranks alternatives. pointer, detail and
// depth are empty if the validator was quiet or had no steps left (see validator.report).
type violation struct {
	pointer  string
	detail   string
	category category
	depth    int    // location.depth of the place that pointer names
	kinds    kind   // for a typeMismatch: the expected types
	name     string // for a missingField: the field's name, or "" if any one of several fields would do
}

// reportType adds a problem to r: got, the value at loc, has none of the types in want. If want is 0, the schema allows
// no value at all.
func (w *validator) reportType(r *result, loc *location, want kind, got *value) {
	w.report(r, loc, violation{category: typeMismatch, kinds: want}, func() string {
		expectation := "expected " + want.String()
		if want == 0 {
			expectation = "nothing is allowed here"
		}
		return expectation + ", got " + describeValue(got)
	})
}

// reportMissing adds a problem to r: the object at loc lacks the field name. reason is appended to the problem's text.
// It must be empty or begin with a space.
func (w *validator) reportMissing(r *result, loc *location, name, reason string) {
	w.report(r, loc.member(name), violation{category: missingField, name: printable(name, 80)}, func() string {
		return "missing required field: " + printable(name, 80) + reason
	})
}

// reportMissingOneOf adds a problem to r: the object at loc has none of the fields in names, one of which is required.
// It may sort names.
func (w *validator) reportMissingOneOf(r *result, loc *location, names []string) {
	w.report(r, loc, violation{category: missingField}, func() string {
		slices.Sort(names)
		return "missing required field: one of " + printable(strings.Join(slices.Compact(names), ", "), 200)
	})
}

// reportUnexpected adds a problem to r: v, the object at loc, has the field name, which the schema n does not allow.
// The problem's text suggests the most similar property of n that v does not have yet.
func (w *validator) reportUnexpected(r *result, loc *location, name string, n *node, v *value) {
	w.report(r, loc.member(name), violation{category: unexpectedField}, func() string {
		isPresent := func(property string) bool { return v.member(property) != nil }
		return "unexpected field: " + printable(name, 80) + suggestion(w.similarName(name, n.names, isPresent))
	})
}

// problemsOf converts r, the result for the whole value, to a list of Problems without duplicates. It returns nil if
// the value is valid. If the validator has run out of steps, the only Problem says that the value cannot be checked.
func (w *validator) problemsOf(r result) []Problem {
	if w.outOfSteps {
		return []Problem{{Detail: "cannot be checked: the schema has too many alternatives for a value of this size"}}
	}
	var problems []Problem
	for _, found := range r.problems {
		problem := Problem{Pointer: found.pointer, Detail: found.detail}
		if !slices.Contains(problems, problem) { // several schemas of an allOf may report the same problem
			problems = append(problems, problem)
		}
	}
	if r.more {
		problems = append(problems, Problem{Detail: fmt.Sprintf("and more than these %d", len(problems))})
	}
	return problems
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
