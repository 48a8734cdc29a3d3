package agent

import (
	"context"
	"errors"
	"time"

	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp"
)

// Input is a person's answer to something that a run waits for: Approved for an
// approval and for a limit that is reached, Action for an elicitation.
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

// Why an answer is not taken.
var (
	ErrUnknownInterrupt = errors.New("the run asks nothing of that id")
	ErrAnswered         = errors.New("that was answered before")
	ErrExpired          = errors.New("the time to answer that is over")
)

// ContentError is an answer that does not fit what was asked for: a form, or the
// arguments of a tool.
type ContentError struct{ Fields []InvalidError }

func (e *ContentError) Error() string { return "the answer does not fit what was asked for" }

// interrupt is a question that a run waits for its owner to answer. All that decides
// what an answer may be is in the record.
type interrupt struct {
	event.Interrupt // not changed once it is asked

	doneElsewhere <-chan struct{} // closed when the person has done elsewhere what was asked; nil else
	answer        chan resolution // of capacity 1, and there is one answer at most
}

func newInterrupt(rec event.Interrupt, done <-chan struct{}) *interrupt {
	return &interrupt{Interrupt: rec, doneElsewhere: done, answer: make(chan resolution, 1)}
}

// timeLeft is how long the question may still be answered.
func (i *interrupt) timeLeft() time.Duration { return time.Until(time.UnixMilli(i.ExpiresAt)) }

// resolution is what became of a question.
type resolution struct {
	Input
	by         auth.Identity
	unanswered error // why nobody answered; nil if somebody did
}

// Why nobody answered, besides ErrExpired.
var (
	errNobodyToAsk = errors.New("nobody can be asked")
	errWithdrawn   = errors.New("the question was withdrawn")
	errTooManyOpen = errors.New("too many questions are open")
)

// askOwner asks the owner of the run, and waits for the answer for as long as the run allows
// and ctx goes on. That done is closed is an answer, too: yes. The answer is in the log
// when it returns. What was asked before the run came here is not asked again. The error
// is the log's, or that the run goes on elsewhere.
func (l *loop) askOwner(ctx context.Context, rec event.Interrupt, done <-chan struct{}) (resolution, error) {
	i, v, err := l.replayedQuestion(ctx, rec)
	switch {
	case err != nil:
	case i != nil:
		l.run.inbox.expectAnswer(i)
		err = l.run.suspension.reopenInterrupt(i)
	case v == nil:
		i, v, err = l.openQuestion(ctx, rec, done)
	}
	switch {
	case err != nil:
		return resolution{}, err
	case v != nil:
		return *v, nil
	}
	answer, err := i.awaitAnswer(ctx, l.run)
	if err != nil {
		return resolution{}, err
	}
	return answer, l.run.suspension.resolveInterrupt(ctx, i, answer)
}

// openQuestion puts a question into the log. There is a verdict at once where nobody can be
// asked.
func (l *loop) openQuestion(ctx context.Context, rec event.Interrupt, done <-chan struct{}) (*interrupt, *resolution, error) {
	now, patience := time.Now(), l.agent.InputTimeout
	if !l.run.req.canAnswer(rec.Kind) {
		patience = 0
	}
	rec.ID, rec.CreatedAt, rec.ExpiresAt = newID("int"), now.UnixMilli(), now.Add(patience).UnixMilli()
	i := newInterrupt(rec, done)
	if patience == 0 {
		v := resolution{unanswered: errNobodyToAsk}
		return i, &v, l.run.suspension.recordUnanswered(ctx, i, v)
	}
	l.run.inbox.expectAnswer(i)
	err := l.run.suspension.openInterrupt(ctx, i)
	if errors.Is(err, errTooManyOpen) {
		return i, &resolution{unanswered: err}, nil
	}
	return i, nil, err
}

// canAnswer reports whether there is somebody to ask for that kind of answer.
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

// awaitAnswer waits for the answer. The log decides what came first, the answer or the end of
// the time for it.
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
		return resolution{}, err // and the question stays open
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

// resolvedEvent is the event that says what became of the question.
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

// elicitationAction is the answer to an elicitation: no where nobody is there who could say yes.
func (v resolution) elicitationAction() string {
	switch {
	case v.unanswered == nil:
		return v.Action
	case errors.Is(v.unanswered, errNobodyToAsk):
		return mcp.Decline
	}
	return mcp.Cancel
}

// elicitInput asks the owner of the run on behalf of one call's server, and waits for the
// answer: in memory, for as long as this process and the call live.
func (l *loop) elicitInput(ctx context.Context, c event.Call, e mcp.Elicitation) (res mcp.ElicitationResult, err error) {
	defer recoverTo(&err) // the goroutine is not ours
	v, err := l.askOwner(ctx, event.Interrupt{
		Kind: event.KindElicitation, Call: c, Message: e.Message, Mode: e.Mode, Schema: e.Schema, URL: e.URL, HeldOpen: true,
	}, e.Done)
	if err != nil {
		return mcp.ElicitationResult{}, err
	}
	return mcp.ElicitationResult{Action: v.elicitationAction(), Content: v.Content}, nil
}
