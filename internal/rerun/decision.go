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

// toolAborted is the code of the end of a run that a hook ended.
const toolAborted = "tool_aborted"

// abortReason returns why a hook ended the run; ok is false if none did.
func (r *recording) abortReason() (reason string, ok bool) {
	if len(r.events) == 0 {
		return "", false
	}
	end, failed := r.last().(event.RunError)
	if !failed || end.Code != toolAborted {
		return "", false
	}
	_, reason, _ = strings.Cut(end.Message, ": ")
	return reason, true
}

// abortedBy returns the call with which a hook ended the run: the last one that ended before the others were
// cancelled. It returns nil if the run ended between two turns, or while the model answered.
func (r *recording) abortedBy() *recordedCall {
	var last *recordedCall
	for _, e := range r.events {
		switch b := e.Body.(type) {
		case event.StepStart, event.StepReset:
			last = nil
		case event.Budget:
			if b.Limit == "tool_calls" || b.Limit == "max_turns" || b.Limit == "result_bytes" { // at the end of a turn
				last = nil
			}
		case event.ToolResult:
			last = r.calls[b.CallID]
		case event.ToolError:
			if b.Payload == recorded.CallCancelled || b.Payload == event.OpenAtEnd {
				return last
			}
			last = r.calls[b.CallID]
		}
	}
	return last
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
