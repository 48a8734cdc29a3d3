package rerun

import (
	"slices"
	"strings"

	"answerd/internal/agent/recorded"
	"answerd/internal/event"
	"answerd/internal/mcp"
)

// ownDenials begin the failures of calls that the run loop denies by itself when a run is executed again, or
// that follow from what a person answered. All others are of a rule or a hook.
var ownDenials = []string{
	recorded.BudgetUsedUp, recorded.LimitOfTurn, recorded.NoMoreCalls, recorded.RefusedByPerson, recorded.NotApproved,
	recorded.ResultWithheld, // the call was sent
}

// decision implements recorded.Inputs.Decision. No event says that a rule or a hook decided, so it is concluded from
// the outcome: a denial that the run loop does not make by itself, a result without the approval that the tool
// needs, arguments that neither the model nor a person wrote, and an end of the run with the code tool_aborted.
func (s *session) decision(run, callID string) (decision recorded.Decision) {
	state := s.byID(run)
	if state == nil || state.rec.calls[callID] == nil || state.rec.calls[callID].end == nil {
		return decision
	}
	call, definitions := state.rec.calls[callID], &tools{s}
	args, asked, approved := call.approval()
	if !asked {
		args = endArgs(*call.end)
	}

	switch b := call.end.Body.(type) {
	case event.ToolError:
		personAgrees := asked == approved // no person was asked about the call, or they approved it
		if b.Kind == string(mcp.Denied) && !isOwnDenial(b.Payload) && personAgrees {
			decision.Denied, decision.AfterApproval = b.Payload, approved
		}
	case event.ToolResult:
		if tool, ok := definitions.Tool(call.name); ok && tool.NeedsApproval && !asked {
			decision.Result, _ = state.rec.outcome(s.ctx, mcp.Call{}, *call.end) // the outcome of a result has no error
		}
	}

	if args != nil && !sameJSON(args, call.args) {
		// The agent itself changes the model's arguments to the types of the schema. Any other change is a hook's.
		if fitted, err := definitions.CheckArgs(call.name, call.args); err != nil || !sameJSON(args, fitted) {
			decision.Args = args
		}
	}
	if reason, ok := state.rec.abortReason(); ok && state.rec.abortedBy() == call {
		decision.Ended, decision.Reason = true, reason
	}
	return decision
}

// isOwnDenial reports whether reason, the failure of a denied call, is one of ownDenials.
func isOwnDenial(reason string) bool {
	return slices.ContainsFunc(ownDenials, func(prefix string) bool { return strings.HasPrefix(reason, prefix) })
}

// approval reports whether a person was asked about the call itself, and whether they approved it. args are the
// arguments that the person was shown: they may have changed them afterwards, which is not a decision of a hook.
func (c *recordedCall) approval() (args []byte, asked, approved bool) {
	for _, e := range c.events {
		switch b := e.Body.(type) {
		case event.ApprovalRequired:
			if b.ChildRunID == "" { // otherwise a child run asked, about a call of its own
				args, asked = b.Args, true
			}
		case event.ApprovalResolved:
			approved = approved || b.Approved
		}
	}
	return args, asked, approved
}

// endArgs returns the arguments in the outcome of a call, or nil if e is not an outcome.
func endArgs(e event.Event) []byte {
	switch b := e.Body.(type) {
	case event.ToolResult:
		return b.Args
	case event.ToolError:
		return b.Args
	}
	return nil
}

// endedByHook implements recorded.Inputs.Ended. A hook that ended the run with the answer of a step left a step_end
// with the finish reason error. A hook that ended it before the model was asked left no step_start of that step or a
// later one. answered says which of the two the agent asks about. If ok is false, reason has no meaning.
func (s *session) endedByHook(run string, step int, answered bool) (reason string, ok bool) {
	r := s.byID(run)
	if r == nil {
		return "", false
	}
	reason, ok = r.rec.abortReason()
	if !ok {
		return "", false
	}
	for _, e := range slices.Backward(r.rec.events) {
		switch b := e.Body.(type) {
		case event.StepEnd:
			if answered {
				return reason, b.Step == step && b.FinishReason == "error"
			}
		case event.StepStart:
			return reason, b.Step < step && !answered
		}
	}
	return reason, !answered
}
