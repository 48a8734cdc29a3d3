package mcptool

import (
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/api/native"
	"answerd/internal/event"
)

// maxShown bounds the arguments that an approval shows, in bytes.
const maxShown = 4 << 10

// approvalForm requires a value, so that a client which accepts empty forms by itself approves
// nothing.
var approvalForm = json.RawMessage(`{"type":"object","properties":{` +
	`"approved":{"type":"boolean","title":"Allow this call"},` +
	`"reason":{"type":"string","title":"Reason","description":"for the agent, above all of a refusal","maxLength":1024}},` +
	`"required":["approved"]}`)

// Elicitation is a question to a person: a form to fill in or a URL to visit. It has the fields of
// mcpserver.Elicitation.
type Elicitation struct {
	ID      string
	Mode    string // form or url
	Message string
	Schema  json.RawMessage // of a form
	URL     string
}

// InterruptOf returns the interrupt that the event opens; ok is false if it opens none.
func InterruptOf(b event.Body) (i event.Interrupt, ok bool) {
	switch b := b.(type) {
	case event.ApprovalRequired:
		return event.Interrupt{ID: b.InterruptID, Kind: event.KindApproval, Call: b.Call, Message: b.Message, Args: b.Args}, true
	case event.Elicitation:
		return event.Interrupt{
			ID: b.InterruptID, Kind: event.KindElicitation, Call: b.Call, Message: b.Message, Mode: b.Mode, Schema: b.Schema, URL: b.URL,
		}, true
	}
	return event.Interrupt{}, false
}

// ResolvedInterrupt returns the id of the interrupt that the event resolves; "" if it resolves none.
func ResolvedInterrupt(b event.Body) string {
	switch b := b.(type) {
	case event.ApprovalResolved:
		return b.InterruptID
	case event.ElicitationResolved:
		return b.InterruptID
	}
	return ""
}

// ElicitationOf returns the elicitation of an interrupt. An approval is a form.
func ElicitationOf(i event.Interrupt) Elicitation {
	if i.Kind == event.KindElicitation {
		return Elicitation{ID: i.ID, Mode: i.Mode, Message: i.Message, Schema: i.Schema, URL: i.URL}
	}
	tool := i.Tool
	if i.Server != "" {
		tool += " of " + i.Server
	}
	return Elicitation{
		ID: i.ID, Mode: "form", Schema: approvalForm,
		Message: fmt.Sprintf("%s\n\nTool: %s\nArguments: %s", i.Message, tool, truncate(string(i.Args), maxShown)),
	}
}

// InputOf returns the answer to an interrupt. An approval form with invalid content is a refusal; the
// agent validates the content of a server's form.
func InputOf(i event.Interrupt, action string, content json.RawMessage) agent.Input {
	if i.Kind == event.KindElicitation {
		if action == "accept" && content == nil && i.Mode == "form" {
			content = json.RawMessage("{}")
		}
		return agent.Input{ID: i.ID, Action: action, Content: content}
	}
	var given struct {
		Approved bool   `json:"approved"`
		Reason   string `json:"reason"`
	}
	if action != "accept" || json.Unmarshal(content, &given) != nil {
		given.Approved = false
	}
	if action == "cancel" {
		given.Reason = "The question was dismissed."
	}
	return agent.Input{ID: i.ID, Approved: &given.Approved, Reason: truncate(given.Reason, 1000)}
}

// Suspended returns the result of a run that is suspended for a person whom the client cannot ask. The
// person answers elsewhere, and the answer of the run is available there.
func Suspended(s native.Status) Result {
	var b strings.Builder
	b.WriteString("There is no answer yet: a person must decide first, and cannot be asked here.")
	for _, i := range s.Interrupts {
		fmt.Fprintf(&b, "\n- %s (%s): %s", i.ID, i.Kind, truncate(i.Message, 500))
	}
	fmt.Fprintf(&b, "\nIt is decided in the agent's console, or by POST /runs/%s/input; the answer is then at GET /runs/%s.", s.RunID, s.RunID)
	return Result{Text: b.String(), Structured: s}
}
