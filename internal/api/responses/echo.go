package responses

import (
	"encoding/json"
	"maps"
)

// What a response repeats of its request has all its members, null where the request had
// none: Open Responses requires them, and clients with schemas refuse what lacks one.

type object = map[string]any

var (
	wholeFunction  = object{"name": nil, "description": nil, "parameters": nil, "strict": nil}
	wholeReasoning = object{"effort": nil, "summary": nil}
	wholeSchema    = object{"name": nil, "description": nil, "schema": nil, "strict": false}
)

// withMembers returns an object with the members of another one where it lacks them. Null lacks
// them all.
func withMembers(raw json.RawMessage, members object) json.RawMessage {
	given, out := object{}, maps.Clone(members)
	_ = json.Unmarshal(raw, &given) // it was read as an object before
	maps.Copy(out, given)
	data, _ := json.Marshal(out) // what was read is written
	return data
}

func completeTool(raw json.RawMessage) json.RawMessage {
	var t struct{ Type string }
	if json.Unmarshal(raw, &t) != nil || t.Type != "function" {
		return raw
	}
	return withMembers(raw, wholeFunction)
}

// completeText returns the member text, whose format is the plain one where none was asked for.
func completeText(raw json.RawMessage) json.RawMessage {
	var t struct{ Format json.RawMessage }
	_ = json.Unmarshal(raw, &t) // it was read as an object before
	var kind struct{ Type string }
	_ = json.Unmarshal(t.Format, &kind)
	var format any = object{"type": "text"}
	switch kind.Type {
	case "json_schema":
		format = withMembers(t.Format, wholeSchema)
	case "json_object":
		format = object{"type": kind.Type}
	}
	var out object
	if json.Unmarshal(raw, &out) != nil || out == nil {
		out = object{}
	}
	out["format"] = format
	data, _ := json.Marshal(out)
	return data
}
