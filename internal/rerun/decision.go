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
func (s *session) decision(run, callID string) (d recorded.Decision) {
	r := s.byID(run)
	if r == nil || r.rec.calls[callID] == nil || r.rec.calls[callID].end == nil {
		return d
	}
	c := r.rec.calls[callID]
	args, asked, approved := endArgs(*c.end), false, false
	for _, e := range c.events {
		switch b := e.Body.(type) {
		case event.ApprovalRequired:
			if asked = asked || b.ChildRunID == ""; b.ChildRunID == "" {
				args = b.Args
			}
		case event.ApprovalResolved:
			approved = approved || b.Approved
		}
	}
	switch b := c.end.Body.(type) {
	case event.ToolError:
		if b.Kind == string(mcp.Denied) && !startsWithAny(b.Payload, ownDenials) && asked == approved {
			d.Denied, d.AfterApproval = b.Payload, approved
		}
	case event.ToolResult:
		if tool, ok := (&tools{s}).Tool(c.name); ok && tool.NeedsApproval && !asked {
			d.Result, _ = r.rec.outcome(s.ctx, mcp.Call{}, *c.end) // the outcome of a result has no error
		}
	}
	if args != nil && !sameJSON(args, c.args) {
		if fitted, err := (&tools{s}).CheckArgs(c.name, c.args); err != nil || !sameJSON(args, fitted) {
			d.Args = args
		}
	}
	if reason, ok := r.rec.abortReason(); ok && r.rec.abortedBy() == c {
		d.Ended, d.Reason = true, reason
	}
	return d
}

func startsWithAny(text string, all []string) bool {
	for _, prefix := range all {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}

// endArgs returns the arguments of a call as its outcome has them.
func endArgs(e event.Event) []byte {
	switch b := e.Body.(type) {
	case event.ToolResult:
		return b.Args
	case event.ToolError:
		return b.Args
	}
	return nil
}

// ended implements recorded.Inputs.Ended.
func (s *session) ended(run string, step int, answered bool) (reason string, ok bool) {
	r := s.byID(run)
	if r == nil {
		return "", false
	}
	if reason, ok = r.rec.abortReason(); !ok {
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
