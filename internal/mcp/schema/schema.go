// Package schema validates values against JSON Schema. It reports all problems at once, and repairs
// values that a language model wrote as strings.
//
//	s, err := schema.Compile(tool.InputSchema)
//	args, problems := s.Check(args) // {"days":"3"} → {"days":3}
//	for _, p := range problems {
//		fmt.Println(p.Pointer, p.Detail) // /city missing required field: city
//	}
//
// Compile supports draft 2020-12. A schema whose $schema names draft-07, draft-06 or draft-04 is treated as draft-07.
// The tests run the official test suite, and list the schemas in it that Compile refuses. They also compare the results
// with those of the library google/jsonschema-go. The library is not used at run time, for four reasons: it stops at
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
// a value and the nodes together, and counts its steps (validate.go). It returns a list of violations; callers
// get them as Problems, without the fields that only serve to choose among alternatives (problem.go). repair.go uses
// the same validator to find out whether a repaired value would be valid. describe.go and suggestion.go write the
// texts, whose reader is usually the model that has to correct its call.
package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Compile compiles a schema. The error says on one line why the schema cannot be used. Its text calls
// the schema "it", so callers write the name of the schema before the error.
func Compile(raw json.RawMessage) (*Schema, error) {
	if len(raw) > maxSchema {
		return nil, fmt.Errorf("it is larger than %d bytes", maxSchema)
	}
	tree, problem := parseJSON(raw, lastDuplicateWins)
	if problem != nil {
		return nil, errors.New("it " + problem.Detail)
	}
	c := compiler{patterns: map[string]*pattern{}, nodes: map[*value]*node{}, byID: map[string]*value{}, anchors: map[string]*value{}}
	root, err := c.compile(tree)
	if err != nil {
		return nil, err
	}
	return &Schema{root: root, draft7: c.draft7, tracksEvaluated: c.tracksEvaluated}, nil
}

// Check validates a value. A valid value is returned unchanged, with nil problems.
//
// A language model may write a string that contains the JSON text of what the schema requires: "3" for 3, "[1]"
// for [1]. If replacing these strings makes the value valid, Check returns the repaired value and nil problems. All
// other bytes of the value stay as they are.
//
// If the value remains invalid, Check returns it unrepaired, with its problems (at most maxProblems, and a last one
// that says that there are more). Problems that a repair would solve are not among them, except where a problem is
// within a repaired string. A value that cannot be checked within maxSteps has one problem that says so.
func (s *Schema) Check(raw json.RawMessage) (json.RawMessage, []Problem) {
	v, problem := parseJSON(raw, refuseDuplicates)
	if problem != nil {
		return raw, []Problem{*problem}
	}
	check := validator{schema: s}
	original := check.validate(s.root, v, nil)
	if original.isValid() && !check.outOfSteps {
		return raw, nil
	}
	// The repair uses the same validator, so that it shares the limit maxSteps with the checks before and after it.
	repaired := check.repair(s.root, v)
	problems := check.problemsOf(check.validate(s.root, repaired, nil))
	switch {
	case problems == nil:
		return repaired.appendJSON(nil), nil
	case slices.ContainsFunc(problems, func(p Problem) bool { return !v.hasLocation(p.Pointer) }):
		// The pointer leads into a value that is a string in the original: one schema (of an allOf, for example)
		// accepts the repair and another does not. The caller knows only the original value, so report its problems.
		problems = check.problemsOf(original)
	}
	return raw, problems
}

// Validate returns the problems of a value, or nil if the value is valid. Unlike Check, it repairs nothing, so it also
// reports the problems that a repair would solve.
func (s *Schema) Validate(raw json.RawMessage) []Problem {
	v, problem := parseJSON(raw, refuseDuplicates)
	if problem != nil {
		return []Problem{*problem}
	}
	w := validator{schema: s}
	return w.problemsOf(w.validate(s.root, v, nil))
}
