// Package recorded defines what a rerun takes from a recording, because it depends on time, on people, or on services
// that are not asked again: the order of concurrent events, and the decisions of rules and hooks.
//
//	agent.Options{Repeat: &recorded.Inputs{Order: order, Charge: charge, …}} // see package rerun
//
// The functions of Inputs may be called concurrently. Suspends must not block.
package recorded

import (
	"context"
	"encoding/json"

	"answerd/internal/agent/budget"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp/content"
)

// Inputs holds what reruns take from a recording. All functions must be set.
type Inputs struct {
	// Order blocks until the recording has b as the run's next event. b is about to be appended; it is a step_start, or
	// an event of a call other than suspended. If Order returns an error, b must not be appended. Most events are
	// appended even if ctx has ended, so Order may continue to block until untilRelinquished ends.
	Order func(ctx, untilRelinquished context.Context, run string, b event.Body) error
	// Charge blocks until the recording charges a call to its run's budget or, if child is not "", until it charges
	// what the call's child run has used. It returns early if untilRelinquished ends.
	Charge func(untilRelinquished context.Context, run, callID, child string)
	// Suspends reports whether the run's next event in the recording is suspended. If ok is false, the run decides.
	Suspends func(run string) (suspends, ok bool)
	// ChildBudget returns the budget and the tool choice of a call's child run. If ok is false, the parent's budget
	// decides.
	ChildBudget func(run, callID string) (limits budget.Limits, tools llm.ToolChoice, ok bool)
	// Decision returns what rules and hooks decided about a call.
	Decision func(run, callID string) Decision
	// Ended returns the reason for which a hook ended the run in a step: after the model answered if answered is true,
	// and otherwise before the model was asked. ok is false if no hook ended it there.
	Ended func(run string, step int, answered bool) (reason string, ok bool)
	// ManualClock makes a run's time pass only through AdvanceClock.
	ManualClock bool
}

// Decision is what rules and hooks decided about a recorded call. The zero value means that they changed nothing.
type Decision struct {
	Denied        string          // the message that refused the call; "" if it was not refused
	AfterApproval bool            // a person had approved the call before it was refused
	Args          json.RawMessage // the arguments from a hook; nil if no hook changed them
	Result        *content.Result // the result that a hook supplied instead of the tool's; nil if none did
	Ended         bool            // a hook that was asked about the call ended the run
	Reason        string          // why the hook ended the run
}
