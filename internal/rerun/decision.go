package rerun

import (
	"slices"
	"strings"

	"answerd/internal/agent/recorded"
	"answerd/internal/event"
	"answerd/internal/mcp"
)

// ownDenials lists how the messages of denied calls begin if no rule or hook has denied the call. The run loop denies
// such a call by itself when the run is executed again, or because of what a person answered.
var ownDenials = []string{
	recorded.BudgetUsedUp, recorded.LimitOfTurn, recorded.NoMoreCalls, recorded.RefusedByPerson, recorded.NotApproved,
	recorded.ResultWithheld, // the call was not denied: a hook withheld its result
}

// decision implements recorded.Inputs.Decision. No event says that a rule or a hook decided, so decision infers that
// from the call's outcome: a denial that the run loop does not make by itself, a result without the approval that the
// tool needs, arguments that neither the model nor a person wrote, or an end of the run with the code tool_aborted.
func (s *session) decision(run, callID string) (decision recorded.Decision) {
	state, call := s.endedCall(run, callID)
	if call == nil {
		return decision
	}
	args, asked, approved := call.approval()
	if !asked {
		args = endArgs(*call.end)
	}
	if args != nil && s.isChangedByHook(call, args) {
		decision.Args = args
	}

	switch b := call.end.Body.(type) {
	case event.ToolError:
		personAgrees := asked == approved // no person was asked about the call, or they approved it
		if b.Kind == string(mcp.Denied) && !isOwnDenial(b.Payload) && personAgrees {
			decision.Denied, decision.AfterApproval = b.Payload, approved
		}
	case event.ToolResult:
		if tool, ok := (&tools{s}).Tool(call.name); ok && tool.NeedsApproval && !asked {
			decision.Result, _ = state.rec.outcome(s.ctx, mcp.Call{}, *call.end) // returns no error for a ToolResult
		}
	}

	if reason, ok := state.rec.abortReason(); ok && state.rec.abortedBy() == call {
		decision.Ended, decision.Reason = true, reason
	}
	return decision
}

// isChangedByHook reports whether a hook has changed the model's arguments of a call to args. The agent itself converts
// arguments to the types of the tool's schema, and only a hook makes other changes.
func (s *session) isChangedByHook(call *recordedCall, args []byte) bool {
	if sameJSON(args, call.args) {
		return false
	}
	converted, err := (&tools{s}).CheckArgs(call.name, call.args)
	return err != nil || !sameJSON(args, converted)
}

// isOwnDenial reports whether reason, the message of a denied call, begins with one of ownDenials.
func isOwnDenial(reason string) bool {
	return slices.ContainsFunc(ownDenials, func(prefix string) bool { return strings.HasPrefix(reason, prefix) })
}

// approval reports whether a person was asked about the call itself, and whether they approved it. args are the
// arguments that the person was shown. Changes that the person then made are not in args, because no hook decided them.
func (c *recordedCall) approval() (args []byte, asked, approved bool) {
	for _, e := range c.events {
		switch b := e.Body.(type) {
		case event.ApprovalRequired:
			if b.ChildRunID == "" { // otherwise the question is about a child run's call
				args, asked = b.Args, true
			}
		case event.ApprovalResolved:
			approved = approved || b.Approved
		}
	}
	return args, asked, approved
}

// endArgs returns the arguments in the event that ended a call, or nil if e is not such an event.
func endArgs(e event.Event) []byte {
	switch b := e.Body.(type) {
	case event.ToolResult:
		return b.Args
	case event.ToolError:
		return b.Args
	}
	return nil
}

// endedByHook implements recorded.Inputs.Ended: it reports whether a hook ended the run in the given step. If answered
// is true, the hook must have ended it after the model's answer. That is recorded as a step_end with the finish reason
// error. If answered is false, the hook must have ended the run before the model was asked, so that no step_start of
// this or a later step is recorded. reason has no meaning if ok is false.
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
