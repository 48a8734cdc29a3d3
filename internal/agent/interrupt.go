package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp"
)

// Input is a person's answer to an interrupt. Approved is set for an approval or a budget increase,
// Action for an elicitation.
type Input struct {
	ID string // of the interrupt

	Approved *bool
	Reason   string // for the model; of a refusal, mostly
	// Args replaces the arguments of an approved call, a JSON object; nil leaves them. Of a
	// raised limit it is {"max": N}.
	Args jsonText

	Action string // accept, decline or cancel
	// Content is what an accepted form was filled in with, a JSON object; nil else.
	Content jsonText
}

// Reasons for which an answer is refused.
var (
	ErrUnknownInterrupt = errors.New("the run has no open interrupt with that id")
	ErrAnswered         = errors.New("the interrupt has been answered already")
	ErrExpired          = errors.New("the interrupt has expired")
)

// ContentError is an answer whose content does not fit what was asked for: a form, or the
// arguments of a tool.
type ContentError struct{ Fields []InvalidError }

func (e *ContentError) Error() string { return "the answer does not fit what was asked for" }

// interrupt is a question that a run waits for its owner to answer. Its record decides which
// answers are valid, so any process can check them.
type interrupt struct {
	event.Interrupt      // not changed once it is asked
	isAsked         bool // the log has the question

	doneElsewhere <-chan struct{} // closed when the person has done elsewhere what was asked; nil else
	answer        chan resolution // of capacity 1, and there is one answer at most
}

func newInterrupt(rec event.Interrupt, done <-chan struct{}) *interrupt {
	return &interrupt{Interrupt: rec, doneElsewhere: done, answer: make(chan resolution, 1)}
}

// timeLeft returns how long the question may still be answered.
func (i *interrupt) timeLeft() time.Duration { return time.Until(time.UnixMilli(i.ExpiresAt)) }

// resolution is the outcome of a question: an answer, or the reason why it was not answered.
type resolution struct {
	Input
	by         auth.Identity
	unanswered error // why it was not answered; nil if it was
}

// Reasons for which a question was not answered, in addition to ErrExpired.
var (
	errNobodyToAsk = errors.New("no person can be asked")
	errWithdrawn   = errors.New("the question was withdrawn")
	errTooManyOpen = errors.New("too many questions are open")
)

// askOwner asks the owner of the run and waits for the answer, until the question expires or ctx
// ends. When done is closed, the person has already done what was asked (such as a sign-in), which
// counts as acceptance. The resolution is in the log when askOwner returns. A question that another
// process asked is not asked again. The error is the log's, or says that another process continues
// the run.
func (l *loop) askOwner(ctx context.Context, rec event.Interrupt, done <-chan struct{}) (resolution, error) {
	all, err := l.askOwnerAll(ctx, []event.Interrupt{rec}, done)
	if err != nil {
		return resolution{}, err
	}
	return all[0], nil
}

// askOwnerAll asks several questions at the same time, and returns their resolutions in order. The
// run is not suspended before all of them are in the log.
func (l *loop) askOwnerAll(ctx context.Context, recs []event.Interrupt, done <-chan struct{}) ([]resolution, error) {
	resolved, open := make([]resolution, len(recs)), make([]*interrupt, len(recs))
	for n, rec := range recs {
		i, v, err := l.replayedQuestion(ctx, rec)
		if err == nil && i == nil && v == nil {
			i, v, err = l.newQuestion(ctx, rec, done)
		}
		if err != nil {
			return nil, err
		}
		if v != nil {
			resolved[n] = *v
			continue
		}
		open[n] = i
		l.run.inbox.expectAnswer(i)
	}
	if err := l.run.suspension.openInterrupts(ctx, open); err != nil {
		return nil, err
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
		})
	}
	wg.Wait()
	return resolved, errors.Join(errs...)
}

// newQuestion returns a question that is not asked yet. It returns a resolution at once if no
// person can be asked.
func (l *loop) newQuestion(ctx context.Context, rec event.Interrupt, done <-chan struct{}) (*interrupt, *resolution, error) {
	now, timeout := time.Now(), l.agent.InputTimeout
	if !l.run.req.canAnswer(rec.Kind) {
		timeout = 0
	}
	if rec.ID == "" {
		rec.ID = newID("int")
	}
	rec.CreatedAt, rec.ExpiresAt = now.UnixMilli(), now.Add(timeout).UnixMilli()
	i := newInterrupt(rec, done)
	if timeout == 0 {
		v := resolution{unanswered: errNobodyToAsk}
		return i, &v, l.run.suspension.recordUnanswered(ctx, i, v)
	}
	return i, nil, nil
}

// canAnswer reports whether the caller of the request can answer an interrupt of that kind.
func (r Request) canAnswer(kind string) bool {
	switch kind {
	case event.KindElicitation:
		return r.Interactive && !r.FormsDeclined
	case event.KindApproval:
		return r.Interactive && !r.ApprovalsDeclined
	case event.KindBudget:
		return r.Interactive && r.AskAtLimit
	}
	return r.Interactive
}

// awaitAnswer waits for the answer, the expiry, done, or the end of ctx. The log decides what came
// first: each question takes one input, so closedInput is refused if an answer is there already.
func (i *interrupt) awaitAnswer(ctx context.Context, r *run) (resolution, error) {
	expiry := time.NewTimer(i.timeLeft())
	defer expiry.Stop()
	otherwise := resolution{unanswered: ErrExpired}
	select {
	case v := <-i.answer:
		return v, nil
	case <-i.doneElsewhere:
		otherwise = resolution{Input: Input{Action: mcp.Accept}}
	case <-expiry.C:
	case <-ctx.Done():
		otherwise = resolution{unanswered: errWithdrawn} // by the server, or the end of the run
		select {
		case <-i.doneElsewhere: // which is why the question was withdrawn
			otherwise = resolution{Input: Input{Action: mcp.Accept}}
		default:
		}
	}
	if err := r.relinquished(); err != nil {
		return resolution{}, err // the question stays open
	}
	err := r.agent.Log.AddInput(context.WithoutCancel(ctx), r.ID, i.ID, closedInput)
	if errors.Is(err, event.ErrDuplicateInput) { // at the last moment
		select {
		case v := <-i.answer:
			return v, nil
		case <-r.inbox.stopped:
		}
	}
	return otherwise, nil // a log that fails ends the run at its next event
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

func (v resolution) isApproved() bool { return v.unanswered == nil && v.Approved != nil && *v.Approved }

// elicitationAction returns the action for the server: decline if no person can be asked, cancel if
// they did not answer.
func (v resolution) elicitationAction() string {
	switch {
	case v.unanswered == nil:
		return v.Action
	case errors.Is(v.unanswered, errNobodyToAsk):
		return mcp.Decline
	}
	return mcp.Cancel
}

// elicitInput asks the owner of the run a question that the server of a call sent during the call. The
// server waits for the answer of this process, so the run cannot be parked meanwhile.
func (l *loop) elicitInput(ctx context.Context, c event.Call, e mcp.Elicitation) (res mcp.ElicitationResult, err error) {
	defer recoverTo(&err) // runs in a goroutine of package mcp
	v, err := l.askOwner(ctx, event.Interrupt{
		Kind: event.KindElicitation, Call: c, Message: e.Message, Mode: e.Mode, Schema: e.Schema, URL: e.URL, HeldOpen: true,
	}, e.Done)
	if err != nil {
		return mcp.ElicitationResult{}, err
	}
	return mcp.ElicitationResult{Action: v.elicitationAction(), Content: v.Content}, nil
}
