package demo

import (
	"encoding/json"
	"regexp"
)

// textNumber matches a number in a text.
var textNumber = regexp.MustCompile(`-?\d+(?:\.\d+)?`)

// structuredText returns JSON for schema, made from the text of an answer. A number becomes the last number in the
// text, or 0. A string becomes the text, an array is empty, and a boolean is true. structuredText reads only the
// keywords type and properties, so the JSON may violate a schema with other keywords.
func structuredText(schema json.RawMessage, text string) string {
	var decoded struct {
		Type       string
		Properties map[string]json.RawMessage
	}
	_ = json.Unmarshal(schema, &decoded) // a schema that cannot be decoded, such as true, counts as one without a type
	var value any = text
	switch decoded.Type {
	case "object":
		members := make(map[string]json.RawMessage)
		for name, property := range decoded.Properties {
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
		if numbers := textNumber.FindAllString(text, -1); len(numbers) > 0 {
			value = json.Number(numbers[len(numbers)-1])
		}
	}
	data, _ := json.Marshal(value) // cannot fail for these types
	return string(data)
}
