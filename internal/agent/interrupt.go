package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"answerd/internal/agent/budget"
	"answerd/internal/agent/recorded"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp"
)

// Input holds a person's answer to an interrupt. An approval or a budget increase sets Approved,
// an elicitation sets Action.
type Input struct {
	ID string // of the interrupt

	Approved *bool
	Reason   string // for the model; usually explains a refusal
	// Args, a JSON object, replaces the arguments of an approved call; nil keeps them. For a
	// budget increase it is {"max": N}.
	Args jsonText

	Action string // accept, decline or cancel
	// Content holds the values of an accepted form, a JSON object; nil otherwise.
	Content jsonText
}

// Reasons for which an answer is refused.
var (
	ErrUnknownInterrupt = errors.New("the run has no open interrupt with that id")
	ErrAnswered         = errors.New("the interrupt has been answered already")
	ErrExpired          = errors.New("the interrupt has expired")
)

// ContentError reports an answer whose content does not fit the question: a form, or the
// arguments of a tool.
type ContentError struct{ Fields []InvalidError }

func (e *ContentError) Error() string { return "the answer does not fit what was asked for" }

// interrupt holds a question that a run waits for its owner to answer. Its event determines
// which answers are valid, so any process can check them.
type interrupt struct {
	event.Interrupt      // not changed once it is asked
	isAsked         bool // the log has the question
	notifying       bool // the hook interrupt has not replied yet; suspension.mu protects it once the question is asked

	answer chan resolution // of capacity 1, and there is one answer at most
}

// newInterrupt returns a question that is not asked yet.
func newInterrupt(rec event.Interrupt) *interrupt {
	return &interrupt{Interrupt: rec, answer: make(chan resolution, 1)}
}

// timeLeft returns how long after now, which is the log's time, the question can still be answered.
func (i *interrupt) timeLeft(now time.Time) time.Duration {
	return time.UnixMilli(i.ExpiresAt).Sub(now)
}

// resolution holds the outcome of a question: an answer, or the reason why it was not answered.
type resolution struct {
	Input
	by         auth.Identity
	unanswered error // why the question was not answered; nil if it was
}

// Reasons for which a question was not answered, in addition to ErrExpired.
var (
	errNobodyToAsk = errors.New("no person can be asked")
	errWithdrawn   = errors.New(recorded.Withdrawn)
	errTooManyOpen = errors.New("too many questions are open")
)

// askOwner asks the owner of the run and waits for the answer, until the question expires or ctx
// ends. A question that another process asked is not asked again. The resolution is in the log when
// askOwner returns. Errors come from the log, or mean that another process continues the run.
func (l *loop) askOwner(ctx context.Context, rec event.Interrupt) (resolution, error) {
	all, err := l.askOwnerAll(ctx, []event.Interrupt{rec}, nil)
	if err != nil {
		return resolution{}, err
	}
	return all[0], nil
}

// askOwnerAll asks several questions at the same time, and returns their resolutions in order. The
// run is not suspended before all of them are in the log. It calls resolve, unless that is nil, with
// each resolution as soon as the log has it.
//
// Each question goes through these states: replayed or new; expected by the inbox, since an answer may come as
// soon as a reader sees the question; open, when its event is in the log; and resolved, by the event that
// resolveInterrupt appends. askOwnerAll returns when all are resolved, or with an error that leaves them open
// for the next process.
func (l *loop) askOwnerAll(ctx context.Context, recs []event.Interrupt, resolve func(n int, v resolution) error) ([]resolution, error) {
	if resolve == nil {
		resolve = func(int, resolution) error { return nil }
	}
	resolved, open := make([]resolution, len(recs)), make([]*interrupt, len(recs))
	for n, rec := range recs {
		i, v, err := l.replayedQuestion(ctx, rec)
		if err == nil && i == nil && v == nil {
			i, v, err = l.newQuestion(ctx, rec)
		}
		if err != nil {
			return nil, err
		}
		if v != nil {
			resolved[n] = *v
			if err := resolve(n, *v); err != nil {
				return nil, err
			}
			continue
		}
		open[n] = i
		l.run.inbox.expectAnswer(i)
	}
	var unreported []*interrupt
	for _, i := range open {
		if i != nil && l.mustCallInterruptHook(i) {
			i.notifying, unreported = true, append(unreported, i)
		}
	}
	if err := l.run.suspension.openInterrupts(ctx, open); err != nil {
		return nil, err
	}
	for _, i := range unreported {
		if i.isAsked {
			l.callInterruptHook(ctx, i)
		}
	}
	errs := make([]error, len(recs))
	var wg sync.WaitGroup
	for n, i := range open {
		if i == nil {
			continue
		}
		if !i.isAsked {
			resolved[n] = resolution{unanswered: errTooManyOpen}
			continue
		}
		wg.Go(func() {
			defer recoverTo(&errs[n])
			if resolved[n], errs[n] = i.awaitAnswer(ctx, l.run); errs[n] == nil {
				errs[n] = l.run.suspension.resolveInterrupt(ctx, i, resolved[n])
			}
			if errs[n] == nil {
				errs[n] = resolve(n, resolved[n])
			}
		})
	}
	wg.Wait()
	return resolved, errors.Join(errs...)
}

// newQuestion returns a question that is not asked yet, and that expires after InputTimeout or when rec
// does, if that is earlier. It returns a resolution at once if no person can be asked.
func (l *loop) newQuestion(ctx context.Context, rec event.Interrupt) (*interrupt, *resolution, error) {
	now, timeout := l.agent.Log.Now(), l.agent.InputTimeout
	if !l.run.req.canAnswer(rec.Kind) {
		timeout = 0
	}
	if rec.ID == "" {
		rec.ID = newID("int")
	}
	expires := now.Add(timeout).UnixMilli()
	if rec.ExpiresAt > 0 {
		expires = min(expires, rec.ExpiresAt)
	}
	rec.CreatedAt, rec.ExpiresAt = now.UnixMilli(), expires
	i := newInterrupt(rec)
	if timeout == 0 {
		v := resolution{unanswered: errNobodyToAsk}
		return i, &v, l.run.suspension.recordUnanswered(ctx, i, v)
	}
	return i, nil, nil
}

// awaitAnswer waits for the answer, the expiry, or the end of ctx. The log decides which of them was
// first: each question has one input, so storing closedInput fails if an answer is
// there already. That answer then counts, although its time is over here: the person was told that it counts.
// It comes through the inbox, whose goroutine is waited for. If this process has given the run up, nothing is
// stored, and the question stays open for the next one.
func (i *interrupt) awaitAnswer(ctx context.Context, r *run) (resolution, error) {
	expiry := time.NewTimer(i.timeLeft(r.agent.Log.Now()))
	defer expiry.Stop()
	otherwise := resolution{unanswered: ErrExpired}
	select {
	case v := <-i.answer:
		return v, nil
	case <-expiry.C:
	case <-ctx.Done():
		otherwise = resolution{unanswered: errWithdrawn} // withdrawn by the server, or because the run has ended
	}
	if err := r.relinquished(); err != nil {
		return resolution{}, err // the question stays open
	}
	err := r.agent.Log.AddInput(context.WithoutCancel(ctx), r.ID, i.ID, closedInput)
	if errors.Is(err, event.ErrDuplicateInput) { // an answer arrived just before
		select {
		case v := <-i.answer:
			return v, nil
		case <-r.inbox.stopped:
		}
	}
	return otherwise, nil // if the log fails, the run ends at its next event
}

// resolvedEvent returns the event with the outcome of the question.
func (i *interrupt) resolvedEvent(v resolution) event.Body {
	reason := v.Reason
	if v.unanswered != nil {
		reason = v.unanswered.Error()
	}
	switch i.Kind {
	case event.KindApproval:
		return event.ApprovalResolved{Call: i.Call, InterruptID: i.ID, Approved: v.isApproved(), Reason: reason, By: v.by.Subject}
	case event.KindBudget:
		return event.BudgetResolved{InterruptID: i.ID, Limit: i.Limit, Approved: v.isApproved(), Max: v.raisedLimit(i.Max), Reason: reason, By: v.by.Subject}
	}
	return event.ElicitationResolved{Call: i.Call, InterruptID: i.ID, Action: v.elicitationAction()}
}

// isApproved reports whether a person has approved. An expired or withdrawn question counts as refused.
func (v resolution) isApproved() bool { return v.unanswered == nil && v.Approved != nil && *v.Approved }

// elicitationAction returns the action for the server: decline if no person can be asked, cancel
// if the person did not answer.
func (v resolution) elicitationAction() string {
	switch {
	case v.unanswered == nil:
		return v.Action
	case errors.Is(v.unanswered, errNobodyToAsk):
		return mcp.Decline
	}
	return mcp.Cancel
}

// elicitInput asks the owner of the run a question that the server of a call sent during the
// call. The server waits for this process to answer, so the run cannot be parked meanwhile.
func (l *loop) elicitInput(ctx context.Context, c event.Call, e mcp.Elicitation) (res mcp.ElicitationResult, err error) {
	defer recoverTo(&err) // runs in a goroutine of package mcp
	v, err := l.askOwner(ctx, event.Interrupt{
		Kind: event.KindElicitation, Call: c, Message: e.Message, Mode: e.Mode, Schema: e.Schema, URL: e.URL, HeldOpen: true,
	})
	if err != nil {
		return mcp.ElicitationResult{}, err
	}
	return mcp.ElicitationResult{Action: v.elicitationAction(), Content: v.Content}, nil
}

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
	operatorLimit := l.agent.budgetLimits(l.run.req.as).ByName()[name]
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
	if most := l.agent.budgetLimits(l.run.req.as).ByName()[reached.Name]; most > 0 {
		limit = max(reached.Max, min(limit, most))
	}
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
func (a *Agent) validateBudgetIncrease(r event.Run, asked event.Interrupt, in Input) error {
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
	// The run may be executed elsewhere, and started with an older definition of the agent. The run itself
	// keeps to that one (raisedLimit).
	operatorLimit := a.budgetLimits(a.agents.Load().find(r.Agent)).ByName()[asked.Limit]
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
