package schema

import (
	"fmt"
	"math"
)

// shape is what the value of a keyword may be.
type shape uint16

const (
	one         shape = 1 << iota // a schema
	list                          // a list of schemas
	byName                        // an object of schemas
	names                         // a list of strings
	namesByName                   // an object of lists of strings
	anything                      // a list of anything
	truth                         // a boolean
	word                          // a string
	quantity                      // a number
	count                         // an integer
)

// keywords are those that must be of a shape (draft 2020-12 core, 8 to 10, and validation, 6 to 9;
// draft-07, 6). Definitions are among them: a reference may lead there.
var keywords = map[string]shape{
	"$defs": byName, "definitions": byName,
	"properties": byName, "patternProperties": byName, "dependentSchemas": byName, "dependencies": byName | namesByName,
	"prefixItems": list, "allOf": list, "anyOf": list, "oneOf": list,
	"items": one | list, "additionalItems": one, "contains": one, "unevaluatedItems": one,
	"additionalProperties": one, "propertyNames": one, "unevaluatedProperties": one,
	"not": one, "if": one, "then": one, "else": one, "contentSchema": one,

	"$schema": word, "$id": word, "$ref": word, "$dynamicRef": word, "$anchor": word, "$dynamicAnchor": word, "$comment": word,
	"title": word, "description": word, "format": word, "contentEncoding": word, "contentMediaType": word,
	"deprecated": truth, "readOnly": truth, "writeOnly": truth, "examples": anything,

	"type": word | names, "enum": anything, "required": names, "dependentRequired": namesByName,
	"pattern": word, "uniqueItems": truth,
	"minimum": quantity, "maximum": quantity, "exclusiveMinimum": quantity, "exclusiveMaximum": quantity, "multipleOf": quantity,
	"minLength": count, "maxLength": count, "minItems": count, "maxItems": count, "minContains": count, "maxContains": count,
	"minProperties": count, "maxProperties": count,
}

// maxCount is the largest value of a keyword that counts.
const maxCount = 1 << 53

var (
	// shapeOf is what a value of that type can be.
	shapeOf = map[kind]shape{
		boolean: truth | one, text: word, fraction: quantity, integer: quantity | count,
		array: list | names | anything, object: one | byName | namesByName,
	}
	// element is the shape of what is in a list or object.
	element  = map[shape]shape{list: one, byName: one, names: word, namesByName: names}
	typeName = map[kind]string{
		null: "null", boolean: "bool", integer: "number", fraction: "fraction", text: "string", array: "array", object: "object",
	}
)

// wrong returns what in v is not of that shape, v or something in it; nil if nothing is.
func (s shape) wrong(v *value) *value {
	s &= shapeOf[v.kind]
	if s == count && math.Abs(v.float) > maxCount || s == 0 {
		return v
	}
	var within shape
	for outer, inner := range element {
		if s&outer != 0 {
			within |= inner
		}
	}
	if within == 0 || s&one != 0 {
		return nil
	}
	for _, item := range v.items {
		if wrong := within.wrong(item); wrong != nil {
			return wrong
		}
	}
	return nil
}

// checkKeywords returns an error if a keyword of the schema v cannot have its value.
func checkKeywords(v *value) error {
	for i, name := range v.names {
		given := v.items[i]
		s, known := keywords[name]
		if !known || given.kind == null || given != v.get(name) {
			continue
		}
		if wrong := s.wrong(given); wrong != nil {
			return fmt.Errorf("%q in it cannot be a %s", name, typeName[wrong.kind])
		}
	}
	return nil
}

// children calls yield for every schema right within the schema v.
func children(v *value, yield func(*value) error) error {
	for i, name := range v.names {
		within, where := v.items[i], keywords[name]
		if v.get(name) != within { // written twice, and the last counts
			continue
		}
		switch {
		case where&one != 0 && within.isSchema():
			if err := yield(within); err != nil {
				return err
			}
		case where&list != 0 && within.kind == array, where&byName != 0 && within.kind == object:
			for _, s := range within.items {
				if s.isSchema() { // else it is one of the lists of names in dependencies
					if err := yield(s); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func (v *value) isSchema() bool { return v.kind == object || v.kind == boolean }

// keyword is the value of a keyword; nil where there is none. null says nothing.
func (v *value) keyword(name string) *value {
	if k := v.get(name); k != nil && k.kind != null {
		return k
	}
	return nil
}

// string is the keyword's text, "" where there is none.
func (v *value) string(name string) string {
	if k := v.keyword(name); k != nil {
		return k.text
	}
	return ""
}
