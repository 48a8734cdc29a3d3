package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"answerd/internal/mcp/wire"
)

// fieldTypes are the types that a field of a form may have (2025-11-25 client/elicitation, PrimitiveSchemaDefinition).
var fieldTypes = []string{"string", "number", "integer", "boolean", "array"}

// plainForm returns form with only the kinds of fields that MCP defines: fields of fieldTypes, and lists with choices.
// It keeps the order of the fields. MCP's forms have no null, but some servers let an optional field be null: the
// Python SDK 1 does so for Optional[str]. Such a field gets its other type. The error names a field that MCP forbids.
func plainForm(form json.RawMessage) (json.RawMessage, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(form, &members); err != nil {
		return nil, fmt.Errorf("the requested schema does not decode: %w", err)
	}
	if members["properties"] == nil {
		return form, nil
	}
	var fields bytes.Buffer // the fields of the result, each after a comma
	var fieldErr error      // about the first field that is not allowed
	isPlain := true
	err := wire.Members(members["properties"], func(name string, field json.RawMessage) {
		plain, err := withoutNull(field)
		if err != nil && fieldErr == nil {
			fieldErr = fmt.Errorf("the field %.80q of the requested schema %w", name, err)
		}
		if plain != nil {
			isPlain = false
			field = plain
		}
		fmt.Fprintf(&fields, ",%s:%s", wire.Quote(name), field)
	})
	if err != nil {
		return nil, fmt.Errorf("the properties of the requested schema do not decode: %w", err)
	}
	if fieldErr != nil || isPlain {
		return form, fieldErr
	}
	withoutComma := fields.Bytes()[1:]
	members["properties"] = slices.Concat([]byte("{"), withoutComma, []byte("}"))
	return json.Marshal(members)
}

// withoutNull returns field, the schema of one field, without null among its types. It returns nil if field has no
// null. The error says why MCP does not allow field, and continues a sentence whose subject is the field.
func withoutNull(field json.RawMessage) (plain json.RawMessage, err error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(field, &members); err != nil {
		return nil, fmt.Errorf("does not decode: %w", err)
	}
	hadNull := removeNull(members)
	fieldType, _ := wire.Text(members["type"])
	var items map[string]json.RawMessage
	_ = json.Unmarshal(members["items"], &items) // items stays empty if the field is not a list
	switch {
	case !slices.Contains(fieldTypes, fieldType), members["properties"] != nil:
		return nil, errors.New("is neither a text, a number, a boolean nor a choice")
	case fieldType == "array" && items["enum"] == nil && items["anyOf"] == nil && items["oneOf"] == nil:
		return nil, errors.New("is a list of anything, and not of choices")
	case !hadNull:
		return nil, nil
	}
	if string(members["default"]) == "null" {
		delete(members, "default")
	}
	return json.Marshal(members)
}

// removeNull removes null if it is one of the two types or alternatives (anyOf) of the field with these members, and
// reports whether it was.
func removeNull(members map[string]json.RawMessage) bool {
	if removeNullAlternative(members) {
		return true
	}
	var types []string
	if json.Unmarshal(members["type"], &types) != nil || len(types) != 2 {
		return false
	}
	nullIndex := slices.Index(types, "null")
	if nullIndex < 0 {
		return false
	}
	members["type"] = wire.Quote(types[1-nullIndex]) // the other one of the two
	return true
}

// removeNullAlternative removes anyOf from members, those of a field, if it has two alternatives and one of them is
// null. It reports whether it did. It adds the other alternative's members that members lacks.
func removeNullAlternative(members map[string]json.RawMessage) bool {
	var alternatives []map[string]json.RawMessage
	if json.Unmarshal(members["anyOf"], &alternatives) != nil || len(alternatives) != 2 {
		return false
	}
	isNull := func(a map[string]json.RawMessage) bool { return string(a["type"]) == `"null"` }
	nullIndex := slices.IndexFunc(alternatives, isNull)
	if nullIndex < 0 {
		return false
	}
	delete(members, "anyOf")
	other := alternatives[1-nullIndex]
	for name, value := range other {
		if members[name] == nil {
			members[name] = value
		}
	}
	return true
}
