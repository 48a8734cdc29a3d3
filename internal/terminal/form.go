package terminal

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
)

// formField is one property of an elicitation's schema (MCP specification, Elicitation, PrimitiveSchemaDefinition). It
// has only the keywords that are needed to ask for a value. answerd checks the value against the whole schema.
type formField struct {
	choices
	Type        any             `json:"type"` // a string in MCP; some servers send a list of types
	Title       string          `json:"title"`
	Description string          `json:"description"`
	Items       choices         `json:"items"`   // allowed values for the items of an array
	Default     json.RawMessage `json:"default"` // not decoded, because a float64 would round large integers
}

// choices are the allowed values of a field or of a list's items. If all members are empty, every value is allowed.
type choices struct {
	Enum  []json.RawMessage `json:"enum"`
	OneOf []titledValue     `json:"oneOf"`
	AnyOf []titledValue     `json:"anyOf"` // used for items of a list
}

// titledValue is a value with a title for people (MCP 2025-11-25, TitledSingleSelectEnumSchema).
type titledValue struct {
	Const json.RawMessage `json:"const"`
	Title string          `json:"title"`
}

// values returns the allowed values of all keywords, or nil if every value is allowed.
func (c choices) values() []json.RawMessage {
	out := slices.Clone(c.Enum)
	for _, titled := range slices.Concat(c.OneOf, c.AnyOf) {
		if titled.Const != nil {
			out = append(out, titled.Const)
		}
	}
	return out
}

// describe lists the values with their titles: "s = small, m = medium".
func (c choices) describe() string {
	titles := make(map[string]string) // by the JSON of the value
	for _, titled := range slices.Concat(c.OneOf, c.AnyOf) {
		titles[string(titled.Const)] = titled.Title
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

// findValue returns the allowed value that textOfValue shows as text, or nil if no allowed value matches.
func (c choices) findValue(text string) json.RawMessage {
	for _, value := range c.values() {
		if textOfValue(value) == text {
			return value
		}
	}
	return nil
}

// textOfValue returns value as people write it: a string without quotes, and anything else as JSON.
func textOfValue(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return text
	}
	return string(value)
}

// kind returns the field's type. It returns "" if the schema has no type or a list of types.
func (f formField) kind() string {
	kind, _ := f.Type.(string)
	return kind
}

// hasDefault reports whether the field has a default other than null.
func (f formField) hasDefault() bool { return f.Default != nil && string(f.Default) != "null" }

// prompt returns the text that asks the user for the field's value: the title, or name without a title, then the
// description, the allowed values or the type, and the default.
func (f formField) prompt(name string, required bool) string {
	text := cmp.Or(f.Title, name)
	if f.Description != "" {
		text += ", " + f.Description
	}
	kind := f.kind()
	switch {
	case len(f.values()) > 0:
		text += " (" + f.describe() + ")"
	case kind == "array" && len(f.Items.values()) > 0:
		text += " (list: " + f.Items.describe() + ")"
	case kind != "string" && kind != "":
		text += " (" + kind + ")"
	}
	if f.hasDefault() {
		text += " [" + textOfValue(f.Default) + "]"
	} else if !required {
		text += " (optional)"
	}
	return text
}

// askField asks the user for the value of a field until the reply fits the field. An empty reply selects the default.
// If the field has none, askField returns nil for an optional field and asks again for a required one.
func (s *Session) askField(ctx context.Context, name string, field formField, required bool) (any, error) {
	for {
		// A line feed would leave the cursor in its column, because the terminal is in raw mode during the read.
		prompt := strings.ReplaceAll(field.prompt(name, required), "\n", " ")
		reply, err := s.readAnswer(ctx, PlainText("  "+prompt+": "))
		if err != nil {
			return nil, err
		}
		reply = strings.TrimSpace(reply)
		isEmpty := reply == ""
		if isEmpty && field.hasDefault() {
			return field.Default, nil
		}
		if isEmpty && !required {
			return nil, nil
		}
		if value, ok := field.parse(reply); ok && !isEmpty {
			return value, nil
		}
		s.printLine("  That is not a value of this field.")
	}
}

// parse converts reply to a value of the field's type that can be encoded as JSON. If the field has choices, reply must
// be one of them. ok is false if reply is not a valid value.
func (f formField) parse(reply string) (value any, ok bool) {
	if len(f.values()) > 0 {
		chosen := f.findValue(reply)
		return chosen, chosen != nil
	}
	switch f.kind() {
	case "integer":
		if strings.ContainsAny(reply, ".eE") {
			return nil, false
		}
		return parseNumber(reply)
	case "number":
		return parseNumber(reply)
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

// parseNumber returns a json.Number with the digits of reply, so that a large number is not rounded. A number that is
// not valid JSON, such as ".5", becomes a float64. ok is false if reply is not a finite number.
func parseNumber(reply string) (value any, ok bool) {
	reply = strings.TrimPrefix(reply, "+") // JSON does not allow the sign
	n, err := strconv.ParseFloat(reply, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) { // ParseFloat accepts "nan" and "inf"
		return nil, false
	}
	if json.Valid([]byte(reply)) {
		return json.Number(reply), true
	}
	return n, true
}

// parseList splits reply into the items of a list. Commas separate the items. Without a comma white space separates
// them, unless the whole reply is one of the allowed values.
func (f formField) parseList(reply string) []any {
	texts := strings.FieldsFunc(reply, func(r rune) bool { return r == ',' })
	if len(texts) == 1 && f.Items.findValue(reply) == nil {
		texts = strings.Fields(reply)
	}
	out := make([]any, 0, len(texts))
	for _, text := range texts {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		if value := f.Items.findValue(text); value != nil {
			out = append(out, value)
		} else {
			out = append(out, text)
		}
	}
	return out
}
