// Package schema validates values against JSON Schema. It reports all problems at once, and repairs
// values that a language model wrote as strings.
//
//	s, err := schema.Compile(tool.InputSchema)
//	args, problems := s.Check(args) // {"days":"3"} → {"days":3}
//	for _, p := range problems {
//		fmt.Println(p.Pointer, p.Detail) // /city missing required field: city
//	}
//
// Compile supports draft 2020-12, and draft-07 for schemas whose $schema names it or an earlier draft. The tests run the
// official test suite, and list the schemas of it that Compile refuses. They also compare with the
// library google/jsonschema-go. The library is not used at run time, for four reasons: it stops at
// the first problem; a schema that refers to itself overflows its stack, which ends the process; it
// does not bound the alternatives that it tries; and it does not accept 19.99 as a multiple of 0.01.
//
// Schemas and values are untrusted. Nothing is fetched: a reference to another document is an error
// of Compile, and so is a reference that leads back to itself for the same value. The size of a
// schema, its regular expressions, and the work for one value are bounded. A Schema may be used
// concurrently.
//
// Compile parses the schema to a tree of values (parse.go), makes a node of each schema in the tree
// and resolves the references between them (compile.go, reference.go). A validator then goes through
// a value and the nodes together, and counts its steps (validate.go). What it finds is a list of
// violations; the fields that are only needed to choose among alternatives are not in a Problem
// (problem.go). repair.go uses the same validator to try whether another value would be valid.
// describe.go and suggestion.go write the texts, whose reader is usually the model that has to
// correct its call.
package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Compile compiles a schema. The error says on one line why the schema cannot be used; it begins
// with "it", so that callers can put the name of the schema before it.
func Compile(raw json.RawMessage) (*Schema, error) {
	if len(raw) > maxSchema {
		return nil, fmt.Errorf("it is larger than %d bytes", maxSchema)
	}
	tree, wrong := parseJSON(raw, lastDuplicateWins)
	if wrong != nil {
		return nil, errors.New("it " + wrong.Detail)
	}
	c := compiler{patterns: map[string]*pattern{}, nodes: map[*value]*node{}, byID: map[string]*value{}, anchors: map[string]*value{}}
	root, err := c.compile(tree)
	if err != nil {
		return nil, err
	}
	return &Schema{root: root, draft7: c.draft7, tracksEvaluated: c.tracksEvaluated}, nil
}

// Check validates a value and returns its problems. If strings in an invalid value contain the
// JSON text of what the schema requires ("3" for 3, "[1]" for [1]) and replacing them makes the
// value valid, Check returns the repaired value. It changes nothing else: a valid value, and one
// with problems, is returned byte by byte.
func (s *Schema) Check(raw json.RawMessage) (json.RawMessage, []Problem) {
	v, wrong := parseJSON(raw, refuseDuplicates)
	if wrong != nil {
		return raw, []Problem{*wrong}
	}
	check := validator{schema: s}
	original := check.validate(s.root, v, nil)
	if original.isValid() && !check.outOfSteps {
		return raw, nil
	}
	// The same validator continues, so that the repair and the checks share one maxSteps.
	repaired := check.repair(s.root, v)
	// Problems that could be repaired are not reported, even if the value has others.
	problems := check.problemsOf(check.validate(s.root, repaired, nil))
	switch {
	case problems == nil:
		return repaired.appendJSON(nil), nil
	case slices.ContainsFunc(problems, func(p Problem) bool { return !v.hasLocation(p.Pointer) }):
		// A problem is within a repaired string, which one schema accepts and another does
		// not: report the problems of the original value.
		problems = check.problemsOf(original)
	}
	return raw, problems
}

// Validate returns the problems of a value, or nil if it is valid. It does not repair the value.
func (s *Schema) Validate(raw json.RawMessage) []Problem {
	v, wrong := parseJSON(raw, refuseDuplicates)
	if wrong != nil {
		return []Problem{*wrong}
	}
	w := validator{schema: s}
	return w.problemsOf(w.validate(s.root, v, nil))
}
