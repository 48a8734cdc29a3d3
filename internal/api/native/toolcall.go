package native

import (
	"encoding/json"

	"answerd/internal/agent"
)

// DecodeToolCall reads the body of POST /tools/{name}/call, which says all but the
// tool's name. The error is an *Invalid.
func DecodeToolCall(body []byte) (agent.ToolCall, error) {
	v, err := parse(body)
	if err != nil {
		return agent.ToolCall{}, err
	}
	root, ok := v.(map[string]any)
	if !ok {
		return agent.ToolCall{}, invalid("", "must be an object")
	}
	f := &fields{}
	f.known("", root, "args", "context")
	f.object(root, "/args")
	call := agent.ToolCall{Context: f.pairs(root, "/context")}
	if err := f.err(); err != nil {
		return agent.ToolCall{}, err
	}
	// The arguments go on as the caller wrote them: what parse made of them has lost
	// the order of their keys. It has also shown that every key is there once, and
	// decoding into a map compares names exactly.
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(body, &raw); err != nil {
		return agent.ToolCall{}, invalid("", "not JSON")
	}
	call.Args = raw["args"]
	return call, nil
}
