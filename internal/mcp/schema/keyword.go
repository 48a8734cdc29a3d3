package schema

import (
	"fmt"
	"math"
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

	"$schema": stringValue, "$id": stringValue, "$ref": stringValue, "$dynamicRef": stringValue,
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
	// typesOf has the types that a JSON value of a kind can have as a keyword's value.
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

// findMismatch returns the first value that does not have one of the types: v, or a value in it.
// It returns nil if there is none. It does not look into a schema, which collectSchemas checks later.
func (s keywordType) findMismatch(v *value) *value {
	s &= typesOf[v.kind] // the types that remain possible
	isTooLarge := s == countValue && math.Abs(v.float) > maxCount
	if s == 0 || isTooLarge {
		return v
	}
	if s&oneSchema != 0 {
		return nil
	}
	within := s.elementTypes()
	if within == 0 {
		return nil
	}
	for _, item := range v.items {
		if wrong := within.findMismatch(item); wrong != nil {
			return wrong
		}
	}
	return nil
}

// elementTypes returns the types that the items of a list or object of one of the types can have; 0 if it may
// have any items. There can be several: the items of dependencies in draft-07 are schemas or lists of strings.
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
		s, known := keywords[name]
		if c.draft4 && (name == "exclusiveMinimum" || name == "exclusiveMaximum") {
			s |= boolValue
		}
		if !known || given.kind == null || given != v.member(name) {
			continue
		}
		if wrong := s.findMismatch(given); wrong != nil {
			return fmt.Errorf("%q in it cannot be a %s", name, typeName[wrong.kind])
		}
	}
	return nil
}

// eachSubschema calls yield for each direct subschema of the schema v.
func eachSubschema(v *value, yield func(*value) error) error {
	for i, name := range v.names {
		within, where := v.items[i], keywords[name]
		if v.member(name) != within { // a duplicate: only the last one counts
			continue
		}
		switch {
		case where&oneSchema != 0 && within.isSchema():
			if err := yield(within); err != nil {
				return err
			}
		case where&schemaList != 0 && within.kind == array, where&schemaMap != 0 && within.kind == object:
			for _, s := range within.items {
				if s.isSchema() { // otherwise it is a list of names in dependencies
					if err := yield(s); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// isSchema reports whether v can be a schema: an object, true or false (draft 2020-12 core, 4.3).
func (v *value) isSchema() bool { return v.kind == object || v.kind == boolean }

// keyword returns the value of a keyword, or nil if there is none. A null counts as none, because
// generators of schemas write it for absent values.
func (v *value) keyword(name string) *value {
	if k := v.member(name); k != nil && k.kind != null {
		return k
	}
	return nil
}

// keywordString returns the string value of a keyword, or "" if there is none.
func (v *value) keywordString(name string) string {
	if k := v.keyword(name); k != nil {
		return k.text
	}
	return ""
}
