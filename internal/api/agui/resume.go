package agui

import (
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/event"
)

// Answer is the client's answer to one interrupt. What the payload must contain depends on the interrupt's kind, which
// Decode does not know. InputFor checks it later.
type Answer struct {
	ID        string          // the interrupt's id
	Cancelled bool            // the person cancelled instead of answering
	Payload   json.RawMessage // nil or null if there is none
	Field     string          // the payload's path in the request, for errors
}

// resumption is an item of the member resume.
type resumption struct {
	InterruptID string          `json:"interruptId"`
	Status      string          `json:"status"`
	Payload     json.RawMessage `json:"payload"`
}

// readResume sets q.Answers from resume. It refuses a second answer to the same interrupt.
func (q *Request) readResume(in []resumption) error {
	if len(in) > maxResume {
		return &Invalid{"resume", fmt.Sprintf("must not be more than %d", maxResume)}
	}
	seen := make(map[string]bool)
	for i, r := range in {
		field := fmt.Sprintf("resume[%d]", i)
		switch {
		case r.InterruptID == "" || len(r.InterruptID) > maxID:
			return &Invalid{field + ".interruptId", "must be 1 to 128 bytes"}
		case seen[r.InterruptID]:
			return &Invalid{field + ".interruptId", "given twice"}
		case r.Status != "resolved" && r.Status != "cancelled":
			return &Invalid{field + ".status", "must be resolved or cancelled"}
		}
		seen[r.InterruptID] = true
		q.Answers = append(q.Answers, Answer{
			ID: r.InterruptID, Cancelled: r.Status == "cancelled", Payload: r.Payload, Field: field + ".payload",
		})
	}
	return nil
}

// PayloadField translates a JSON pointer from the agent's input, which InputFor makes of an Answer, to the Answer's
// payload, so that an error about the input names the client's field. kind is the interrupt's kind: /args/n becomes
// /editedArgs/n for an approval, /args/max becomes /max for a budget limit, and /content/n becomes /n for an
// elicitation.
func PayloadField(kind, pointer string) string {
	if rest, ok := strings.CutPrefix(pointer, "/content"); ok {
		return rest
	}
	rest, ok := strings.CutPrefix(pointer, "/args")
	if ok && kind == event.KindApproval {
		return "/editedArgs" + rest
	}
	return rest
}

// InputFor returns the answer as the agent's input for an interrupt of the given kind (event.KindApproval and so on).
// The payload is {"approved", "reason", "editedArgs"} for an approval, {"approved", "reason", "max"} for a budget
// limit, and the form's content for an elicitation. A cancelled answer refuses the approval or the higher limit, or
// cancels the elicitation. The error is an *Invalid.
func (a Answer) InputFor(kind string) (agent.Input, error) {
	payload := a.Payload
	if string(payload) == "null" {
		payload = nil
	}
	if kind == event.KindApproval || kind == event.KindBudget {
		return a.decisionInput(kind, payload)
	}
	if a.Cancelled {
		return agent.Input{ID: a.ID, Action: "cancel"}, nil
	}
	return agent.Input{ID: a.ID, Action: "accept", Content: payload}, nil
}

// decisionInput is InputFor for approvals and budget limits. It ignores a cancelled answer's payload.
func (a Answer) decisionInput(kind string, payload json.RawMessage) (agent.Input, error) {
	if a.Cancelled {
		refused := false
		return agent.Input{ID: a.ID, Approved: &refused}, nil
	}
	var decision struct {
		Approved   *bool           `json:"approved"`
		Reason     string          `json:"reason"`
		EditedArgs json.RawMessage `json:"editedArgs"`
		Max        json.RawMessage `json:"max"`
	}
	if json.Unmarshal(payload, &decision) != nil || decision.Approved == nil {
		return agent.Input{ID: a.ID}, &Invalid{a.Field, "must have approved, which is true or false"}
	}
	reason := decision.Reason[:min(len(decision.Reason), maxReason)]
	reason = strings.ToValidUTF8(reason, "") // the cut may split a character
	input := agent.Input{ID: a.ID, Approved: decision.Approved, Reason: reason}
	switch {
	case kind == event.KindBudget && decision.Max != nil:
		input.Args = json.RawMessage(`{"max":` + string(decision.Max) + `}`)
	case kind == event.KindApproval && string(decision.EditedArgs) != "null":
		input.Args = decision.EditedArgs
	}
	return input, nil
}
