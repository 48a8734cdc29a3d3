package native

import (
	"encoding/json"

	"answerd/internal/agent"
)

// actions are the answers to an elicitation (MCP client/elicitation).
var actions = []string{"accept", "decline", "cancel"}

// DecodeInput reads the body of POST /runs/{run_id}/input. The error is an *Invalid.
// Whether the content fits is for who asked to say.
func DecodeInput(body []byte) (agent.Input, error) {
	v, err := parse(body)
	if err != nil {
		return agent.Input{}, err
	}
	root, ok := v.(map[string]any)
	if !ok {
		return agent.Input{}, invalid("", "must be an object")
	}
	f := &fields{}
	f.known("", root, "id", "action", "content")
	for _, name := range []string{"id", "action"} {
		if _, given := root[name]; !given {
			f.add("/"+name, "required")
		}
	}
	in := agent.Input{ID: f.id(root, "/id"), Action: f.choice(root, "/action", actions)}
	if content := f.object(root, "/content"); content != nil {
		if in.Content, err = json.Marshal(content); err != nil {
			f.add("/content", "does not encode")
		}
	}
	return in, f.err()
}
