package schema

// shape is where the schemas are in a keyword's value.
type shape uint8

const (
	one    shape = 1 << iota // the value is a schema
	list                     // or a list of them
	byName                   // or an object of them
)

// subschemas are the keywords that hold schemas (draft 2020-12 core, 10; draft-07, 6).
// Definitions are among them: a reference may lead there.
var subschemas = map[string]shape{
	"$defs": byName, "definitions": byName,
	"properties": byName, "patternProperties": byName, "dependentSchemas": byName, "dependencies": byName,
	"prefixItems": list, "allOf": list, "anyOf": list, "oneOf": list,
	"items": one | list, "additionalItems": one, "contains": one, "unevaluatedItems": one,
	"additionalProperties": one, "propertyNames": one, "unevaluatedProperties": one,
	"not": one, "if": one, "then": one, "else": one, "contentSchema": one,
}

// children calls yield for every schema right within the schema v.
func children(v *value, yield func(*value) error) error {
	for i, name := range v.names {
		within, where := v.items[i], subschemas[name]
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
