// Package recorded defines what a run that is executed again takes from a recording, because it depends on time, on
// people or on services that are not asked again: the order of concurrent events, and the decisions of rules and hooks.
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
	// of a call other than suspended. An error means that the event must not be appended. Most events are appended even
	// if ctx has ended, so Order may continue to wait until kept ends: another process continues the run then.
	Order func(ctx, kept context.Context, run string, b event.Body) error
	// Charge waits for the position in the recording at which a call was charged to the budget of its run. If child is
	// not "", it waits for the position at which the usage of that child run of the call was charged. It returns early
	// if kept ends.
	Charge func(kept context.Context, run, callID, child string)
	// Suspends reports whether the next event of the run is suspended; ok is false if the run itself decides.
	Suspends func(run string) (suspends, ok bool)
	// ChildBudget returns the budget and the tool choice of the child run of a call; ok is false if they follow from
	// the budget of its parent.
	ChildBudget func(run, callID string) (limits budget.Limits, tools llm.ToolChoice, ok bool)
	// Decision returns what a rule or a hook decided about a call.
	Decision func(run, callID string) Decision
	// Ended returns the reason for which a hook ended the run in that step, after the model answered if answered is
	// set, and before the model was asked otherwise; ok is false if no hook did.
	Ended func(run string, step int, answered bool) (reason string, ok bool)
	// ManualClock lets the time of runs pass only with AdvanceClock.
	ManualClock bool
}

// Decision is what rules and hooks decided about a recorded call. The zero value means that they changed nothing.
type Decision struct {
	Denied        string          // the message with which the call was refused; "" if it was not
	AfterApproval bool            // the call was refused after a person had approved it
	Args          json.RawMessage // the arguments that a hook wrote; nil if no hook did
	Result        *content.Result // the result of a hook in place of the tool's; nil if no hook gave one
	Ended         bool            // a hook ended the run when it was asked about the call
	Reason        string          // the reason of Ended
}
