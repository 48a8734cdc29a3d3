package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"answerd/internal/agent/budget"
	"answerd/internal/event"
)

// maxRaised bounds the value of a raised limit: up to it, a float64 represents whole numbers
// exactly.
const maxRaised = 1 << 53

// checkBudgetBeforeCalls asks for a higher budget if the model's output already exhausted it,
// since every call of the turn would be refused.
func (l *loop) checkBudgetBeforeCalls(ctx context.Context, turn int, reply modelReply, final bool) error {
	if s := l.replayed.Step(l.step); s != nil {
		l.applyRaised(s.RaisedBefore)
		if s.HasEndedCall() {
			return nil
		}
	}
	if final || len(reply.ownCalls()) == 0 {
		return nil
	}
	return l.checkBudget(ctx, turn)
}

// checkBudget sets budgetSpent if a limit is reached and is not raised. If the request allows
// it, checkBudget asks the owner of the run for a higher limit. After an increase it checks
// again, because another limit may be reached too.
func (l *loop) checkBudget(ctx context.Context, turn int) error {
	for {
		name := l.budget.Spent()
		switch {
		case l.replayed != nil && l.replayed.Asked != nil:
			name = l.replayed.Asked.Limit // another process has asked this question, and it is still open
		case name == "":
			return nil
		case turn == l.run.req.MaxTurns || !l.run.req.canAnswer(event.KindBudget) || !l.canIncrease(name):
			l.budgetSpent = true
			return nil
		}
		raised, err := l.askForIncrease(ctx, l.budget.Status(name))
		if l.budgetSpent = !raised; err != nil || l.budgetSpent {
			return err
		}
	}
}

// canIncrease reports whether the run's limit is below the operator's, so that it may be raised.
func (l *loop) canIncrease(name string) bool {
	operatorLimit := l.agent.Budget.ByName()[name]
	return operatorLimit <= 0 || l.budget.Status(name).Max < operatorLimit
}

// askForIncrease asks the owner of the run for a higher limit. The caller must be between two
// steps, with no call in flight.
func (l *loop) askForIncrease(ctx context.Context, reached budget.Status) (raised bool, _ error) {
	s := &l.run.suspension
	s.beginTurn(ctx, []*call{{}}) // the run itself waits, so it stands in for a call
	v, err := l.askOwner(ctx, event.Interrupt{
		Kind: event.KindBudget, Limit: reached.Name, Used: reached.Used, Max: reached.Max,
		Message: fmt.Sprintf("The run has used %s of its %s %s. Allow it more?", formatNumber(reached.Used), formatNumber(reached.Max), reached.Name),
	})
	err = errors.Join(err, s.endCall(""))
	if cause := context.Cause(ctx); cause != nil {
		return false, cause
	}
	if err != nil || !v.isApproved() {
		return false, err
	}
	limit := v.raisedLimit(reached.Max)
	l.budget.Raise(reached.Name, limit)
	if reached.Name == "seconds" {
		l.run.clock.Raise(limit, l.run.out)
	}
	return true, nil
}

// applyRaised applies the increases that the log records for a replayed step.
func (l *loop) applyRaised(raised []event.BudgetResolved) {
	for _, r := range raised {
		l.budget.Raise(r.Limit, r.Max)
	}
}

// formatNumber formats a number for a sentence, with at most three decimals.
func formatNumber(n float64) string { return strconv.FormatFloat(math.Round(n*1e3)/1e3, 'f', -1, 64) }

// raisedLimit returns the limit after the answer.
func (v resolution) raisedLimit(limit float64) float64 {
	if !v.isApproved() {
		return limit
	}
	var args struct{ Max float64 }
	_ = json.Unmarshal(v.Args, &args) // validateBudgetIncrease has checked it
	return max(args.Max, limit)
}

// validateBudgetIncrease refuses an answer that does not raise the limit, or raises it above the
// operator's.
func (a *Agent) validateBudgetIncrease(asked event.Interrupt, in Input) error {
	switch {
	case in.Approved == nil:
		return &InvalidError{"/approved", "required: this asks for a higher limit"}
	case in.Action != "" || in.Content != nil:
		return &InvalidError{"/action", "goes with an elicitation; a limit is raised with approved and args"}
	case !*in.Approved && in.Args != nil:
		return &InvalidError{"/args", "goes with approved true only"}
	case !*in.Approved:
		return nil
	}
	var args map[string]json.RawMessage
	if json.Unmarshal(in.Args, &args) != nil || len(args) != 1 || args["max"] == nil {
		return &ContentError{[]InvalidError{{"/args", `must be {"max": N}, the new limit`}}}
	}
	var limit float64
	if err := json.Unmarshal(args["max"], &limit); err != nil {
		return &ContentError{[]InvalidError{{"/args/max", "must be a number"}}}
	}
	operatorLimit := a.Budget.ByName()[asked.Limit]
	isInteger := asked.Limit != "seconds" && asked.Limit != "cost"
	switch {
	case isInteger && limit != math.Trunc(limit):
		return &ContentError{[]InvalidError{{"/args/max", "must be a whole number"}}}
	case limit <= max(asked.Max, asked.Used):
		return &ContentError{[]InvalidError{{"/args/max", "must be above what is used, " + formatNumber(max(asked.Max, asked.Used))}}}
	case operatorLimit > 0 && limit > operatorLimit:
		return &ContentError{[]InvalidError{{"/args/max", "must not be above the operator's limit, " + formatNumber(operatorLimit)}}}
	case limit > maxRaised:
		return &ContentError{[]InvalidError{{"/args/max", "is too large"}}}
	}
	return nil
}
