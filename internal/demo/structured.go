package demo

import (
	"encoding/json"
	"regexp"
)

// structuredNumber matches the numbers of an answer.
var structuredNumber = regexp.MustCompile(`-?\d+(?:\.\d+)?`)

// structuredText returns an answer as JSON of the schema: numbers are the last one in the text, and
// strings are the text. The stand-in knows the keywords type and properties only, so its answer may
// violate a schema with others.
func structuredText(schema json.RawMessage, text string) string {
	var raw struct {
		Type       string
		Properties map[string]json.RawMessage
	}
	_ = json.Unmarshal(schema, &raw) // another schema is one without a type
	var value any = text
	switch raw.Type {
	case "object":
		members := make(map[string]json.RawMessage)
		for name, property := range raw.Properties {
			members[name] = json.RawMessage(structuredText(property, text))
		}
		value = members
	case "array":
		value = []string{}
	case "boolean":
		value = true
	case "null":
		value = nil
	case "number", "integer":
		value = json.Number("0")
		if all := structuredNumber.FindAllString(text, -1); len(all) > 0 {
			value = json.Number(all[len(all)-1])
		}
	}
	out, _ := json.Marshal(value) // cannot fail for these types
	return string(out)
}
