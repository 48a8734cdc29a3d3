package openai

import (
	"encoding/json"
	"slices"
)

// newResponseFormat returns the response_format that asks for JSON matching schema. It is strict if
// allowsStrict(schema).
func newResponseFormat(schema json.RawMessage) json.RawMessage {
	type named struct {
		Name   string          `json:"name"`
		Schema json.RawMessage `json:"schema"`
		Strict bool            `json:"strict"`
	}
	out, _ := json.Marshal(struct { // cannot fail, because schema is JSON
		Type   string `json:"type"`
		Schema named  `json:"json_schema"`
	}{"json_schema", named{"answer", schema, allowsStrict(schema)}})
	return out
}

// allowsStrict reports whether a request may set strict for a schema. OpenAI refuses a strict schema whose root is not
// an object, or in which an object may have undeclared members or lack a declared one
// (https://platform.openai.com/docs/guides/structured-outputs). Without strict, the model still sees the schema, but
// the endpoint does not have to enforce it.
func allowsStrict(schema json.RawMessage) bool {
	var tree any
	return json.Unmarshal(schema, &tree) == nil && isObjectSchema(tree) && isStrict(tree)
}

// isObjectSchema reports whether schema has the type object.
func isObjectSchema(schema any) bool {
	object, _ := schema.(map[string]any)
	return object["type"] == "object"
}

// isStrict reports whether every object schema in tree requires all of its properties and allows no additional ones.
// tree is a decoded schema or a part of it.
func isStrict(tree any) bool {
	switch tree := tree.(type) {
	case []any:
		return !slices.ContainsFunc(tree, func(part any) bool { return !isStrict(part) })
	case map[string]any:
		properties, _ := tree["properties"].(map[string]any)
		if isObjectSchema(tree) || properties != nil {
			required, _ := tree["required"].([]any)
			if tree["additionalProperties"] != false || len(required) != len(properties) {
				return false
			}
		}
		for _, part := range tree {
			if !isStrict(part) {
				return false
			}
		}
	}
	return true
}
