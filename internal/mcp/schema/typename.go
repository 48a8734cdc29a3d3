package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Keywords whose value is a schema, a list of schemas, or an object of schemas (draft 2020-12 Core,
// section 10).
var (
	schemaKeywords = []string{"items", "additionalItems", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"}
	listKeywords   = []string{"allOf", "anyOf", "oneOf", "prefixItems", "items"}
	mapKeywords    = []string{"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
)

// typeNames lists the types of JSON Schema.
var typeNames = []string{"null", "boolean", "integer", "number", "string", "array", "object"}

// CheckTypes returns a type in a schema that does not exist, or nil. Compile takes it for a type without values,
// because servers' schemas have such types; a schema to which an answer must conform would then have no answer.
// The pointer of the problem is the place within the schema, and its detail begins with a verb.
func CheckTypes(raw json.RawMessage) *Problem {
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return &Problem{Detail: "is not JSON"}
	}
	return checkTypes(tree, "")
}

// checkTypes is CheckTypes for the part of the schema at the pointer at. Values that are not objects,
// such as true, name no type. It does not follow references, because it visits their targets where
// they stand, in $defs for example.
func checkTypes(tree any, at string) *Problem {
	object, ok := tree.(map[string]any)
	if !ok {
		return nil
	}
	named, isList := object["type"].([]any)
	if !isList && object["type"] != nil {
		named = []any{object["type"]}
	}
	for _, name := range named {
		if text, ok := name.(string); !ok || !slices.Contains(typeNames, text) {
			return &Problem{Pointer: at + "/type", Detail: "is not one of " + strings.Join(typeNames, ", ")}
		}
	}
	for _, keyword := range schemaKeywords {
		if wrong := checkTypes(object[keyword], at+"/"+keyword); wrong != nil {
			return wrong
		}
	}
	for _, keyword := range listKeywords {
		list, _ := object[keyword].([]any)
		for i, part := range list {
			if wrong := checkTypes(part, fmt.Sprintf("%s/%s/%d", at, keyword, i)); wrong != nil {
				return wrong
			}
		}
	}
	for _, keyword := range mapKeywords {
		parts, _ := object[keyword].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(parts)) {
			if wrong := checkTypes(parts[name], at+"/"+keyword+"/"+pointerEscaper.Replace(name)); wrong != nil {
				return wrong
			}
		}
	}
	return nil
}
