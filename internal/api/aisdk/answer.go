package aisdk

import (
	"encoding/json"
	"strings"

	"answerd/internal/agent"
)

// Answer is a person's answer to one interrupt of a run.
type Answer struct {
	agent.Input
	// Output is the output of the tool "elicitation" as the page has it; nil for an
	// approval.
	Output json.RawMessage
}

// readAnswers returns those in the parts of a message. An elicitation whose answer was taken is
// marked as executed by the provider since.
func readAnswers(parts []part) (out []Answer) {
	for _, p := range parts {
		elicitation := p.calledTool() == ElicitationTool && !p.ProviderExecuted
		switch {
		case p.Approval != nil && p.State == "approval-responded" && p.Approval.Approved != nil:
			reason := strings.ToValidUTF8(p.Approval.Reason[:min(len(p.Approval.Reason), maxReason)], "")
			out = append(out, Answer{Input: agent.Input{ID: p.Approval.ID, Approved: p.Approval.Approved, Reason: reason}})
		case elicitation && p.State == "output-available":
			out = append(out, Answer{readElicitation(p), p.Output})
		case elicitation && p.State == "output-error":
			out = append(out, Answer{agent.Input{ID: p.ToolCallID, Action: "cancel"}, json.RawMessage(`{"action":"cancel"}`)})
		}
	}
	return out
}

// readElicitation reads the output of the tool "elicitation": {"action", "content"}. What is
// something else makes an action that the agent refuses.
func readElicitation(p part) agent.Input {
	var o struct {
		Action  string          `json:"action"`
		Content json.RawMessage `json:"content"`
	}
	_ = json.Unmarshal(p.Output, &o)
	if string(o.Content) == "null" {
		o.Content = nil
	}
	return agent.Input{ID: p.ToolCallID, Action: o.Action, Content: o.Content}
}
