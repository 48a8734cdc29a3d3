// Package recorded says what a run that is executed again takes from a recording in place of what depends on
// time, on people, and on services that are not asked again: the order of what happens at the same time, and
// what rules and hooks decided.
//
//	agent.Options{Repeat: &recorded.Inputs{Order: order, Charge: charge, …}} // see package rerun
//
// The functions of Inputs may be called by any number of goroutines. Suspends must not block.
package recorded

import (
	"context"
	"encoding/json"

	"answerd/internal/agent/budget"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp/content"
)

// Inputs are what runs that are executed again take from a recording. All functions are set.
type Inputs struct {
	// Order waits until the run has come to the event b, which is about to be appended: a step_start, or an event
	// of a call other than suspended. An error means that the event must not be appended. Most events are appended even if
	// ctx has ended, so Order may continue to wait until kept ends: another process continues the run then.
	Order func(ctx, kept context.Context, run string, b event.Body) error
	// Charge waits until a call is charged to the budget of its run, or until what the child run of the call has
	// used is; child is "" in the first case.
	Charge func(kept context.Context, run, callID, child string)
	// Suspends reports whether the next event of the run is suspended; ok is false if the run itself decides.
	Suspends func(run string) (suspends, ok bool)
	// ChildBudget returns what the child run of a call may use, and how it may use tools; ok is false if that
	// follows from the budget of its parent.
	ChildBudget func(run, callID string) (limits budget.Limits, tools llm.ToolChoice, ok bool)
	// Decision returns what a rule or a hook decided about a call.
	Decision func(run, callID string) Decision
	// Ended returns whether a hook ended the run before the model was asked in that step, or with its answer,
	// and why.
	Ended func(run string, step int, answered bool) (reason string, ok bool)
	// ManualClock lets the time of runs pass only with AdvanceClock.
	ManualClock bool
}

// Decision is what a rule or a hook decided about a recorded call. The zero value means that none did.
type Decision struct {
	Denied        string          // the message with which the call was refused; "" if it was not
	AfterApproval bool            // that came after a person had approved the call
	Args          json.RawMessage // that a hook wrote; nil for none
	Result        *content.Result // a hook's answer in place of the tool's; nil for none
	Ended         bool            // a hook ended the run with the call
	Reason        string          // why
}
