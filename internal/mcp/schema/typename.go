package schema

import (
	"encoding/json"
)

// CheckTypes returns a Problem for the first type in a schema that JSON Schema does not define, or nil if it defines
// all of them. Compile ignores unknown types, because some MCP servers use them. In the schema that an answer must
// conform to, an unknown type is an error, because the schema would not require what its author meant. The Problem's
// pointer is the type's place within the schema, and its detail begins with a verb.
func CheckTypes(raw json.RawMessage) *Problem {
	tree, problem := parseJSON(raw, lastDuplicateWins)
	if problem != nil {
		return problem
	}
	return tree.findUnknownType(nil)
}

// findUnknownType returns a Problem for the first unknown type in the schema v, which is at loc, or nil. It does not
// follow references, because their targets are subschemas too, for example in $defs.
func (v *value) findUnknownType(loc *location) *Problem {
	if types := v.keyword("type"); types != nil {
		if _, ok := namedKinds(types); !ok {
			return &Problem{
				Pointer: loc.member("type").pointer(),
				Detail:  "is not one of null, boolean, integer, number, string, array, object",
			}
		}
	}
	for subschema, subschemaLoc := range v.subschemas(loc) {
		if problem := subschema.findUnknownType(subschemaLoc); problem != nil {
			return problem
		}
	}
	return nil
}
