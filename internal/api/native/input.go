package native

import (
	"answerd/internal/agent"
)

// actions are the answers to an elicitation (MCP client/elicitation).
var actions = []string{"accept", "decline", "cancel"}

// maxReason bounds a person's reason, in bytes.
const maxReason = 1024

// DecodeInput reads the body of POST /runs/{run_id}/input: an answer to an approval,
// which has approved, or to an elicitation, which has action. The error is an *Invalid.
// Whether the answer is one to what the run asks is for the agent to say.
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
	if _, given := root["id"]; !given {
		f.add("/id", "required")
	}
	in := agent.Input{ID: f.id(root, "/id")}
	_, approval := root["approved"]
	_, elicitation := root["action"]
	switch {
	case approval && !elicitation:
		f.known("", root, "id", "approved", "reason", "args")
		approved := f.boolean(root, "/approved")
		in.Approved, in.Reason = &approved, f.text(root, "/reason", maxReason)
		f.object(root, "/args")
	case elicitation && !approval:
		f.known("", root, "id", "action", "content")
		in.Action = f.choice(root, "/action", actions)
		f.object(root, "/content")
	default:
		f.known("", root, "id", "approved", "reason", "args", "action", "content")
		f.add("/action", "either action or approved is required, and not both")
	}
	if err := f.err(); err != nil {
		return agent.Input{}, err
	}
	if in.Args, err = written(body, "args"); err != nil {
		return agent.Input{}, err
	}
	in.Content, err = written(body, "content")
	return in, err
}
