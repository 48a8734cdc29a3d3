package event

import (
	"encoding/json"
	"errors"
)

// The kinds of an Interrupt.
const (
	KindApproval    = "approval"
	KindElicitation = "elicitation"
	KindBudget      = "budget"
)

// Interrupt is one thing that a run waits for a person to decide. With the Run that it
// belongs to, whose owner is the one who may answer, it is the whole record: who reads
// the event can show it and answer it, and who takes the run over can go on from it.
type Interrupt struct {
	ID      string `json:"id"`
	Kind    string `json:"kind"` // KindApproval, KindElicitation or KindBudget
	Call           // zero of a budget, for which the run itself waits
	Message string `json:"message"`

	// Of an approval: what it is good for, once.
	Args        json.RawMessage `json:"args,omitempty"`
	ArgsSHA256  string          `json:"args_sha256,omitempty"`  // of Args as they stand, in hex
	ToolVersion string          `json:"tool_version,omitempty"` // SHA-256 of the tool's definition, in hex

	// Of an elicitation.
	Mode   string          `json:"mode,omitempty"` // form or url
	Schema json.RawMessage `json:"schema,omitempty"`
	URL    string          `json:"url,omitempty"`
	// HeldOpen says that the server's call stays open for the answer, in the process that
	// made it: the question does not survive that process.
	HeldOpen bool `json:"held_open,omitempty"`

	// Of a budget: the limit that is reached, as requests name it.
	Limit string  `json:"limit,omitempty"`
	Used  float64 `json:"used,omitempty"`
	Max   float64 `json:"max,omitempty"`

	CreatedAt int64 `json:"created_at"` // milliseconds since the Unix epoch
	ExpiresAt int64 `json:"expires_at"`
}

// Body is the event that asks.
func (i Interrupt) Body() Body {
	switch i.Kind {
	case KindApproval:
		return ApprovalRequired{
			Call: i.Call, InterruptID: i.ID, Args: i.Args, Message: i.Message, ToolVersion: i.ToolVersion, ExpiresAt: i.ExpiresAt,
		}
	case KindBudget:
		return BudgetRequired{InterruptID: i.ID, Limit: i.Limit, Used: i.Used, Max: i.Max, Message: i.Message, ExpiresAt: i.ExpiresAt}
	}
	return Elicitation{
		Call: i.Call, InterruptID: i.ID, Mode: i.Mode, Message: i.Message, Schema: i.Schema, URL: i.URL, HeldOpen: i.HeldOpen, ExpiresAt: i.ExpiresAt,
	}
}

// ErrSuspended: the run waits for a person, and nothing happens until he has answered.
var ErrSuspended = errors.New("the run is suspended")

// wakes reports whether b may come while the run is suspended.
func wakes(b Body) bool {
	switch b.(type) {
	case Elicitation, ElicitationResolved, ApprovalRequired, ApprovalResolved, BudgetRequired, BudgetResolved:
		return true
	}
	return terminal(b)
}

// openInterrupt is a question of a run that has no answer yet.
type openInterrupt struct {
	id   string
	none Body // that nobody answered it
}

// applyInterruptLocked is the order of questions and answers: each answer follows its
// question, and a call does not end before its own are answered. Between suspended and
// the next of them nothing else happens, so that what a reader saw last holds. ok is
// false for bodies that are neither.
func (w *Writer) applyInterruptLocked(b Body) (reason string, ok bool) {
	switch b := b.(type) {
	case Suspended:
		switch {
		case w.suspended || len(w.asked) == 0:
			return "nothing new is waited for", true
		case w.step != 0:
			return "a step is open", true
		}
		w.suspended = true
	case ApprovalRequired:
		return w.askForLocked(b.Call, b.InterruptID, ApprovalResolved{Call: b.Call, InterruptID: b.InterruptID, Reason: "The run ended."}), true
	case Elicitation:
		return w.askForLocked(b.Call, b.InterruptID, ElicitationResolved{Call: b.Call, InterruptID: b.InterruptID, Action: "cancel"}), true
	case BudgetRequired:
		if w.step != 0 {
			return "a step is open", true
		}
		return w.askLocked(b.InterruptID, BudgetResolved{InterruptID: b.InterruptID, Limit: b.Limit, Max: b.Max, Reason: "The run ended."}), true
	case ApprovalResolved:
		return w.resolveLocked(b.InterruptID), true
	case ElicitationResolved:
		return w.resolveLocked(b.InterruptID), true
	case BudgetResolved:
		return w.resolveLocked(b.InterruptID), true
	default:
		return "", false
	}
	return "", true
}

// askForLocked is askLocked for a call.
func (w *Writer) askForLocked(c Call, id string, none Body) string {
	if reason := w.runningLocked(c); reason != "" {
		return reason
	}
	return w.askLocked(id, none)
}

func (w *Writer) askLocked(id string, none Body) string {
	for _, a := range w.asked {
		if a.id == id {
			return "that is asked already"
		}
	}
	w.asked = append(w.asked, openInterrupt{id, none})
	w.suspended = false
	return ""
}

func (w *Writer) resolveLocked(id string) string {
	for i, a := range w.asked {
		if a.id == id {
			w.asked = append(w.asked[:i], w.asked[i+1:]...)
			w.suspended = false
			return ""
		}
	}
	return "that is not asked"
}

// askedLocked reports whether a question of the call is open.
func (w *Writer) askedLocked(c Call) bool {
	for _, a := range w.asked {
		if of, ok := a.none.(interface{ call() Call }); ok && of.call().CallID == c.CallID {
			return true
		}
	}
	return false
}
