package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"answerd/internal/agent/replay"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp"
)

// ContentError reports an answer whose content does not fit the question: a form, or the
// arguments of a tool.
type ContentError struct{ Fields []InvalidError }

func (e *ContentError) Error() string { return "the answer does not fit what was asked for" }

// InputError says which of several answers the *InvalidError or *ContentError in it is about.
type InputError struct {
	ID  string // of the interrupt
	err error
}

func (e *InputError) Error() string { return e.ID + ": " + e.err.Error() }

// Unwrap returns what is wrong with the answer.
func (e *InputError) Unwrap() error { return e.err }

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
		i, res, err := l.replayedQuestion(ctx, rec)
		if err == nil && i == nil && res == nil {
			i, res, err = l.newQuestion(ctx, rec)
		}
		if err != nil {
			return nil, err
		}
		if res != nil {
			resolved[n] = *res
			if err := resolve(n, *res); err != nil {
				return nil, err
			}
			continue
		}
		open[n] = i
		if rec.Kind == event.KindBudget {
			i.operatorLimit = l.operatorLimit(rec.Limit)
		}
		l.run.inbox.expectAnswer(i)
	}

	if err := l.openQuestions(ctx, open); err != nil {
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
			resolved[n], errs[n] = i.awaitAnswer(ctx, l.run)
			if errs[n] == nil {
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

// openQuestions appends the events of the questions, and then calls the hook interrupt for those that are new. Elements
// that are nil have been resolved. The questions are marked before, since a question can be answered as soon as its
// event is in the log.
func (l *loop) openQuestions(ctx context.Context, open []*interrupt) error {
	var unreported []*interrupt
	for _, i := range open {
		if i != nil && l.mustCallInterruptHook(i) {
			i.notifying = true
			unreported = append(unreported, i)
		}
	}
	if err := l.run.suspension.openInterrupts(ctx, open); err != nil {
		return err
	}
	for _, i := range unreported {
		if i.isAsked {
			l.callInterruptHook(ctx, i)
		}
	}
	return nil
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
// first. A question has one input, so storing closedInput fails if an answer is stored already. That answer
// counts, although its time is over here, because the person has got the response that it counts. It then arrives through the
// inbox.
//
// If another process takes the run over, awaitAnswer stores nothing and returns an error, and the question
// stays open there.
func (i *interrupt) awaitAnswer(ctx context.Context, r *run) (resolution, error) {
	expiry := time.NewTimer(i.timeLeft(r.agent.Log.Now()))
	defer expiry.Stop()
	unanswered := resolution{unanswered: ErrExpired}
	select {
	case answer := <-i.answer:
		return answer, nil
	case <-expiry.C:
	case <-ctx.Done():
		unanswered = resolution{unanswered: errWithdrawn} // withdrawn by the server, or because the run has ended
	}
	if err := r.relinquished(); err != nil {
		return resolution{}, err // the question stays open
	}
	err := r.agent.Log.AddInput(context.WithoutCancel(ctx), r.ID, i.ID, closedInput)
	if errors.Is(err, event.ErrDuplicateInput) { // an answer was stored just before
		select {
		case answer := <-i.answer:
			return answer, nil
		case <-r.inbox.stopped:
		}
	}
	return unanswered, nil // if the log fails, the run ends at its next event
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

// formatNumber formats a number for a sentence, with at most three decimals.
func formatNumber(n float64) string { return strconv.FormatFloat(math.Round(n*1e3)/1e3, 'f', -1, 64) }

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

// resolutionWait bounds how long Answer waits until the run continues. The process that executes
// the run may just have died, and another process needs time to notice.
const resolutionWait = 10 * time.Second

// Answer stores a person's answers to the interrupts of a run. Any process may execute the run.
// Answer checks all answers before it stores the first one, and returns when the log has the
// resolutions, or after resolutionWait. Only the run's owner may answer; for everyone else the
// run does not exist. The first answer to an interrupt counts: if another request answers one at
// the same moment, Answer stores none of the following answers. Errors: *InputError with an *InvalidError
// or *ContentError, ErrUnknownInterrupt, ErrAnswered, ErrExpired, or those of the log or ctx.
func (a *Agent) Answer(ctx context.Context, caller auth.Identity, run string, answers ...Input) error {
	r, err := a.Log.Run(ctx, run)
	if err == nil && !caller.Owns(auth.Identity{Issuer: r.Owner.Issuer, Subject: r.Owner.Subject}) {
		return event.ErrNotFound
	}
	if err != nil {
		return err
	}
	asked := make([]event.Interrupt, len(answers))
	answers = slices.Clone(answers) // the checks complete them
	for n := range answers {
		if asked[n], err = a.findInterrupt(ctx, r, answers[n].ID); err != nil {
			return err
		}
		// If the run waits in this process, its timer decides, because this machine's clock may be set.
		if !a.isActive(run) && a.Log.Now().UnixMilli() >= asked[n].ExpiresAt {
			return ErrExpired
		}
		if err := a.validateInput(r, asked[n], &answers[n]); err != nil {
			return &InputError{answers[n].ID, err}
		}
	}
	for n, i := range asked {
		err := a.Log.AddInput(ctx, run, i.ID, encodeInput(answers[n], caller))
		switch {
		case errors.Is(err, event.ErrDuplicateInput), errors.Is(err, event.ErrEnded):
			return ErrAnswered
		case err != nil:
			return fmt.Errorf("give an answer: %w", err)
		}
		a.Logger.InfoContext(ctx, "interrupt answered", "run_id", run, "interrupt_id", i.ID, "kind", i.Kind, "subject", caller.Subject)
	}
	return a.awaitResolutions(ctx, r, asked)
}

// FinishSignIn handles the query that a browser brought back from the authorization server of an MCP
// server (mcp.Client.Callback). It answers the questions of the runs that wait for it, which any process
// may execute. found is false if the query belongs to no sign-in that has not ended, or, with an error,
// if the log does not answer: the same query may be handled later.
func (a *Agent) FinishSignIn(ctx context.Context, query url.Values) (found bool, err error) {
	waiters, found, err := a.Tools.Callback(ctx, query)
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), wakeTimeout)
	defer stop()
	for _, waiter := range waiters {
		run, interrupt, _ := strings.Cut(waiter, " ")
		in := encodeInput(Input{ID: interrupt, Action: mcp.Accept}, auth.Identity{})
		err := a.Log.AddInput(ctx, run, interrupt, in)
		switch {
		case err == nil, errors.Is(err, event.ErrDuplicateInput), errors.Is(err, event.ErrEnded), errors.Is(err, event.ErrGone), errors.Is(err, event.ErrNotFound):
		default:
			a.Logger.WarnContext(ctx, "a run could not be told of a sign-in; it continues when its question expires", "run_id", run, "error", err)
		}
	}
	return found, err
}

// awaitResolutions waits for the events that resolve the interrupts, but at most for
// resolutionWait.
func (a *Agent) awaitResolutions(ctx context.Context, r event.Run, asked []event.Interrupt) error {
	open := make(map[string]bool, len(asked))
	for _, i := range asked {
		open[i.ID] = true
	}
	timeout := time.NewTimer(resolutionWait)
	defer timeout.Stop()
	for pos := r.Last.Seq; ; {
		page, err := a.Log.After(ctx, r.ID, pos)
		if err != nil {
			return err
		}
		for _, e := range page.Events {
			_, answered := replay.InterruptOf(e)
			delete(open, answered)
			pos = e.Seq
		}
		switch {
		case page.Ended || len(open) == 0:
			return nil
		case len(page.Events) > 0:
			continue
		}
		select {
		case <-page.More:
		case <-timeout.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// findInterrupt looks up an open interrupt in the run's log, because the run may be executed by
// another process, or by none while it is parked. The error explains why the interrupt cannot be
// answered.
func (a *Agent) findInterrupt(ctx context.Context, r event.Run, id string) (event.Interrupt, error) {
	if s, waits := r.Last.Body.(event.Suspended); waits {
		for _, i := range s.Interrupts {
			if i.ID == id {
				return i, nil
			}
		}
	}
	var found event.Interrupt
	for pos := int64(0); ; {
		page, err := a.Log.After(ctx, r.ID, pos)
		if err != nil {
			return found, err
		}
		for _, e := range page.Events {
			pos = e.Seq
			asked, answered := replay.InterruptOf(e)
			switch {
			case asked.ID == id && id != "":
				found = asked
			case answered != id || id == "":
			case e.Time >= found.ExpiresAt:
				return found, ErrExpired
			default:
				return found, ErrAnswered
			}
		}
		switch {
		case len(page.Events) > 0 && !page.Ended:
		case found.ID == "":
			return found, ErrUnknownInterrupt
		default:
			return found, nil
		}
	}
}

// validateInput refuses an answer that does not fit its interrupt.
func (a *Agent) validateInput(r event.Run, asked event.Interrupt, in *Input) error {
	switch asked.Kind {
	case event.KindApproval:
		return a.validateApproval(asked, in)
	case event.KindBudget:
		return a.validateBudgetIncrease(r, asked, *in)
	}
	switch {
	case in.Approved != nil || in.Reason != "" || in.Args != nil:
		return &InvalidError{"/approved", "goes with an approval; an elicitation is answered with action"}
	case in.Action == mcp.Accept:
		err := mcp.Elicitation{Mode: asked.Mode, Schema: asked.Schema, URL: asked.URL}.Check(in.Content)
		if wrong, ok := errors.AsType[*mcp.ContentError](err); ok {
			return contentErrorAt("/content", wrong.Fields)
		}
		return err
	case in.Action != mcp.Decline && in.Action != mcp.Cancel:
		return &InvalidError{"/action", "must be accept, decline or cancel"}
	case in.Content != nil:
		return &InvalidError{"/content", "goes with the action accept only"}
	}
	return nil
}

// validateApproval also checks arguments that a person wrote in place of the model's, against
// the tool's schema and with the same lossless repairs.
func (a *Agent) validateApproval(asked event.Interrupt, in *Input) error {
	switch {
	case in.Approved == nil:
		return &InvalidError{"/approved", "required: this asks for an approval"}
	case in.Action != "" || in.Content != nil:
		return &InvalidError{"/action", "goes with an elicitation; an approval is answered with approved"}
	case in.Args == nil:
		return nil
	case !*in.Approved:
		return &InvalidError{"/args", "goes with approved true only"}
	case len(in.Args) > maxArgs:
		return &ContentError{[]InvalidError{{"/args", fmt.Sprintf("must not be longer than %d bytes", maxArgs)}}}
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(in.Args, &object) != nil || object == nil || !bytes.HasPrefix(in.Args, []byte("{")) {
		return &ContentError{[]InvalidError{{"/args", "must be an object"}}}
	}
	args, err := a.Tools.CheckArgs(asked.Tool, in.Args)
	if wrong, ok := errors.AsType[*mcp.CallError](err); ok {
		return contentErrorAt("/args", wrong.Fields)
	}
	in.Args = args
	return err
}

// contentErrorAt returns an error for fields below a member of the body.
func contentErrorAt(at string, fields []mcp.ContentField) error {
	out := &ContentError{}
	for _, f := range fields {
		out.Fields = append(out.Fields, InvalidError{at + f.Pointer, f.Detail})
	}
	return out
}

// waiterName returns the name under which a run waits for a sign-in, with the interrupt that asks for it.
func waiterName(run, interrupt string) string { return run + " " + interrupt }
