package mcptool

import (
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/api/native"
	"answerd/internal/event"
)

// maxShown bounds the arguments in the message of an approval, in bytes.
const maxShown = 4 << 10

// approvalForm is the schema of the form for an approval. approved is required, so that a client
// which accepts an empty form by itself approves nothing.
var approvalForm = json.RawMessage(`{"type":"object","properties":{` +
	`"approved":{"type":"boolean","title":"Allow this call"},` +
	`"reason":{"type":"string","title":"Reason","description":"for the agent, above all of a refusal","maxLength":1024}},` +
	`"required":["approved"]}`)

// Elicitation is a question to a person: a form to fill in, or a URL to visit (MCP,
// client/elicitation). It has the fields of mcpserver.Elicitation.
type Elicitation struct {
	ID      string
	Mode    string // form or url
	Message string
	Schema  json.RawMessage // of a form
	URL     string
}

// InterruptOf returns the interrupt that the event opens. ok is false if it opens none. A budget
// limit is not an interrupt here: the agent does not ask about it in a call of this tool.
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

// ResolvedInterrupt returns the id of the interrupt that the event resolves, or "" if it resolves
// none.
func ResolvedInterrupt(b event.Body) string {
	switch b := b.(type) {
	case event.ApprovalResolved:
		return b.InterruptID
	case event.ElicitationResolved:
		return b.InterruptID
	}
	return ""
}

// ElicitationOf returns the elicitation that asks about an interrupt. A server's elicitation is
// passed on; an approval becomes a form, with the call in its message.
func ElicitationOf(interrupt event.Interrupt) Elicitation {
	if interrupt.Kind == event.KindElicitation {
		return Elicitation{ID: interrupt.ID, Mode: interrupt.Mode, Message: interrupt.Message, Schema: interrupt.Schema, URL: interrupt.URL}
	}
	tool := interrupt.Tool
	if interrupt.Server != "" {
		tool += " of " + interrupt.Server
	}
	note := ""
	if len(interrupt.Args) > maxShown { // the approval is for all of them
		note = fmt.Sprintf(" (only the first %d of %d bytes)", maxShown, len(interrupt.Args))
	}
	return Elicitation{
		ID: interrupt.ID, Mode: "form", Schema: approvalForm,
		Message: fmt.Sprintf("%s\n\nTool: %s\nArguments%s: %s", interrupt.Message, tool, note, truncate(string(interrupt.Args), maxShown)),
	}
}

// InputOf returns the input that resolves an interrupt from the client's answer to the
// elicitation. action is accept, decline or cancel. For an approval, anything but a valid form
// with approved is a refusal. The content of a server's form is passed on, because the agent
// validates it.
func InputOf(interrupt event.Interrupt, action string, content json.RawMessage) agent.Input {
	if interrupt.Kind == event.KindElicitation {
		if action == "accept" && content == nil && interrupt.Mode == "form" {
			content = json.RawMessage("{}")
		}
		return agent.Input{ID: interrupt.ID, Action: action, Content: content}
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
	return agent.Input{ID: interrupt.ID, Approved: &given.Approved, Reason: truncate(given.Reason, 1000)}
}

// SuspendedResult returns the result of a run that waits for a person whom the client cannot ask,
// for example because it does not support elicitation. It says where the person can answer, and
// where the answer of the run will be.
func SuspendedResult(s native.Status) Result {
	var b strings.Builder
	b.WriteString("There is no answer yet: a person must decide first, and cannot be asked here.")
	for _, i := range s.Interrupts {
		fmt.Fprintf(&b, "\n- %s (%s): %s", i.ID, i.Kind, truncate(i.Message, 500))
	}
	fmt.Fprintf(&b, "\nIt is decided in the agent's console, or by POST /runs/%s/input; the answer is then at GET /runs/%s.", s.RunID, s.RunID)
	return Result{Text: b.String(), Structured: s}
}
