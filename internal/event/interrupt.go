package event

import (
	"encoding/json"
	"errors"
	"slices"
)

// Suspended says that everything in the run waits for a person.
type Suspended struct {
	Interrupts []Interrupt `json:"interrupts"` // all that are open
}

// The kinds of an Interrupt.
const (
	KindApproval    = "approval"
	KindElicitation = "elicitation"
	KindBudget      = "budget"
)

// Interrupt is one question to a person that a run waits for. The owner of the run may answer
// it. It has everything that a client needs to show and answer the question, and everything
// that a process needs to continue the run after a takeover.
type Interrupt struct {
	ID      string `json:"id"`
	Kind    string `json:"kind"` // KindApproval, KindElicitation or KindBudget
	Call           // the call that waits; zero for KindBudget, because the run itself waits
	Message string `json:"message"`

	// For KindApproval: the call that a consent permits once.
	Args        json.RawMessage `json:"args,omitempty"`
	ArgsSHA256  string          `json:"args_sha256,omitempty"`  // of the bytes of Args, in hex
	ToolVersion string          `json:"tool_version,omitempty"` // SHA-256 of the tool's definition, in hex

	// For KindElicitation.
	Mode   string          `json:"mode,omitempty"` // form or url
	Schema json.RawMessage `json:"schema,omitempty"`
	URL    string          `json:"url,omitempty"`
	// HeldOpen says that the MCP server waits for the answer within its open call. So the
	// question does not survive the process that made the call.
	HeldOpen bool `json:"held_open,omitempty"`

	// For KindBudget: the limit that is reached, by its name in requests.
	Limit string  `json:"limit,omitempty"`
	Used  float64 `json:"used,omitempty"`
	Max   float64 `json:"max,omitempty"`

	// ChildRunID is the child run that asks, if the call asks another agent. Tool and Server are then of
	// the child's call, and CallID is the parent's.
	ChildRunID string `json:"child_run_id,omitempty"`

	CreatedAt int64 `json:"created_at"` // milliseconds since the Unix epoch
	ExpiresAt int64 `json:"expires_at"`
}

// Body returns the event that asks the question.
func (i Interrupt) Body() Body {
	switch i.Kind {
	case KindApproval:
		return ApprovalRequired{
			Call:        i.Call,
			InterruptID: i.ID,
			Args:        i.Args,
			Message:     i.Message,
			ToolVersion: i.ToolVersion,
			ExpiresAt:   i.ExpiresAt,
			ChildRunID:  i.ChildRunID,
		}
	case KindBudget:
		return BudgetRequired{InterruptID: i.ID, Limit: i.Limit, Used: i.Used, Max: i.Max, Message: i.Message, ExpiresAt: i.ExpiresAt}
	}
	return Elicitation{
		Call:        i.Call,
		InterruptID: i.ID,
		Mode:        i.Mode,
		Message:     i.Message,
		Schema:      i.Schema,
		URL:         i.URL,
		HeldOpen:    i.HeldOpen,
		ExpiresAt:   i.ExpiresAt,
		ChildRunID:  i.ChildRunID,
	}
}

// ErrSuspended says that an event was refused because the run is suspended: it waits for a person, and only events
// that mayFollowSuspended allows may come.
var ErrSuspended = errors.New("the run is suspended")

// mayFollowSuspended reports whether an event with that body may come while the run is suspended: an interrupt, the
// resolution of one, or a terminal event.
func mayFollowSuspended(body Body) bool {
	switch body.(type) {
	case Elicitation, ElicitationResolved, ApprovalRequired, ApprovalResolved, BudgetRequired, BudgetResolved:
		return true
	}
	return isTerminal(body)
}

// openInterrupt is an interrupt of a run that has no answer yet.
type openInterrupt struct {
	id         string
	unanswered Body // the event that resolves the interrupt if the run ends without an answer
}

// applyInterruptLocked is the part of applyLocked for suspended, for interrupts and for their resolutions. For these it
// returns true, and a reason if the event may not come now. An interrupt of a call needs a running call, an interrupt
// about a budget must come between two steps, and a resolution needs an open interrupt. The caller holds w.mu.
func (w *Writer) applyInterruptLocked(body Body) (reason string, handled bool) {
	switch body := body.(type) {
	case Suspended:
		switch {
		case w.suspended || len(w.interrupts) == 0:
			return "the run does not wait for anything new", true
		case w.step != 0:
			return "a step is open", true
		}
		w.suspended = true
	case ApprovalRequired:
		return w.openCallInterruptLocked(body.Call, body.InterruptID, ApprovalResolved{
			Call:        body.Call,
			InterruptID: body.InterruptID,
			Reason:      "The run ended.",
		}), true
	case Elicitation:
		return w.openCallInterruptLocked(body.Call, body.InterruptID, ElicitationResolved{
			Call:        body.Call,
			InterruptID: body.InterruptID,
			Action:      "cancel",
		}), true
	case BudgetRequired:
		if w.step != 0 {
			return "a step is open", true
		}
		return w.openInterruptLocked(body.InterruptID, BudgetResolved{
			InterruptID: body.InterruptID,
			Limit:       body.Limit,
			Max:         body.Max,
			Reason:      "The run ended.",
		}), true
	case ApprovalResolved:
		return w.resolveInterruptLocked(body.InterruptID), true
	case ElicitationResolved:
		return w.resolveInterruptLocked(body.InterruptID), true
	case BudgetResolved:
		return w.resolveInterruptLocked(body.InterruptID), true
	default:
		return "", false
	}
	return "", true
}

// openCallInterruptLocked opens an interrupt of the call c. It returns a reason if the call is not running, or if the
// interrupt is open already.
func (w *Writer) openCallInterruptLocked(c Call, id string, unanswered Body) string {
	if reason := w.checkRunningLocked(c); reason != "" {
		return reason
	}
	return w.openInterruptLocked(id, unanswered)
}

// openInterruptLocked opens an interrupt, after which the run is not suspended until the next Suspended: readers must
// get a list with the new interrupt. It returns a reason if the interrupt is open already.
func (w *Writer) openInterruptLocked(id string, unanswered Body) string {
	for _, interrupt := range w.interrupts {
		if interrupt.id == id {
			return "that question is open already"
		}
	}
	w.interrupts = append(w.interrupts, openInterrupt{id, unanswered})
	w.suspended = false
	return ""
}

// resolveInterruptLocked closes an interrupt, after which the run is not suspended: it has something to do. It returns
// a reason if the interrupt is not open.
func (w *Writer) resolveInterruptLocked(id string) string {
	for i, interrupt := range w.interrupts {
		if interrupt.id == id {
			w.interrupts = slices.Delete(w.interrupts, i, i+1)
			w.suspended = false
			return ""
		}
	}
	return "that question is not open"
}

// hasInterruptLocked reports whether an interrupt of the call is open.
func (w *Writer) hasInterruptLocked(c Call) bool {
	for _, interrupt := range w.interrupts {
		ofCall, ok := interrupt.unanswered.(interface{ call() Call })
		if ok && ofCall.call().CallID == c.CallID {
			return true
		}
	}
	return false
}
