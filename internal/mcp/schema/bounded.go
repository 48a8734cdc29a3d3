package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"answerd/internal/mcp/wire"
)

// Limits for a schema that an MCP server sends with a tool or an elicitation. They are lower than those of Compile,
// because a tool's schema is sent to the model with every request.
const (
	MaxSize  = 64 << 10 // bytes
	MaxDepth = 32       // levels of nesting
)

// Bounded returns an MCP server's schema without insignificant white space, or nil if raw is empty or null. It returns
// an error if raw is not a JSON object within MaxSize and MaxDepth. The error text, such as "is not an object", has no
// subject: callers prepend the schema's name.
func Bounded(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	if len(raw) > MaxSize {
		return nil, fmt.Errorf("is larger than %d bytes", MaxSize)
	}
	if raw[0] != '{' {
		return nil, errors.New("is not an object")
	}
	if wire.IsDeeper(raw, MaxDepth) {
		return nil, fmt.Errorf("is nested deeper than %d levels", MaxDepth)
	}
	var compacted bytes.Buffer
	if err := json.Compact(&compacted, raw); err != nil {
		return nil, err
	}
	return compacted.Bytes(), nil
}

// BoundedObject is like Bounded, for the schema of tool arguments or of a form, which must be objects. Model providers
// require the type "object", so BoundedObject adds it if raw has no type, or is empty or null. It returns an error if
// raw has another type. Like those of Bounded, its errors have no subject.
func BoundedObject(raw json.RawMessage) (json.RawMessage, error) {
	bounded, err := Bounded(raw)
	if err != nil {
		return nil, err
	}
	if bounded == nil || string(bounded) == "{}" {
		return json.RawMessage(`{"type":"object"}`), nil
	}
	var decoded struct {
		Type json.RawMessage `json:"type"`
	}
	if err := json.Unmarshal(bounded, &decoded); err != nil {
		return nil, fmt.Errorf("does not decode: %w", err)
	}
	switch {
	case string(decoded.Type) == `"object"`:
		return bounded, nil
	case decoded.Type != nil:
		return nil, errors.New("is not of type object")
	}
	membersAndEnd := bounded[len("{"):]
	return append(json.RawMessage(`{"type":"object",`), membersAndEnd...), nil
}
