package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// ContentError is content that does not fit the form that was asked for. Pointers
// (RFC 6901) begin at the content.
type ContentError struct{ Fields []ContentField }

// ContentField is what is wrong with one field.
type ContentField struct{ Pointer, Detail string }

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
// elsewhere is an error.
func (e Elicitation) form() (*jsonschema.Schema, error) {
	var s jsonschema.Schema
	if err := json.Unmarshal(e.Schema, &s); err != nil {
		return nil, errors.New("the requested schema is no JSON Schema")
	}
	if len(s.Properties) > maxFormFields {
		return nil, fmt.Errorf("the requested schema has more than %d fields", maxFormFields)
	}
	if _, err := s.CloneSchemas().Resolve(nil); err != nil {
		return nil, errors.New("the requested schema cannot be used")
	}
	return &s, nil
}

// Check reports whether content may be the accepted answer to e: a *ContentError that
// names every field that is wrong, or nil. An address takes no content.
func (e Elicitation) Check(content json.RawMessage) error {
	if e.Mode == ElicitURL {
		if content != nil {
			return &ContentError{[]ContentField{{"", "an address is answered without content"}}}
		}
		return nil
	}
	var values map[string]any
	if err := json.Unmarshal(content, &values); err != nil || values == nil {
		return &ContentError{[]ContentField{{"", "must be an object"}}}
	}
	s, err := e.form()
	if err != nil {
		return &ContentError{[]ContentField{{"", err.Error()}}}
	}
	wrong := fieldsWrong(s, values)
	if len(wrong) == 0 {
		// What is said about all fields together.
		if detail := violation(s, values); detail != "" {
			wrong = []ContentField{{"", detail}}
		}
	}
	if len(wrong) > 0 {
		return &ContentError{wrong}
	}
	return nil
}

// fieldsWrong looks at one field at a time: a form's schema is flat (2025-11-25
// client/elicitation), and the person is to learn of all mistakes at once.
func fieldsWrong(s *jsonschema.Schema, values map[string]any) []ContentField {
	var wrong []ContentField
	for _, name := range s.Required {
		if _, given := values[name]; !given {
			wrong = append(wrong, ContentField{pointer(name), "required"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if field := s.Properties[name]; field != nil {
			if detail := violation(field, values[name]); detail != "" {
				wrong = append(wrong, ContentField{pointer(name), detail})
			}
		}
	}
	return wrong
}

// violation is why value does not fit s; "" if it does.
func violation(s *jsonschema.Schema, value any) string {
	r, err := s.CloneSchemas().Resolve(nil)
	if err != nil {
		return "its schema cannot be used"
	}
	if err := r.Validate(value); err != nil {
		return printable(strings.TrimPrefix(err.Error(), "validating root: "), 300)
	}
	return ""
}

// pointer is the JSON pointer of a member.
func pointer(name string) string {
	return "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
