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
	f.known("", root, "args", "context", "approved")
	f.object(root, "/args")
	call := agent.ToolCall{Context: f.pairs(root, "/context"), Approved: f.boolean(root, "/approved")}
	if err := f.err(); err != nil {
		return agent.ToolCall{}, err
	}
	call.Args, err = written(body, "args")
	return call, err
}

// written is a member of a body that parse has read, as its caller wrote it: what parse
// made of it has lost the order of its keys. Parse has also shown that every key is
// there once, and decoding into a map compares names exactly.
func written(body []byte, name string) (json.RawMessage, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(body, &raw); err != nil {
		return nil, invalid("", "not JSON")
	}
	return raw[name], nil
}
