package event

import (
	"encoding/json"
	"errors"
	"slices"
)

// Suspended says that the run does nothing until a person answers one of the open interrupts.
type Suspended struct {
	Interrupts []Interrupt `json:"interrupts"` // all open interrupts
}

// The kinds of an Interrupt.
const (
	KindApproval    = "approval"
	KindElicitation = "elicitation"
	KindBudget      = "budget"
)

// Interrupt is one question to a person that a run waits for. The run's owner may answer it. An Interrupt has
// everything that a client needs to show and answer the question, and everything that a process needs to continue the
// run after a takeover.
type Interrupt struct {
	ID      string `json:"id"`
	Kind    string `json:"kind"` // KindApproval, KindElicitation or KindBudget
	Call           // the waiting call; the zero Call for KindBudget, where the run itself waits
	Message string `json:"message"`

	// For KindApproval: the call that an approval permits once.
	Args        json.RawMessage `json:"args,omitempty"`
	ArgsSHA256  string          `json:"args_sha256,omitempty"`  // SHA-256 of Args as events have it, in hex
	ToolVersion string          `json:"tool_version,omitempty"` // SHA-256 of the tool's definition, in hex

	// For KindElicitation.
	Mode   string          `json:"mode,omitempty"` // form or url
	Schema json.RawMessage `json:"schema,omitempty"`
	URL    string          `json:"url,omitempty"`
	// HeldOpen says that the MCP server waits for the answer within its open call. Such a question ends with the
	// process that made the call.
	HeldOpen bool `json:"held_open,omitempty"`

	// For KindBudget: the limit that the run reached, under its name in requests.
	Limit string  `json:"limit,omitempty"`
	Used  float64 `json:"used,omitempty"`
	Max   float64 `json:"max,omitempty"`

	// ChildRunID is the child run that asks, if the waiting call asks another agent. Tool and Server then belong to the
	// child's call, while CallID belongs to the parent's.
	ChildRunID string `json:"child_run_id,omitempty"`

	CreatedAt int64 `json:"created_at"` // milliseconds since the Unix epoch
	ExpiresAt int64 `json:"expires_at"`
}

// Body returns the event that asks the question: ApprovalRequired, BudgetRequired or Elicitation.
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
		return BudgetRequired{
			InterruptID: i.ID,
			Limit:       i.Limit,
			Used:        i.Used,
			Max:         i.Max,
			Message:     i.Message,
			ExpiresAt:   i.ExpiresAt,
		}
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

// ErrSuspended says that the run is suspended and that the event was refused. While a run waits for a person, only the
// events that mayFollowSuspended allows can be appended.
var ErrSuspended = errors.New("the run is suspended")

// mayFollowSuspended reports whether an event with this body may be appended while the run is suspended. Interrupts,
// their resolutions and terminal events may.
func mayFollowSuspended(body Body) bool {
	switch body.(type) {
	case Elicitation, ElicitationResolved, ApprovalRequired, ApprovalResolved, BudgetRequired, BudgetResolved:
		return true
	}
	return isTerminal(body)
}

// openInterrupt is an interrupt without an answer.
type openInterrupt struct {
	id              string
	resolutionAtEnd Body // the event that resolves the interrupt if the run ends without an answer
}

// applyInterruptLocked handles suspended events, interrupts and resolutions for applyLocked. handled is false for any
// other body. reason says why the event may not come now; it is "" if the event was applied. An interrupt of a call
// requires that the call is running, an interrupt about a budget requires that no step is open, and a resolution
// requires that its interrupt is open. The caller holds w.mu.
func (w *Writer) applyInterruptLocked(body Body) (reason string, handled bool) {
	switch body := body.(type) {
	case Suspended:
		return w.suspendLocked(), true
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
		return w.openBudgetInterruptLocked(body), true
	case ApprovalResolved:
		return w.resolveInterruptLocked(body.InterruptID), true
	case ElicitationResolved:
		return w.resolveInterruptLocked(body.InterruptID), true
	case BudgetResolved:
		return w.resolveInterruptLocked(body.InterruptID), true
	}
	return "", false
}

// suspendLocked marks the run as suspended and returns "". If a step is open, or no interrupt was opened since the last
// Suspended event, it returns the reason to refuse the event. The caller holds w.mu.
func (w *Writer) suspendLocked() string {
	switch {
	case w.suspended || len(w.interrupts) == 0:
		return "the run does not wait for anything new"
	case w.step != 0:
		return "a step is open"
	}
	w.suspended = true
	return ""
}

// openCallInterruptLocked opens interrupt id for the call c. If the call is not running or the interrupt is already
// open, it changes nothing and returns the reason. The caller holds w.mu.
func (w *Writer) openCallInterruptLocked(c Call, id string, resolutionAtEnd Body) string {
	if reason := w.checkRunningLocked(c); reason != "" {
		return reason
	}
	return w.openInterruptLocked(id, resolutionAtEnd)
}

// openBudgetInterruptLocked opens an interrupt about a budget. If a step or the interrupt is already open, it changes
// nothing and returns the reason. The caller holds w.mu.
func (w *Writer) openBudgetInterruptLocked(body BudgetRequired) string {
	if w.step != 0 {
		return "a step is open"
	}
	return w.openInterruptLocked(body.InterruptID, BudgetResolved{
		InterruptID: body.InterruptID,
		Limit:       body.Limit,
		Max:         body.Max,
		Reason:      "The run ended.",
	})
}

// openInterruptLocked opens interrupt id. resolutionAtEnd is the field of openInterrupt. It also marks the run as not
// suspended, so that the run appends another Suspended event that lists the new interrupt. If the interrupt is already
// open, it changes nothing and returns the reason. The caller holds w.mu.
func (w *Writer) openInterruptLocked(id string, resolutionAtEnd Body) string {
	for _, interrupt := range w.interrupts {
		if interrupt.id == id {
			return "that question is open already"
		}
	}
	w.interrupts = append(w.interrupts, openInterrupt{id, resolutionAtEnd})
	w.suspended = false
	return ""
}

// resolveInterruptLocked closes interrupt id and marks the run as not suspended, because the run can now continue. If
// the interrupt is not open, it changes nothing and returns the reason. The caller holds w.mu.
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

// hasInterruptLocked reports whether the call c has an open interrupt. The caller holds w.mu.
func (w *Writer) hasInterruptLocked(c Call) bool {
	for _, interrupt := range w.interrupts {
		ofCall, ok := interrupt.resolutionAtEnd.(interface{ call() Call })
		if ok && ofCall.call().CallID == c.CallID {
			return true
		}
	}
	return false
}
