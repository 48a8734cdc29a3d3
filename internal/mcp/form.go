package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"answerd/internal/mcp/schema"
)

// ContentError is content that does not fit the form that was asked for. Pointers
// (RFC 6901) begin at the content.
type ContentError struct{ Fields []ContentField }

// ContentField is what is wrong with one field of a form, or of a call's arguments.
type ContentField = schema.Problem

func (e *ContentError) Error() string {
	parts := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		parts[i] = strings.TrimPrefix(f.Pointer+": "+f.Detail, ": ")
	}
	return strings.Join(parts, "; ")
}

// maxFormFields bounds a form.
const maxFormFields = 100

// form is the schema of the form. Nothing that it refers to is fetched: a reference to
// elsewhere is an error, as is one to itself, on which the SDK, which looks at the answer
// too, would end the process.
func (e Elicitation) form() (*schema.Schema, error) {
	var fields struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	s, err := schema.Compile(e.Schema)
	if err != nil {
		return nil, fmt.Errorf("the requested schema cannot be used: %w", err)
	}
	if err := json.Unmarshal(e.Schema, &fields); err != nil {
		return nil, errors.New("the requested schema is no JSON Schema")
	}
	if len(fields.Properties) > maxFormFields {
		return nil, fmt.Errorf("the requested schema has more than %d fields", maxFormFields)
	}
	return s, nil
}

// Check reports whether content may be the accepted answer to e: a *ContentError that
// names every field that is wrong, or nil. An address takes no content.
func (e Elicitation) Check(content json.RawMessage) error {
	if e.Mode == ElicitURL {
		if content != nil {
			return &ContentError{[]ContentField{{Detail: "an address is answered without content"}}}
		}
		return nil
	}
	s, err := e.form()
	if err != nil {
		return &ContentError{[]ContentField{{Detail: err.Error()}}}
	}
	if wrong := s.Validate(content); wrong != nil {
		return &ContentError{wrong}
	}
	return nil
}
