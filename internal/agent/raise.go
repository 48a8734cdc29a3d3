package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"answerd/internal/event"
)

// maxRaised bounds what a limit can be raised to: numbers up to here are exact.
const maxRaised = 1 << 53

// bounds are the limits by the names that requests have for them; 0 is none.
func (b Budget) bounds() map[string]float64 {
	return map[string]float64{
		"tool_calls": float64(b.ToolCalls), "input_tokens": float64(b.InputTokens), "output_tokens": float64(b.OutputTokens),
		"total_tokens": float64(b.TotalTokens), "seconds": b.Seconds, "result_bytes": float64(b.ResultBytes), "cost": b.Cost,
	}
}

// mayCall asks for more before the calls of a turn, where its words were too many: they
// would all be refused.
func (l *loop) mayCall(ctx context.Context, turn int, said reply, last bool) error {
	if s := l.past.step(l.step); s != nil {
		l.budget.raiseAll(s.raisedFirst)
		if l.past.acted(s) {
			return nil
		}
	}
	if last || len(said.served()) == 0 {
		return nil
	}
	return l.reachesLimit(ctx, turn)
}

// reachesLimit sees whether the run has used up a limit that nobody raises.
func (l *loop) reachesLimit(ctx context.Context, turn int) error {
	for {
		name := l.budget.spent()
		switch {
		case l.past != nil && l.past.asked != nil:
			name = l.past.asked.Limit // which somebody is asked about
		case name == "":
			return nil
		case turn == l.run.req.MaxTurns || !l.run.req.answerable(event.KindBudget) || !l.raisable(name):
			l.spent = true
			return nil
		}
		raised, err := l.askForMore(ctx, l.budget.state(name))
		if l.spent = !raised; err != nil || l.spent {
			return err
		}
	}
}

// raisable reports whether the operator lets the run have more.
func (l *loop) raisable(name string) bool {
	bound := l.agent.Budget.bounds()[name]
	return bound <= 0 || l.budget.state(name).max < bound
}

// askForMore asks the owner of the run for a higher limit, when no step and no call goes
// on.
func (l *loop) askForMore(ctx context.Context, reached limit) (raised bool, _ error) {
	w := &l.run.waits
	w.begin(ctx, []*call{{}}) // what waits is the run
	v, err := l.ask(ctx, event.Interrupt{
		Kind: event.KindBudget, Limit: reached.name, Used: reached.used, Max: reached.max,
		Message: fmt.Sprintf("The run has used %s of its %s %s. Allow it more?", number(reached.used), number(reached.max), reached.name),
	}, nil)
	err = errors.Join(err, w.end(""))
	if cause := context.Cause(ctx); cause != nil {
		return false, cause
	}
	if err != nil || !v.approves() {
		return false, err
	}
	l.budget.raise(reached.name, v.raised(reached.max))
	if reached.name == "seconds" {
		l.run.clock.raise(v.raised(reached.max), l.run.out)
	}
	return true, nil
}

// number is a number in a sentence.
func number(n float64) string { return strconv.FormatFloat(math.Round(n*1e3)/1e3, 'f', -1, 64) }

// limitAsked is what became of the question about a limit after a step: an open one, or
// the verdict. Both are nil if it was not asked.
func (p *past) limitAsked(step int, limit string) (*interrupt, *verdict) {
	if p == nil {
		return nil, nil
	}
	if asked := p.asked; asked != nil {
		p.asked = nil
		return newInterrupt(*asked, nil), nil
	}
	if s := p.step(step); s != nil && s.refused == limit {
		return nil, &verdict{why: errWithdrawn}
	}
	return nil, nil
}

// raised is what a limit of max becomes by the answer.
func (v verdict) raised(limit float64) float64 {
	if !v.approves() {
		return limit
	}
	var args struct{ Max float64 }
	_ = json.Unmarshal(v.Args, &args) // it was checked
	return max(args.Max, limit)
}

// checkRaise refuses an answer that does not raise the limit, or further than the operator
// allows.
func (a *Agent) checkRaise(asked event.Interrupt, in Input) error {
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
	var most float64
	if err := json.Unmarshal(args["max"], &most); err != nil {
		return &ContentError{[]InvalidError{{"/args/max", "must be a number"}}}
	}
	bound := a.Budget.bounds()[asked.Limit]
	whole := asked.Limit != "seconds" && asked.Limit != "cost"
	switch {
	case whole && most != math.Trunc(most):
		return &ContentError{[]InvalidError{{"/args/max", "must be a whole number"}}}
	case most <= max(asked.Max, asked.Used):
		return &ContentError{[]InvalidError{{"/args/max", "must be above what is used, " + number(max(asked.Max, asked.Used))}}}
	case bound > 0 && most > bound:
		return &ContentError{[]InvalidError{{"/args/max", "must not be above the operator's limit, " + number(bound)}}}
	case most > maxRaised:
		return &ContentError{[]InvalidError{{"/args/max", "is too large"}}}
	}
	return nil
}

// state is a limit as it stands.
func (b *budget) state(name string) limit {
	b.mu.Lock()
	defer b.mu.Unlock()
	if name == "seconds" {
		return limit{name: name, used: b.clock.elapsed().Seconds(), max: b.seconds}
	}
	return *b.limitLocked(name)
}

// raise makes a limit higher. Readers are told anew when it is near, unless they were.
func (b *budget) raise(name string, most float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if name == "seconds" {
		b.seconds = most
		return
	}
	l := b.limitLocked(name)
	if l.max = most; most > l.toldOf {
		l.told, l.toldOf = 0, most
	}
}

func (b *budget) raiseAll(to []event.BudgetResolved) {
	for _, r := range to {
		b.raise(r.Limit, r.Max)
	}
}

func (b *budget) limitLocked(name string) *limit {
	for _, l := range b.limits() {
		if l.name == name {
			return l
		}
	}
	return &limit{name: name}
}
