package schema

import (
	"fmt"
	"math"
	"slices"
)

// keywordType is a set of types that a keyword's value may have.
type keywordType uint16

const (
	oneSchema     keywordType = 1 << iota // a schema
	schemaList                            // a list of schemas
	schemaMap                             // an object of schemas
	stringList                            // a list of strings
	stringListMap                         // an object of lists of strings
	anyList                               // a list of anything
	boolValue                             // a boolean
	stringValue                           // a string
	numberValue                           // a number
	countValue                            // an integer
)

// keywords has the keywords whose type is checked (draft 2020-12 core, 8 to 10, and validation, 6
// to 9; draft-07, 6). It includes those for definitions and annotations, because a reference may
// lead into them.
var keywords = map[string]keywordType{
	"$defs": schemaMap, "definitions": schemaMap,
	"properties": schemaMap, "patternProperties": schemaMap, "dependentSchemas": schemaMap, "dependencies": schemaMap | stringListMap,
	"prefixItems": schemaList, "allOf": schemaList, "anyOf": schemaList, "oneOf": schemaList,
	"items": oneSchema | schemaList, "additionalItems": oneSchema, "contains": oneSchema, "unevaluatedItems": oneSchema,
	"additionalProperties": oneSchema, "propertyNames": oneSchema, "unevaluatedProperties": oneSchema,
	"not": oneSchema, "if": oneSchema, "then": oneSchema, "else": oneSchema, "contentSchema": oneSchema,

	"$schema": stringValue, "$id": stringValue, "$ref": stringValue, "$dynamicRef": stringValue, "$recursiveRef": stringValue,
	"$anchor": stringValue, "$dynamicAnchor": stringValue, "$comment": stringValue,
	"title": stringValue, "description": stringValue, "format": stringValue, "contentEncoding": stringValue, "contentMediaType": stringValue,
	"deprecated": boolValue, "readOnly": boolValue, "writeOnly": boolValue, "examples": anyList,

	"type": stringValue | stringList, "enum": anyList, "required": stringList, "dependentRequired": stringListMap,
	"pattern": stringValue, "uniqueItems": boolValue,
	"minimum": numberValue, "maximum": numberValue, "exclusiveMinimum": numberValue, "exclusiveMaximum": numberValue, "multipleOf": numberValue,
	"minLength": countValue, "maxLength": countValue, "minItems": countValue, "maxItems": countValue, "minContains": countValue, "maxContains": countValue,
	"minProperties": countValue, "maxProperties": countValue,
}

// maxCount is the largest value of a keyword that bounds a count.
const maxCount = 1 << 53

var (
	// typesOf has, for each kind of JSON value, the keyword types that accept it. None accepts null; checkKeywords
	// skips keywords whose value is null.
	typesOf = map[kind]keywordType{
		boolean: boolValue | oneSchema, text: stringValue, fraction: numberValue, integer: numberValue | countValue,
		array: schemaList | stringList | anyList, object: oneSchema | schemaMap | stringListMap,
	}
	// elementType has the type of the items of a list or object.
	elementType = map[keywordType]keywordType{schemaList: oneSchema, schemaMap: oneSchema, stringList: stringValue, stringListMap: stringList}
	// typeName has the names of kinds in errors.
	typeName = map[kind]string{
		null: "null", boolean: "bool", integer: "number", fraction: "fraction", text: "string", array: "array", object: "object",
	}
)

// findMismatch returns the first value that has none of the types in s: v itself, or a value in the list or object v.
// It returns nil if all values match. It does not look into a schema, which collectSchemas checks later.
func (s keywordType) findMismatch(v *value) *value {
	s &= typesOf[v.kind] // the types that remain possible
	isTooLarge := s == countValue && math.Abs(v.float) > maxCount
	if s == 0 || isTooLarge {
		return v
	}
	if s&oneSchema != 0 {
		return nil
	}
	elementTypes := s.elementTypes()
	if elementTypes == 0 {
		return nil
	}
	for _, item := range v.items {
		if mismatch := elementTypes.findMismatch(item); mismatch != nil {
			return mismatch
		}
	}
	return nil
}

// elementTypes returns the types that the items of a list, or the members of an object, of a type in s may have. 0
// means any type, or that s has no type with items. Several types are possible: the members of dependencies in
// draft-07 are schemas or lists of strings.
func (s keywordType) elementTypes() (types keywordType) {
	for outer, inner := range elementType {
		if s&outer != 0 {
			types |= inner
		}
	}
	return types
}

// checkKeywords returns an error if a keyword of the schema v has a value of the wrong type.
func (c *compiler) checkKeywords(v *value) error {
	for i, name := range v.names {
		given := v.items[i]
		allowed, known := keywords[name]
		isOverridden := given != v.member(name) // by a later member with the same name
		if !known || given.kind == null || isOverridden {
			continue
		}
		if c.draft4 && (name == "exclusiveMinimum" || name == "exclusiveMaximum") {
			allowed |= boolValue // see bounds
		}
		if mismatch := allowed.findMismatch(given); mismatch != nil {
			return fmt.Errorf("%q in it cannot be a %s", name, typeName[mismatch.kind])
		}
	}
	return nil
}

// subschemas returns the schemas that are values of keywords of v, or items of the list or object that is the value of
// a keyword. It does not look further into these schemas.
func subschemas(v *value) []*value {
	var found []*value
	for i, name := range v.names {
		given, allowed := v.items[i], keywords[name]
		isOverridden := given != v.member(name) // by a later member with the same name
		switch {
		case isOverridden:
		case allowed&schemaList != 0 && given.kind == array, allowed&schemaMap != 0 && given.kind == object:
			found = append(found, given.items...)
		case allowed&oneSchema != 0:
			found = append(found, given)
		}
	}
	// Other values are null, which counts as absent, and lists of names in dependencies.
	return slices.DeleteFunc(found, func(s *value) bool { return !s.isSchema() })
}

// isSchema reports whether v can be a schema: an object, true or false (draft 2020-12 core, 4.3).
func (v *value) isSchema() bool { return v.kind == object || v.kind == boolean }

// isTrue reports whether v is the boolean true.
func (v *value) isTrue() bool { return v.kind == boolean && v.raw[0] == 't' }

// keyword returns the value of the keyword name, or nil if v lacks the keyword or its value is null: generators of
// schemas write null for absent values. (const, for which null is a value, is read with member.)
func (v *value) keyword(name string) *value {
	if k := v.member(name); k != nil && k.kind != null {
		return k
	}
	return nil
}

// keywordString returns the string value of the keyword name, or "" if v lacks the keyword or it is not a string.
func (v *value) keywordString(name string) string {
	if k := v.keyword(name); k != nil {
		return k.text
	}
	return ""
}
