package terminal

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
)

// formField is a property of an elicitation's schema (MCP specification, Elicitation,
// PrimitiveSchemaDefinition), as far as it matters for asking.
type formField struct {
	choices
	Type        any             `json:"type"` // a string, as MCP has it; some servers send a list
	Title       string          `json:"title"`
	Description string          `json:"description"`
	Items       choices         `json:"items"`   // of an array
	Default     json.RawMessage `json:"default"` // as it is written, since a float would round large integers
}

// choices are the values that a field, or an item of a list, may have; all of them are empty if it may have any.
type choices struct {
	Enum  []json.RawMessage `json:"enum"`
	OneOf []titledValue     `json:"oneOf"`
	AnyOf []titledValue     `json:"anyOf"` // of items
}

// titledValue is a value with what it is called (MCP 2025-11-25, TitledSingleSelectEnumSchema).
type titledValue struct {
	Const json.RawMessage `json:"const"`
	Title string          `json:"title"`
}

// values returns the values that may be chosen, whichever of the keywords lists them.
func (c choices) values() []json.RawMessage {
	out := slices.Clone(c.Enum)
	for _, one := range slices.Concat(c.OneOf, c.AnyOf) {
		if one.Const != nil {
			out = append(out, one.Const)
		}
	}
	return out
}

// String lists the values, with what they are called.
func (c choices) String() string {
	titles := make(map[string]string)
	for _, one := range slices.Concat(c.OneOf, c.AnyOf) {
		titles[string(one.Const)] = one.Title
	}
	var out []string
	for _, value := range c.values() {
		text := textOfValue(value)
		if title := titles[string(value)]; title != "" && title != text {
			text += " = " + title
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// find returns the value that the person writes as text; nil if there is none.
func (c choices) find(text string) json.RawMessage {
	for _, value := range c.values() {
		if textOfValue(value) == text {
			return value
		}
	}
	return nil
}

// textOfValue returns a value as a person writes it: a string without its quotes, and anything else as JSON.
func textOfValue(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return text
	}
	return string(value)
}

// kind returns the type of the field; "" if its schema does not name one type.
func (f formField) kind() string {
	kind, _ := f.Type.(string)
	return kind
}

// hasDefault reports whether the field has a default. null counts as none.
func (f formField) hasDefault() bool { return f.Default != nil && string(f.Default) != "null" }

// prompt returns what the person is asked for the field with that name.
func (f formField) prompt(name string, required bool) string {
	title := name
	if f.Title != "" {
		title = f.Title
	}
	if f.Description != "" {
		title += ", " + f.Description
	}
	kind := f.kind()
	switch {
	case len(f.values()) > 0:
		title += " (" + f.String() + ")"
	case kind == "array" && len(f.Items.values()) > 0:
		title += " (list: " + f.Items.String() + ")"
	case kind != "string" && kind != "":
		title += " (" + kind + ")"
	}
	if f.hasDefault() {
		title += " [" + textOfValue(f.Default) + "]"
	} else if !required {
		title += " (optional)"
	}
	return title
}

// askField asks for one field until the reply has its type. It returns nil for a field that is left
// out, and the default for an empty reply.
func (s *Session) askField(ctx context.Context, name string, field formField, required bool) (any, error) {
	for {
		reply, err := s.read(ctx, PlainText("  "+field.prompt(name, required)+": "))
		if err != nil {
			return nil, err
		}
		reply = strings.TrimSpace(reply)
		switch {
		case reply == "" && field.hasDefault():
			return field.Default, nil
		case reply == "" && !required:
			return nil, nil
		}
		if value, ok := field.parse(reply); ok && reply != "" {
			return value, nil
		}
		s.printLine("  That is not a value of this field.")
	}
}

// parse returns the reply as a value of the field's type.
func (f formField) parse(reply string) (value any, ok bool) {
	if len(f.values()) > 0 {
		found := f.find(reply)
		return found, found != nil
	}
	switch f.kind() {
	case "integer":
		return parseNumber(reply, true)
	case "number":
		return parseNumber(reply, false)
	case "boolean":
		switch strings.ToLower(reply) {
		case "y", "yes", "true":
			return true, true
		case "n", "no", "false":
			return false, true
		}
		return nil, false
	case "array":
		return f.parseList(reply), true
	}
	return reply, true
}

// parseNumber returns the reply as it is written if JSON can write it like that, so that no digit is lost.
func parseNumber(reply string, whole bool) (value any, ok bool) {
	if whole && strings.ContainsAny(reply, ".eE") {
		return nil, false
	}
	reply = strings.TrimPrefix(reply, "+") // which JSON does not have
	n, err := strconv.ParseFloat(reply, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) { // nor "nan" and "inf"
		return nil, false
	}
	if json.Valid([]byte(reply)) {
		return json.Number(reply), true
	}
	return n, true
}

// parseList returns the items of a list. Commas separate them; without a comma, blanks do, unless the reply is one of the
// items to choose from.
func (f formField) parseList(reply string) []any {
	texts := strings.FieldsFunc(reply, func(r rune) bool { return r == ',' })
	if len(texts) == 1 && f.Items.find(reply) == nil {
		texts = strings.Fields(reply)
	}
	out := make([]any, 0, len(texts))
	for _, text := range texts {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		if value := f.Items.find(text); value != nil {
			out = append(out, value)
		} else {
			out = append(out, text)
		}
	}
	return out
}
