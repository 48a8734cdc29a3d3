// Package output checks answers that must be JSON of a given schema.
//
//	s, err := output.Compile(request.OutputSchema)
//	value, problems := s.Check(answer)
//	if problems != nil {
//		messages = append(messages, llm.Message{Role: llm.User, Text: output.RepairPrompt(problems)})
//	}
//
// A Fence removes the code fence that many models write around JSON, while the text is streamed.
// A Schema may be used concurrently. A Fence is for one goroutine.
package output

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/mcp/schema"
)

// MaxSchema is how many bytes a schema may have.
const MaxSchema = 64 << 10

// Problem is one violation of a schema.
type Problem = schema.Problem

// Schema is a compiled schema for answers.
type Schema struct{ compiled *schema.Schema }

// InvalidError says why a schema cannot be used. Pointer is a JSON pointer to the place in the schema, or "" if that is
// unknown or the whole schema. Detail is a clause that begins with "it".
type InvalidError struct{ Pointer, Detail string }

func (e *InvalidError) Error() string { return strings.TrimPrefix(e.Pointer+": "+e.Detail, ": ") }

// Compile compiles a JSON Schema of at most MaxSchema bytes, of draft 2020-12 or, if $schema says so, of draft-07. An
// error is an *InvalidError.
func Compile(raw json.RawMessage) (*Schema, error) {
	if len(raw) > MaxSchema {
		return nil, &InvalidError{Detail: fmt.Sprintf("it is larger than %d bytes", MaxSchema)}
	}
	compiled, err := schema.Compile(raw)
	if err != nil {
		return nil, &InvalidError{Detail: err.Error()}
	}
	if wrong := schema.CheckTypes(raw); wrong != nil { // schema.Compile ignores an unknown type
		return nil, &InvalidError{wrong.Pointer, "it " + wrong.Detail}
	}
	return &Schema{compiled}, nil
}

// Check checks an answer against the schema. It returns either the answer's JSON value, without white space between
// tokens, or what is wrong with the answer. Exactly one of the results is nil.
func (s *Schema) Check(text string) (value json.RawMessage, problems []Problem) {
	if strings.TrimSpace(text) == "" {
		return nil, []Problem{{Detail: "the answer is empty"}}
	}
	if problems := s.compiled.Validate(json.RawMessage(text)); len(problems) > 0 {
		return nil, problems
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(text)); err != nil {
		return nil, []Problem{{Detail: "the answer is not JSON"}}
	}
	return compact.Bytes(), nil
}

// RepairPrompt returns the message that tells the model what is wrong with its answer and asks for another one.
func RepairPrompt(problems []Problem) string {
	var b strings.Builder
	b.WriteString("Your answer does not conform to the JSON Schema that it must have:\n")
	for _, p := range problems {
		fmt.Fprintf(&b, "- %s: %s\n", cmp.Or(p.Pointer, "(the whole answer)"), p.Detail)
	}
	b.WriteString("Write the whole answer again, as JSON that conforms to the schema. " +
		"Write nothing else: no explanation and no code fence.")
	return b.String()
}
