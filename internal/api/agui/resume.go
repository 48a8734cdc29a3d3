package agui

import (
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/event"
)

// Answer is the client's answer to one interrupt. What its payload must contain depends on the
// kind of the interrupt, which Decode does not know, so InputFor checks it later.
type Answer struct {
	ID        string
	Cancelled bool
	Payload   json.RawMessage
	At        string // the path of the payload, for errors
}

// resumption is an item of the member resume.
type resumption struct {
	InterruptID string          `json:"interruptId"`
	Status      string          `json:"status"`
	Payload     json.RawMessage `json:"payload"`
}

// readResume reads the answers to interrupts, at most one for each.
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
		q.Answers = append(q.Answers, Answer{r.InterruptID, r.Status == "cancelled", r.Payload, field + ".payload"})
	}
	return nil
}

// PayloadField returns the JSON pointer within a payload of a field of POST /runs/{run_id}/input.
func PayloadField(pointer string) string {
	if rest, ok := strings.CutPrefix(pointer, "/content"); ok {
		return rest
	}
	if rest, ok := strings.CutPrefix(pointer, "/args"); ok && rest != "/max" {
		return "/editedArgs" + rest
	}
	return strings.TrimPrefix(pointer, "/args")
}

// InputFor returns the answer as input for an interrupt of the given kind. The payload of an
// approval is {"approved", "reason", "editedArgs"}, that of a budget limit {"approved", "reason",
// "max"}, and that of an elicitation the content of its form. To cancel means to refuse an
// approval or a higher budget. The error is an *Invalid.
func (a Answer) InputFor(kind string) (agent.Input, error) {
	payload := a.Payload
	if string(payload) == "null" {
		payload = nil
	}

	in := agent.Input{ID: a.ID}
	decides := kind == event.KindApproval || kind == event.KindBudget
	switch {
	case !decides && a.Cancelled:
		in.Action = "cancel"
		return in, nil
	case !decides:
		in.Action, in.Content = "accept", payload
		return in, nil
	case a.Cancelled:
		in.Approved = new(bool)
		return in, nil
	}

	var p struct {
		Approved   *bool           `json:"approved"`
		Reason     string          `json:"reason"`
		EditedArgs json.RawMessage `json:"editedArgs"`
		Max        json.RawMessage `json:"max"`
	}
	if json.Unmarshal(payload, &p) != nil || p.Approved == nil {
		return in, &Invalid{a.At, "must have approved, which is true or false"}
	}
	in.Approved, in.Reason = p.Approved, strings.ToValidUTF8(p.Reason[:min(len(p.Reason), maxReason)], "")

	switch {
	case kind == event.KindBudget && p.Max != nil:
		in.Args = json.RawMessage(`{"max":` + string(p.Max) + `}`)
	case kind == event.KindApproval && string(p.EditedArgs) != "null":
		in.Args = p.EditedArgs
	}
	return in, nil
}
