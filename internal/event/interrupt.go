package event

import (
	"encoding/json"
	"errors"
)

// Suspended says that everything in the run waits for a person.
type Suspended struct {
	Interrupts []Interrupt `json:"interrupts"`
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
	Call           // zero of a budget, for which the run itself waits
	Message string `json:"message"`

	// Of an approval: the call that it permits, once.
	Args        json.RawMessage `json:"args,omitempty"`
	ArgsSHA256  string          `json:"args_sha256,omitempty"`  // of the bytes of Args, in hex
	ToolVersion string          `json:"tool_version,omitempty"` // SHA-256 of the tool's definition, in hex

	// Of an elicitation.
	Mode   string          `json:"mode,omitempty"` // form or url
	Schema json.RawMessage `json:"schema,omitempty"`
	URL    string          `json:"url,omitempty"`
	// HeldOpen says that the MCP server waits for the answer within its open call. So the
	// question does not survive the process that made the call.
	HeldOpen bool `json:"held_open,omitempty"`

	// Of a budget: the limit that is reached, as requests name it.
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

// ErrSuspended says that the run waits for a person, and only their answer or the end may follow.
var ErrSuspended = errors.New("the run is suspended")

// mayFollowSuspended reports whether the event may come while the run is suspended.
func mayFollowSuspended(b Body) bool {
	switch b.(type) {
	case Elicitation, ElicitationResolved, ApprovalRequired, ApprovalResolved, BudgetRequired, BudgetResolved:
		return true
	}
	return isTerminal(b)
}

// openInterrupt is a question of a run that has no answer yet.
type openInterrupt struct {
	id         string
	unanswered Body // the event that resolves it when the run ends
}

// applyInterruptLocked enforces the order of questions and answers. Each answer follows its
// question, and a call does not end before its questions are answered. After suspended only a
// question, an answer or the end may follow, so that what readers saw last stays true. ok is
// false for other bodies.
func (w *Writer) applyInterruptLocked(b Body) (reason string, ok bool) {
	switch body := b.(type) {
	case Suspended:
		switch {
		case w.suspended || len(w.questions) == 0:
			return "the run does not wait for anything new", true
		case w.step != 0:
			return "a step is open", true
		}
		w.suspended = true
	case ApprovalRequired:
		return w.askForCallLocked(body.Call, body.InterruptID, ApprovalResolved{
			Call:        body.Call,
			InterruptID: body.InterruptID,
			Reason:      "The run ended.",
		}), true
	case Elicitation:
		return w.askForCallLocked(body.Call, body.InterruptID, ElicitationResolved{
			Call:        body.Call,
			InterruptID: body.InterruptID,
			Action:      "cancel",
		}), true
	case BudgetRequired:
		if w.step != 0 {
			return "a step is open", true
		}
		return w.askLocked(body.InterruptID, BudgetResolved{
			InterruptID: body.InterruptID,
			Limit:       body.Limit,
			Max:         body.Max,
			Reason:      "The run ended.",
		}), true
	case ApprovalResolved:
		return w.resolveLocked(body.InterruptID), true
	case ElicitationResolved:
		return w.resolveLocked(body.InterruptID), true
	case BudgetResolved:
		return w.resolveLocked(body.InterruptID), true
	default:
		return "", false
	}
	return "", true
}

// askForCallLocked opens a question of a running call.
func (w *Writer) askForCallLocked(c Call, id string, unanswered Body) string {
	if reason := w.checkRunningLocked(c); reason != "" {
		return reason
	}
	return w.askLocked(id, unanswered)
}

// askLocked opens a question.
func (w *Writer) askLocked(id string, unanswered Body) string {
	for _, a := range w.questions {
		if a.id == id {
			return "that question is open already"
		}
	}
	w.questions = append(w.questions, openInterrupt{id, unanswered})
	w.suspended = false
	return ""
}

// resolveLocked closes a question.
func (w *Writer) resolveLocked(id string) string {
	for i, a := range w.questions {
		if a.id == id {
			w.questions = append(w.questions[:i], w.questions[i+1:]...)
			w.suspended = false
			return ""
		}
	}
	return "that question is not open"
}

// hasQuestionLocked reports whether a question of the call is open.
func (w *Writer) hasQuestionLocked(c Call) bool {
	for _, a := range w.questions {
		if of, ok := a.unanswered.(interface{ call() Call }); ok && of.call().CallID == c.CallID {
			return true
		}
	}
	return false
}
