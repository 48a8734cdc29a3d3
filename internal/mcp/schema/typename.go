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

// CheckTypes returns a problem for the first type in a schema that JSON Schema does not have, or nil if all types are
// known. Compile ignores unknown types, because servers' schemas have them. In a schema to which an answer must
// conform, an unknown type is an error: the schema would not require what its author meant. The problem's pointer is
// the place of the type within the schema, and its detail begins with a verb.
func CheckTypes(raw json.RawMessage) *Problem {
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return &Problem{Detail: "is not JSON"}
	}
	return checkTypes(tree, "")
}

// checkTypes returns the first unknown type in tree, the subschema at pointer, or nil. A subschema that is not an
// object, such as true, names no type. checkTypes does not follow references: the targets of references are
// subschemas, too, in $defs for example.
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
		if problem := checkTypesIn(object[keyword], keywords[keyword], pointer+"/"+keyword); problem != nil {
			return problem
		}
	}
	return nil
}

// checkTypesIn returns the first unknown type in the schemas that the value of a keyword consists of, or nil. allowed
// has the types that the keyword may have, and pointer leads to the value.
func checkTypesIn(given any, allowed keywordType, pointer string) *Problem {
	list, isList := given.([]any)
	members, _ := given.(map[string]any)
	switch {
	case allowed&oneSchema != 0 && !isList:
		return checkTypes(given, pointer)
	case allowed&schemaList != 0:
		for i, item := range list {
			if problem := checkTypes(item, fmt.Sprintf("%s/%d", pointer, i)); problem != nil {
				return problem
			}
		}
	case allowed&schemaMap != 0:
		for _, name := range slices.Sorted(maps.Keys(members)) {
			if problem := checkTypes(members[name], pointer+"/"+pointerEscaper.Replace(name)); problem != nil {
				return problem
			}
		}
	}
	return nil
}
