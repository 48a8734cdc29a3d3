package mcptool

import (
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/api/native"
	"answerd/internal/event"
)

// maxShownArgs is how many bytes of a call's arguments the message of an approval shows.
const maxShownArgs = 4 << 10

// approvalForm is the JSON Schema of the form for an approval. approved is required, so that a client which accepts an
// empty form without asking its user approves nothing.
var approvalForm = json.RawMessage(`{"type":"object","properties":{` +
	`"approved":{"type":"boolean","title":"Allow this call"},` +
	`"reason":{"type":"string","title":"Reason","description":"for the agent, above all of a refusal","maxLength":1024}},` +
	`"required":["approved"]}`)

// Elicitation is a question to a person: a form to fill in, or a URL to visit (MCP, client/elicitation). It has the
// same fields as mcpserver.Elicitation, so that the API can convert it.
type Elicitation struct {
	ID      string // the interrupt's id
	Mode    string // "form" or "url"
	Message string
	Schema  json.RawMessage // the form's schema; nil for a URL
	URL     string          // "" for a form
}

// InterruptOf returns the interrupt that an event opens. ok is false if the event opens neither an approval nor an
// elicitation. Interrupts for budget limits are left out, because the agent opens none in a run of this tool.
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

// ResolvedInterrupt returns the id of the approval or elicitation that an event resolves, or "" if the event resolves
// neither.
func ResolvedInterrupt(b event.Body) string {
	switch b := b.(type) {
	case event.ApprovalResolved:
		return b.InterruptID
	case event.ElicitationResolved:
		return b.InterruptID
	}
	return ""
}

// ElicitationOf returns the elicitation that asks a person about an interrupt. An MCP server's elicitation is passed on
// unchanged. An approval becomes a form, whose message shows the call.
func ElicitationOf(interrupt event.Interrupt) Elicitation {
	if interrupt.Kind == event.KindElicitation {
		return Elicitation{ID: interrupt.ID, Mode: interrupt.Mode, Message: interrupt.Message, Schema: interrupt.Schema, URL: interrupt.URL}
	}
	tool := interrupt.Tool
	if interrupt.Server != "" {
		tool += " of " + interrupt.Server
	}
	note := ""
	if len(interrupt.Args) > maxShownArgs { // the person approves all arguments, so they must know that some are not shown
		note = fmt.Sprintf(" (only the first %d of %d bytes)", maxShownArgs, len(interrupt.Args))
	}
	args := truncate(string(interrupt.Args), maxShownArgs)
	return Elicitation{
		ID: interrupt.ID, Mode: "form", Schema: approvalForm,
		Message: fmt.Sprintf("%s\n\nTool: %s\nArguments%s: %s", interrupt.Message, tool, note, args),
	}
}

// InputOf returns the client's answer to an interrupt's elicitation as input for the agent. action is accept, decline
// or cancel; content is the form's content if it was accepted, or nil. For an approval, every answer is a refusal
// except an accepted form with approved true. The answer to an MCP server's elicitation is passed on, and the agent
// validates it. The answer to a URL has no content; InputOf drops the empty object that some clients send.
func InputOf(interrupt event.Interrupt, action string, content json.RawMessage) agent.Input {
	if interrupt.Kind == event.KindElicitation {
		if interrupt.URL != "" {
			content = nil
		}
		return agent.Input{ID: interrupt.ID, Action: action, Content: content}
	}
	var decision struct {
		Approved bool   `json:"approved"`
		Reason   string `json:"reason"`
	}
	if action != "accept" || json.Unmarshal(content, &decision) != nil {
		decision.Approved = false // also if Unmarshal has set it before it failed
	}
	if action == "cancel" {
		decision.Reason = "The question was dismissed."
	}
	return agent.Input{ID: interrupt.ID, Approved: &decision.Approved, Reason: truncate(decision.Reason, 1000)}
}

// SuspendedResult returns the result of a call whose run, with status s, waits for a person whom the client cannot ask,
// for example because it does not support elicitation. The text says where the person can answer, and where the run's
// answer will be.
func SuspendedResult(s native.Status) Result {
	var b strings.Builder
	b.WriteString("There is no answer yet: a person must decide first, and cannot be asked here.")
	for _, i := range s.Interrupts {
		fmt.Fprintf(&b, "\n- %s (%s): %s", i.ID, i.Kind, truncate(i.Message, 500))
	}
	fmt.Fprintf(&b, "\nIt is decided in the agent's console, or by POST /runs/%s/input; the answer is then at GET /runs/%s.", s.RunID, s.RunID)
	return Result{Text: b.String(), Structured: s}
}
