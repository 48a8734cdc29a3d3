// Package schema holds what JSON Schema says about a value: it names everything that
// is wrong at once, and repairs what a language model merely wrote as text.
//
//	s, err := schema.Compile(tool.InputSchema)
//	args, problems := s.Check(args) // {"days":"3"} → {"days":3}
//	for _, p := range problems {
//		fmt.Println(p.Pointer, p.Detail) // /city missing required field: city
//	}
//
// Compile reads draft 2020-12, and draft-07 where $schema says so. The official test suite
// runs in the tests, which list the schemas of it that Compile refuses, and there values are also
// checked by the library google/jsonschema-go. At run time this package decides alone, for
// four reasons: the library stops at the first mistake; a schema that refers to itself
// overflows its stack, which ends the process; it has no bound on the alternatives that it
// tries; and it takes 19.99 for no multiple of 0.01.
//
// Schemas and values come from outside. Nothing is fetched: a reference to elsewhere is
// an error of Compile, as is one that leads back to itself without getting any deeper
// into the value. The size of a schema, the regular expressions in it, and the work that
// one value may make are bounded. A Schema may be used concurrently.
package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Bounds of a schema and of a value.
const (
	maxSchema   = 256 << 10 // bytes of a schema
	maxNodes    = 8192      // subschemas
	maxDepth    = 64        // levels of nesting, of schemas and of values
	maxValues   = 200_000   // values within a value
	maxSteps    = 500_000   // of one Check: some 50 ms at the very worst
	maxProblems = 20        // that are named
)

// Problem is one thing that is wrong with a value. Pointer (RFC 6901) is where; a field
// that is missing is where it should be. Detail says what was expected and what was
// there: valid UTF-8 on one line, at most some 400 bytes. It quotes the value.
type Problem struct {
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}

// Schema is a compiled JSON Schema.
type Schema struct {
	root   *node
	draft7 bool
	notes  bool // it asks what other keywords have looked at (unevaluated…)
}

// Compile reads a schema. The error says, on one line, why it cannot be used.
func Compile(raw json.RawMessage) (*Schema, error) {
	if len(raw) > maxSchema {
		return nil, fmt.Errorf("it is larger than %d bytes", maxSchema)
	}
	tree, wrong := parse(raw, lastWins)
	if wrong != nil {
		return nil, errors.New("it " + wrong.Detail)
	}
	c := compiler{patterns: map[string]*pattern{}, nodes: map[*value]*node{}, byID: map[string]*value{}, anchors: map[string]*value{}}
	root, err := c.compile(tree)
	if err != nil {
		return nil, err
	}
	return &Schema{root: root, draft7: c.draft7, notes: c.notes}, nil
}

// Check reports whether a value fits. Where it does not, strings in it that hold the JSON
// text of what is asked for are taken for that ("3" for 3, "[1]" for [1]), if that makes
// it fit, and nothing else of it is changed: a value that fits comes back byte by byte.
// With problems it comes back as it was given.
func (s *Schema) Check(raw json.RawMessage) (json.RawMessage, []Problem) {
	v, wrong := parse(raw, twiceIsWrong)
	if wrong != nil {
		return raw, []Problem{*wrong}
	}
	w := walk{schema: s}
	asGiven := w.check(s.root, v, nil)
	if asGiven.ok() && !w.over {
		return raw, nil
	}
	better := w.repair(s.root, v)
	// What could be repaired is no problem, although the rest is.
	problems := w.problems(w.check(s.root, better, nil))
	switch {
	case problems == nil:
		return better.render(nil), nil
	case slices.ContainsFunc(problems, func(p Problem) bool { return !v.has(p.Pointer) }):
		// It lies within a string: one schema takes that for what another does not.
		problems = w.problems(asGiven)
	}
	return raw, problems
}

// Validate is what is wrong with a value as it is.
func (s *Schema) Validate(raw json.RawMessage) []Problem {
	v, wrong := parse(raw, twiceIsWrong)
	if wrong != nil {
		return []Problem{*wrong}
	}
	w := walk{schema: s}
	return w.problems(w.check(s.root, v, nil))
}
