package demo

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// tool is what the stand-in may call, as far as it understands it.
type tool struct {
	name        string
	description string
	params      []param
}

// param is one property of a tool's input schema.
type param struct {
	name, description string
	types             []string // JSON Schema types; empty is any
	format            string
	enum              []any
	preset            any // default, const or an example: what to take when nothing is said
	minimum           *float64
	required          bool
	items             *param  // of an array
	params            []param // of an object

	// What every clause asks for again, so it is worked out once.
	words []string // of the name, in lower case
	means meaning
}

// What is read of a schema. Deeper objects are left empty, further properties out.
const (
	maxSchemaDepth = 4
	maxParams      = 50
)

// schemaNode is the part of JSON Schema that choosing arguments needs.
type schemaNode struct {
	Type        json.RawMessage            `json:"type"`
	Description string                     `json:"description"`
	Format      string                     `json:"format"`
	Enum        []any                      `json:"enum"`
	Const       any                        `json:"const"`
	Default     any                        `json:"default"`
	Examples    []any                      `json:"examples"`
	Minimum     *float64                   `json:"minimum"`
	Required    []string                   `json:"required"`
	Items       json.RawMessage            `json:"items"`
	Properties  json.RawMessage            `json:"properties"`
	AnyOf       []json.RawMessage          `json:"anyOf"`
	OneOf       []json.RawMessage          `json:"oneOf"`
	byName      map[string]json.RawMessage // Properties, decoded
}

// named works out what the name, with all else that p says, amounts to.
func (p param) named(name string) param {
	p.name, p.words = name, splitWords(name)
	p.means = p.meaning()
	return p
}

// readTool never fails: of a schema that it cannot read, it knows no parameters.
func readTool(name, description string, schema json.RawMessage) tool {
	return tool{name, description, readParam(schema, 0).params}
}

// readParam reads one schema, and the first of its alternatives where it has no type.
// The param has no name yet.
func readParam(schema json.RawMessage, depth int) param {
	var p param
	var n schemaNode
	if depth > maxSchemaDepth || json.Unmarshal(schema, &n) != nil {
		return p
	}
	if alternatives := append(n.AnyOf, n.OneOf...); len(n.Type) == 0 && len(alternatives) > 0 {
		p = readParam(alternatives[0], depth+1)
	} else {
		p.types = readTypes(n.Type)
	}
	if n.Description != "" {
		p.description = n.Description
	}
	if n.Enum != nil {
		p.enum = n.Enum
	}
	if n.Format != "" {
		p.format = n.Format
	}
	if n.Minimum != nil {
		p.minimum = n.Minimum
	}
	switch {
	case n.Const != nil:
		p.preset = n.Const
	case n.Default != nil:
		p.preset = n.Default
	case len(n.Examples) > 0:
		p.preset = n.Examples[0]
	}
	if len(n.Items) > 0 {
		items := readParam(n.Items, depth+1).named("")
		p.items = &items
	}
	if json.Unmarshal(n.Properties, &n.byName) == nil {
		for _, key := range objectKeys(n.Properties) {
			c := readParam(n.byName[key], depth+1)
			c.required = slices.Contains(n.Required, key)
			p.params = append(p.params, c.named(key))
		}
	}
	return p
}

// readTypes reads a type, which is one name or a list of them.
func readTypes(raw json.RawMessage) []string {
	var one string
	if json.Unmarshal(raw, &one) == nil && one != "" {
		return []string{one}
	}
	var many []string
	if json.Unmarshal(raw, &many) != nil {
		return nil
	}
	return slices.DeleteFunc(many, func(t string) bool { return t == "null" })
}

// objectKeys are the keys of a JSON object in the order in which they stand: the
// author of divide(dividend, divisor) meant something by it. A repeated key counts once.
func objectKeys(object json.RawMessage) []string {
	dec := json.NewDecoder(bytes.NewReader(object))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	var keys []string
	for dec.More() {
		t, err := dec.Token()
		key, ok := t.(string)
		var value json.RawMessage
		if err != nil || !ok || dec.Decode(&value) != nil {
			return keys
		}
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
		if len(keys) == maxParams {
			break
		}
	}
	return keys
}

// is reports whether p takes a value of one of the types. A schema without a type
// takes anything and is filled with text.
func (p param) is(types ...string) bool {
	if len(p.types) == 0 {
		return slices.Contains(types, "string")
	}
	return slices.ContainsFunc(types, func(t string) bool { return slices.Contains(p.types, t) })
}

// hasWord reports whether one of words, in lower case, is part of p's name.
func (p param) hasWord(words ...string) bool {
	return slices.ContainsFunc(p.words, func(w string) bool { return slices.Contains(words, w) })
}

// speaksOf reports whether p's description contains the text.
func (p param) speaksOf(text string) bool {
	return strings.Contains(strings.ToLower(p.description), text)
}
