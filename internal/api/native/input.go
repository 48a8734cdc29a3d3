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
	d := newDecoder("", body)
	var in agent.Input
	given := make(map[string]bool)
	for name := range d.readObject("id") {
		given[name] = true
		switch name {
		case "id":
			in.ID = d.readID()
		case "approved":
			approved := d.readBool()
			in.Approved = &approved
		case "reason":
			in.Reason = d.readText(maxReason)
		case "args":
			in.Args = d.readRaw()
		case "action":
			in.Action = d.readChoice(actions)
		case "content":
			in.Content = d.readRaw()
		default:
			d.rejectUnknown()
		}
	}
	var wrong []string
	switch approval, elicitation := given["approved"], given["action"]; {
	case approval == elicitation:
		d.addErrorAt("/action", "either action or approved is required, and not both")
	case approval:
		wrong = []string{"content"}
	default:
		wrong = []string{"reason", "args"}
	}
	for _, name := range wrong {
		if given[name] {
			d.addErrorAt("/"+name, "unknown field")
		}
	}
	return in, d.finishBody()
}
