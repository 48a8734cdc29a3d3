// Package schema validates JSON values against JSON Schema. It reports all problems at once, and repairs values that a
// language model wrote as strings.
//
//	s, err := schema.Compile(tool.InputSchema)
//	args, problems := s.Check(args) // {"days":"3"} → {"days":3}
//	for _, p := range problems {
//		fmt.Println(p.Pointer, p.Detail) // /city missing required field: city
//	}
//
// Compile supports draft 2020-12. It treats a schema whose $schema names draft-07, draft-06 or draft-04 as draft-07.
// The tests run the official test suite and list the schemas in it that Compile rejects. They also compare the results
// with those of the library google/jsonschema-go. The library is not used at run time, for four reasons. It stops at
// the first problem. A schema that refers to itself overflows its stack, which ends the process. It does not limit how
// many alternatives it tries. It does not accept 19.99 as a multiple of 0.01.
//
// Schemas and values are untrusted. Nothing is fetched: Compile rejects a reference to another document, and also a
// reference that leads back to itself for the same value. The size of a schema, its regular expressions, and the work
// for one value are limited. A Schema may be used concurrently.
//
// Compile parses the schema to a tree of values (parse.go), makes a node of each schema in the tree and resolves the
// references between the nodes (compile.go, reference.go). A validator then walks a value and the nodes together, and
// counts its steps (validate.go). It collects violations and returns them as Problems, without the fields that only
// serve to choose among alternatives (problem.go). repair.go uses the same validator to find out whether a repaired
// value would be valid. describe.go and suggestion.go write the problems' texts, which are usually read by the model
// that has to correct its tool call.
package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Compile compiles a schema. The error says on one line why the schema cannot be used. Its text calls the schema "it",
// so callers should name the schema before it.
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

// Check validates raw. If raw is valid, Check returns it unchanged, with nil problems.
//
// A language model may write a string that contains the JSON text of the required value: "3" for 3, or "[1]" for [1].
// If replacing such strings makes the value valid, Check returns the repaired value and nil problems. All other bytes
// stay as they are.
//
// If the value remains invalid, Check returns it unrepaired, with at most maxProblems problems and a last one if there
// are more. It leaves out problems that a repair would solve, unless a problem lies within a repaired string. If the
// check needs more than maxSteps, the only problem says so.
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
	// Use the same validator for the repair, so that maxSteps covers the repair and both checks together.
	repaired := check.repair(s.root, v)
	problems := check.problemsOf(check.validate(s.root, repaired, nil))
	switch {
	case problems == nil:
		return repaired.appendJSON(nil), nil
	case slices.ContainsFunc(problems, func(p Problem) bool { return !v.hasLocation(p.Pointer) }):
		// The pointer refers to a part of a repaired string: one schema (of an allOf, for example) accepts the repair
		// and another does not. The model knows only the original value, so report the problems of that.
		problems = check.problemsOf(original)
	}
	return raw, problems
}

// Validate returns the problems of raw, or nil if it is valid. Unlike Check, it repairs nothing, so it also reports the
// problems that a repair would solve.
func (s *Schema) Validate(raw json.RawMessage) []Problem {
	v, problem := parseJSON(raw, refuseDuplicates)
	if problem != nil {
		return []Problem{*problem}
	}
	w := validator{schema: s}
	return w.problemsOf(w.validate(s.root, v, nil))
}
