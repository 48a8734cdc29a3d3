package schema

import (
	"fmt"
	"iter"
	"math"
)

// keywordType is the set of types that a keyword's value may have.
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

// keywords lists the keywords whose type is checked (draft 2020-12 core, 8 to 10, and validation, 6 to 9; draft-07, 6).
// It includes definitions and annotations, because a reference may point into them.
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

// maxCount is the largest allowed value of a keyword that limits a count, such as maxItems.
const maxCount = 1 << 53

var (
	// typesOf maps a kind of JSON value to the keyword types that accept it. No keyword type accepts null, because
	// checkKeywords skips keywords whose value is null.
	typesOf = map[kind]keywordType{
		boolean: boolValue | oneSchema, text: stringValue, fraction: numberValue, integer: numberValue | countValue,
		array: schemaList | stringList | anyList, object: oneSchema | schemaMap | stringListMap,
	}
	// elementType maps the type of a list or object to the type of its items or members.
	elementType = map[keywordType]keywordType{schemaList: oneSchema, schemaMap: oneSchema, stringList: stringValue, stringListMap: stringList}
	// typeName maps a kind to its name in error texts.
	typeName = map[kind]string{
		null: "null", boolean: "a bool", integer: "a number", fraction: "a fraction", text: "a string", array: "an array", object: "an object",
	}
)

// findMismatch returns v, or the first value in the list or object v, that has none of the given types. A countValue
// above maxCount is also a mismatch. It returns nil if all values match. It does not look into schemas, because
// checkKeywords is called for each of them separately.
func (types keywordType) findMismatch(v *value) *value {
	possible := types & typesOf[v.kind] // those that a value of v's kind may have
	isTooLarge := possible == countValue && math.Abs(v.float) > maxCount
	if possible == 0 || isTooLarge {
		return v
	}
	elementTypes := possible.elementTypes()
	isSchema := possible&oneSchema != 0
	if isSchema || elementTypes == 0 {
		return nil
	}
	for _, item := range v.items {
		if mismatch := elementTypes.findMismatch(item); mismatch != nil {
			return mismatch
		}
	}
	return nil
}

// elementTypes returns the types that the items or members of a value may have if the value's type is in types. It
// returns 0 if the items may have any type, or if no type in types has items. The result can have several types: in
// draft-07, a member of dependencies is a schema or a list of strings.
func (types keywordType) elementTypes() (found keywordType) {
	for outer, inner := range elementType {
		if types&outer != 0 {
			found |= inner
		}
	}
	return found
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
			return fmt.Errorf("%q in it cannot be %s", name, typeName[mismatch.kind])
		}
	}
	return nil
}

// subschemas yields the schemas directly within v, which is at loc, and their locations: the values of v's keywords, and
// the items or members of such a value. It does not descend into the schemas that it yields.
func (v *value) subschemas(loc *location) iter.Seq2[*value, *location] {
	return func(yield func(*value, *location) bool) {
		for i, name := range v.names {
			given, allowed := v.items[i], keywords[name]
			if given != v.member(name) { // a later member with the same name overrides it
				continue
			}
			keywordLoc := loc.member(name)
			if allowed&oneSchema != 0 && given.isSchema() && !yield(given, keywordLoc) {
				return
			}
			isList := allowed&schemaList != 0 && given.kind == array
			isMap := allowed&schemaMap != 0 && given.kind == object
			if !isList && !isMap {
				continue // not a schema, or null, which counts as absent
			}
			for j, item := range given.items {
				itemLoc := keywordLoc.item(j)
				if isMap {
					itemLoc = keywordLoc.member(given.names[j])
				}
				// A member of dependencies may also be a list of names.
				if item.isSchema() && !yield(item, itemLoc) {
					return
				}
			}
		}
	}
}

// isSchema reports whether v can be a schema: an object, true or false (draft 2020-12 core, 4.3).
func (v *value) isSchema() bool { return v.kind == object || v.kind == boolean }

// isTrue reports whether v is the JSON value true.
func (v *value) isTrue() bool { return v.kind == boolean && v.raw[0] == 't' }

// keyword returns the value of the keyword name, or nil if v lacks the keyword or its value is null. Null counts as
// absent, because schema generators write null for absent values. Use member to read const, for which null is a value.
func (v *value) keyword(name string) *value {
	given := v.member(name)
	if given == nil || given.kind == null {
		return nil
	}
	return given
}

// keywordString returns the string value of the keyword name, or "" if v lacks the keyword or its value is not a
// string.
func (v *value) keywordString(name string) string {
	if k := v.keyword(name); k != nil {
		return k.text
	}
	return ""
}
