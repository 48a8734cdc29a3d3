package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// typeNames lists the types of JSON Schema.
var typeNames = []string{"null", "boolean", "integer", "number", "string", "array", "object"}

// CheckTypes returns the first type in a schema that JSON Schema does not have, or nil. Compile ignores such a type,
// because servers' schemas have them. In a schema to which an answer must conform, it is an error: the schema would
// not require what its author meant. The pointer of the problem is the place within the schema, and its detail begins
// with a verb.
func CheckTypes(raw json.RawMessage) *Problem {
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return &Problem{Detail: "is not JSON"}
	}
	return checkTypes(tree, "")
}

// checkTypes is CheckTypes for the part of the schema at pointer. Values that are not objects,
// such as true, name no type. It does not follow references, because it visits their targets where
// they stand, in $defs for example.
func checkTypes(tree any, pointer string) *Problem {
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
			return &Problem{Pointer: pointer + "/type", Detail: "is not one of " + strings.Join(typeNames, ", ")}
		}
	}

	for _, keyword := range slices.Sorted(maps.Keys(object)) {
		where, part, at := keywords[keyword], object[keyword], pointer+"/"+keyword
		list, _ := part.([]any)
		members, _ := part.(map[string]any)
		switch {
		case where&oneSchema != 0 && list == nil:
			if wrong := checkTypes(part, at); wrong != nil {
				return wrong
			}
		case where&schemaList != 0:
			for i, item := range list {
				if wrong := checkTypes(item, fmt.Sprintf("%s/%d", at, i)); wrong != nil {
					return wrong
				}
			}
		case where&schemaMap != 0:
			for _, name := range slices.Sorted(maps.Keys(members)) {
				if wrong := checkTypes(members[name], at+"/"+pointerEscaper.Replace(name)); wrong != nil {
					return wrong
				}
			}
		}
	}
	return nil
}
