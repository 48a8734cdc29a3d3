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

// CheckTypes returns a Problem for the first type in a schema that JSON Schema does not define, or nil if it defines
// all of them. Compile ignores unknown types, because some MCP servers use them. In the schema that an answer must
// conform to, an unknown type is an error, because the schema would not require what its author meant. The Problem's
// pointer is the type's place within the schema, and its detail begins with a verb.
func CheckTypes(raw json.RawMessage) *Problem {
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return &Problem{Detail: "is not JSON"}
	}
	return checkTypes(tree, "")
}

// checkTypes returns a Problem for the first unknown type in tree, or nil. pointer is the place of tree within the
// whole schema. If tree is not an object, such as the schema true, it names no type. checkTypes does not follow
// references, because their targets are subschemas too, for example in $defs.
func checkTypes(tree any, pointer string) *Problem {
	schema, isObject := tree.(map[string]any)
	if !isObject {
		return nil
	}
	types, isList := schema["type"].([]any)
	if !isList && schema["type"] != nil {
		types = []any{schema["type"]}
	}
	for _, t := range types {
		name, isString := t.(string)
		if !isString || !slices.Contains(typeNames, name) {
			return &Problem{Pointer: pointer + "/type", Detail: "is not one of " + strings.Join(typeNames, ", ")}
		}
	}
	for _, keyword := range slices.Sorted(maps.Keys(schema)) {
		if problem := checkTypesIn(schema[keyword], keywords[keyword], pointer+"/"+keyword); problem != nil {
			return problem
		}
	}
	return nil
}

// checkTypesIn returns a Problem for the first unknown type in the schemas within given, the value of a keyword, or
// nil. allowed has the types that the keyword's value may have, and pointer is the value's place within the whole
// schema.
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
