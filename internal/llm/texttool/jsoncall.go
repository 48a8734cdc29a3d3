package texttool

import (
	"encoding/json"
	"strings"
)

// parseJSONCalls reads calls in JSON: an object, a list of objects, or objects separated by white space, commas or
// semicolons. It returns nil if one of the values is not a call.
func parseJSONCalls(text string) []writtenCall { return parseJSONList(text, maxWrappers) }

// maxWrappers is the deepest nesting of objects around a call, such as {"tool_calls": […]}. It is limited because each
// object is decoded with everything in it: the time grows with the square of the depth, and a model may write any
// number of brackets.
const maxWrappers = 4

// parseJSONList is parseJSONCalls with a limit of wrappers nested objects per call, including the call's own object.
func parseJSONList(text string, wrappers int) (calls []writtenCall) {
	for text != "" {
		dec := json.NewDecoder(strings.NewReader(text))
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			return nil
		}
		text = strings.TrimLeft(text[dec.InputOffset():], ",; \t\r\n")
		var list []json.RawMessage
		if json.Unmarshal(value, &list) != nil {
			list = []json.RawMessage{value}
		}
		for _, element := range list {
			elementCalls := parseJSONCall(element, wrappers)
			if elementCalls == nil {
				return nil
			}
			calls = append(calls, elementCalls...)
		}
	}
	return calls
}

// jsonLength returns the length of the JSON value at the start of text, including the white space before it. It returns
// 0 if text does not begin with a complete JSON value.
func jsonLength(text string) int {
	dec := json.NewDecoder(strings.NewReader(text))
	var value json.RawMessage
	if dec.Decode(&value) != nil {
		return 0
	}
	return int(dec.InputOffset())
}

// parseJSONCall reads the calls in one object: a name and arguments under any of the member names that models use, the
// form of Chat Completions, or {"tool_calls": […]}. It returns nil if value is none of these, or if wrappers, the
// number of nested objects that may still be opened, is 0.
func parseJSONCall(value json.RawMessage, wrappers int) []writtenCall {
	var object map[string]json.RawMessage
	if wrappers == 0 || json.Unmarshal(value, &object) != nil {
		return nil
	}
	if list, ok := object["tool_calls"]; ok && len(object) == 1 {
		return parseJSONList(string(list), wrappers-1)
	}
	for _, wrapper := range []string{"function", "function_call", "tool_call"} {
		inner := object[wrapper]
		holdsObject := len(inner) > 0 && inner[0] == '{'
		mayHaveSiblings := wrapper == "function" // such as type, in Chat Completions
		if holdsObject && (mayHaveSiblings || len(object) == 1) {
			return parseJSONCall(inner, wrappers-1)
		}
	}
	if call, ok := callOfMembers(object); ok {
		return []writtenCall{call}
	}
	return nil
}

// callOfMembers returns the call whose name and arguments are members of object. ok is false if object has no name, has
// two names or two sets of arguments, or has any other member. Such an object is data that happens to have a name.
func callOfMembers(object map[string]json.RawMessage) (call writtenCall, ok bool) {
	for member, value := range object {
		switch member {
		case "name", "function", "tool", "tool_name", "action":
			if call.name != "" || json.Unmarshal(value, &call.name) != nil {
				return call, false
			}
		case "arguments", "parameters", "args", "input", "action_input", "tool_input":
			if call.arguments != "" {
				return call, false
			}
			call.arguments = string(value)
			var decoded string // in Chat Completions, the arguments are a string that contains JSON
			if json.Unmarshal(value, &decoded) == nil {
				call.arguments = decoded
			}
		case "id", "type", "index":
		default:
			return call, false
		}
	}
	if call.arguments == "" || call.arguments == "null" {
		call.arguments = "{}"
	}
	return call, call.name != ""
}
