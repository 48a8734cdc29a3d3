package agent

import (
	"bytes"
	"cmp"
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

// ContentError reports that an answer's content, for a form or as a tool's arguments, does not fit the question.
type ContentError struct{ Fields []InvalidError }

func (e *ContentError) Error() string { return "the answer does not fit what was asked for" }

// newContentError returns a *ContentError about one field.
func newContentError(pointer, detail string) error {
	return &ContentError{[]InvalidError{{pointer, detail}}}
}

// InputError says which of several answers is invalid. It wraps an *InvalidError or a *ContentError.
type InputError struct {
	ID  string // of the interrupt
	err error
}

func (e *InputError) Error() string { return e.ID + ": " + e.err.Error() }

// Unwrap returns what is wrong with the answer.
func (e *InputError) Unwrap() error { return e.err }

// askOwner asks the run's owner a question, and blocks until the question is answered or expires, or ctx ends. It does
// not repeat a question that an earlier process asked. When askOwner returns nil, the log has the resolution. An error
// comes from the log, or means that another process continues the run.
func (l *loop) askOwner(ctx context.Context, question event.Interrupt) (resolution, error) {
	all, err := l.askOwnerAll(ctx, []event.Interrupt{question}, nil)
	if err != nil {
		return resolution{}, err
	}
	return all[0], nil
}

// askOwnerAll asks several questions at once, blocks until all are resolved, and returns their resolutions in order.
// The run is suspended only after the log has all questions. If onResolved is not nil, askOwnerAll calls it for each
// resolution, with the question's index i, as soon as the log has the resolution; these calls may be concurrent. It
// does not repeat questions that an earlier process asked. After an error, questions may stay open, for the next
// process.
func (l *loop) askOwnerAll(
	ctx context.Context, questions []event.Interrupt, onResolved func(i int, res resolution) error,
) ([]resolution, error) {
	if onResolved == nil {
		onResolved = func(int, resolution) error { return nil }
	}
	resolutions := make([]resolution, len(questions))
	open := make([]*interrupt, len(questions)) // nil for a question that is already resolved
	for i, question := range questions {
		opened, resolved, err := l.prepareQuestion(ctx, question)
		if err != nil {
			return nil, err
		}
		if resolved == nil {
			open[i] = opened
			continue
		}
		resolutions[i] = *resolved
		if err := onResolved(i, *resolved); err != nil {
			return nil, err
		}
	}
	if err := l.openQuestions(ctx, open); err != nil {
		return nil, err
	}

	errs := make([]error, len(questions))
	var wg sync.WaitGroup
	for i, question := range open {
		switch {
		case question == nil: // resolved above
		case !question.isAsked: // openQuestions skips questions beyond maxElicitations
			resolutions[i] = resolution{unanswered: errTooManyOpen}
		default:
			wg.Go(func() {
				defer recoverTo(&errs[i])
				resolutions[i], errs[i] = l.awaitResolution(ctx, question)
				if errs[i] == nil {
					errs[i] = onResolved(i, resolutions[i])
				}
			})
		}
	}
	wg.Wait()
	return resolutions, errors.Join(errs...)
}

// prepareQuestion returns an interrupt for wanted, which may be in the replayed state or new, and makes the inbox
// expect its answer. If the question is already resolved, or no person can be asked, it returns only the resolution.
func (l *loop) prepareQuestion(ctx context.Context, wanted event.Interrupt) (open *interrupt, resolved *resolution, err error) {
	open, resolved, err = l.takeReplayedQuestion(ctx, wanted)
	isNew := open == nil && resolved == nil && err == nil
	if isNew {
		open, resolved, err = l.newQuestion(ctx, wanted)
	}
	if err != nil || resolved != nil {
		return nil, resolved, err
	}
	if wanted.Kind == event.KindBudget {
		open.operatorLimit = l.operatorLimit(wanted.Limit)
	}
	l.run.inbox.expectAnswer(open) // before its event is appended, since a reader may answer at once
	return open, nil, nil
}

// awaitResolution blocks until an open question is answered, expires, or is withdrawn because ctx has ended. It returns
// the resolution once the log has it. It returns an error if the log fails, or if the run is relinquished first.
func (l *loop) awaitResolution(ctx context.Context, question *interrupt) (resolution, error) {
	res, err := question.awaitAnswer(ctx, l.run)
	if err != nil {
		return res, err
	}
	return res, l.run.suspension.resolveInterrupt(ctx, question, res)
}

// openQuestions appends the events of the questions in open that are not asked yet; nil elements are skipped. Then it
// calls the interrupt hook for each question that needs it (mustCallInterruptHook), without waiting for the replies. It
// sets notifying before it appends the events, because the run must not be parked before the hook replies.
func (l *loop) openQuestions(ctx context.Context, open []*interrupt) error {
	var unreported []*interrupt
	for _, question := range open {
		if question != nil && l.mustCallInterruptHook(question) {
			question.notifying = true
			unreported = append(unreported, question)
		}
	}
	if err := l.run.suspension.openInterrupts(ctx, open); err != nil {
		return err
	}
	for _, question := range unreported {
		if question.isAsked {
			l.agent.runs.Go(func() { l.run.runGuarded(func() { l.callInterruptHook(ctx, question) }) })
		}
	}
	return nil
}

// newQuestion makes an interrupt from wanted, with an id, a creation time and an expiry. The interrupt expires after
// InputTimeout, or at wanted.ExpiresAt if that is set and earlier. It is not asked yet. If no person can be asked,
// newQuestion appends the question together with its resolution, and returns only the resolution, in unanswered.
func (l *loop) newQuestion(ctx context.Context, wanted event.Interrupt) (_ *interrupt, unanswered *resolution, _ error) {
	canAnswer := l.run.req.canAnswer(wanted.Kind)
	now := l.agent.Log.Now()
	expires := now // a question that no person can answer expires at once
	if canAnswer {
		expires = now.Add(l.agent.InputTimeout)
	}
	wanted.ID = cmp.Or(wanted.ID, newID("int"))
	wanted.CreatedAt = now.UnixMilli()
	wanted.ExpiresAt = min(expires.UnixMilli(), cmp.Or(wanted.ExpiresAt, math.MaxInt64)) // 0 means no earlier time
	question := newInterrupt(wanted)
	if canAnswer {
		return question, nil, nil
	}
	unanswered = &resolution{unanswered: errNobodyToAsk}
	return nil, unanswered, l.run.suspension.recordUnanswered(ctx, question, *unanswered)
}

// awaitAnswer blocks until the question is answered or expires, or ctx ends, and returns the resolution. The log
// decides whether an answer was in time. It accepts one input per question, so storing closedInput fails if an answer
// is stored already. In that case the answer counts, because the person was informed that it was accepted. If the run
// is relinquished, awaitAnswer returns the cause and stores nothing, so that the question stays open for the next
// process.
func (i *interrupt) awaitAnswer(ctx context.Context, r *run) (resolution, error) {
	expiry := time.NewTimer(i.timeLeft(r.agent.Log.Now()))
	defer expiry.Stop()
	reason := ErrExpired
	select {
	case answer := <-i.answer:
		return answer, nil
	case <-expiry.C:
	case <-ctx.Done():
		reason = errWithdrawn // by the server, or because the run ended
	}
	if err := r.relinquished(); err != nil {
		return resolution{}, err
	}
	err := r.agent.Log.AddInput(context.WithoutCancel(ctx), r.ID, i.ID, closedInput)
	if errors.Is(err, event.ErrDuplicateInput) { // an answer was stored just before
		select {
		case answer := <-i.answer:
			return answer, nil
		case <-r.inbox.stopped: // the run panicked, or another process has taken it over
		}
	}
	return resolution{unanswered: reason}, nil // an error of the log is ignored: the run's next event will fail too
}

// elicitInput asks the run's owner a question that the server sent during call, and returns the owner's reply. The
// server waits for the reply on a connection of this process, so until then the run cannot be parked (HeldOpen).
func (l *loop) elicitInput(ctx context.Context, call event.Call, asked mcp.Elicitation) (_ mcp.ElicitationResult, err error) {
	defer recoverTo(&err) // package mcp calls this in a goroutine of its own
	question := elicitationQuestion(call, asked)
	question.HeldOpen = true
	answer, err := l.askOwner(ctx, question)
	if err != nil {
		return mcp.ElicitationResult{}, err
	}
	return mcp.ElicitationResult{Action: answer.elicitationAction(), Content: answer.Content}, nil
}

// elicitationQuestion returns the question to the run's owner that a server asks during call.
func elicitationQuestion(call event.Call, asked mcp.Elicitation) event.Interrupt {
	return event.Interrupt{
		Kind: event.KindElicitation, Call: call, Message: asked.Message, Mode: asked.Mode, Schema: asked.Schema, URL: asked.URL,
	}
}

// formatNumber formats a number for a sentence, with at most three decimals.
func formatNumber(n float64) string { return strconv.FormatFloat(math.Round(n*1e3)/1e3, 'f', -1, 64) }

// validateBudgetIncrease refuses an answer to a budget question that is malformed, or whose new limit is not above what
// is used or is above the operator's limit. An answer that refuses the increase (approved false) is valid.
func (a *Agent) validateBudgetIncrease(run event.Run, asked event.Interrupt, in Input) error {
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

	limit, err := parseIncrease(in.Args)
	if err != nil {
		return err
	}
	// This uses the agent's current definition. The run may have started with an older one; the process that executes
	// the run applies that one's limit (raisedLimit).
	operatorLimit := a.budgetLimits(a.agents.Load().find(run.Agent)).ByName()[asked.Limit]
	isInteger := asked.Limit != "seconds" && asked.Limit != "cost"
	current := max(asked.Max, asked.Used)
	switch {
	case isInteger && limit != math.Trunc(limit):
		return newContentError("/args/max", "must be a whole number")
	case limit <= current:
		return newContentError("/args/max", "must be above what is used, "+formatNumber(current))
	case operatorLimit > 0 && limit > operatorLimit:
		return newContentError("/args/max", "must not be above the operator's limit, "+formatNumber(operatorLimit))
	case limit > maxRaised:
		return newContentError("/args/max", "is too large")
	}
	return nil
}

// parseIncrease returns the new limit in the arguments of an answer to a budget question. The error is a *ContentError.
func parseIncrease(args jsonText) (limit float64, _ error) {
	var members map[string]json.RawMessage
	if json.Unmarshal(args, &members) != nil || len(members) != 1 || members["max"] == nil {
		return 0, newContentError("/args", `must be {"max": N}, the new limit`)
	}
	if json.Unmarshal(members["max"], &limit) != nil {
		return 0, newContentError("/args/max", "must be a number")
	}
	return limit, nil
}

// resolutionWait is how long Answer waits for the resolutions. The process that executes the run may have just died,
// and another process needs time to notice that.
const resolutionWait = 10 * time.Second

// Answer stores a person's answers to interrupts of a run, whichever process executes the run. It checks all answers
// before it stores the first one. It returns nil once the log has the resolutions, or after resolutionWait. Only the
// run's owner may answer; for any other caller the error is event.ErrNotFound.
//
// The first answer to an interrupt counts. If another request answers one of the interrupts first, Answer returns
// ErrAnswered, and does not store the answers after that one. Other errors are an *InputError that wraps an
// *InvalidError or *ContentError, ErrUnknownInterrupt, ErrExpired, and errors of the log or ctx.
func (a *Agent) Answer(ctx context.Context, caller auth.Identity, run string, answers ...Input) error {
	r, err := a.Log.Run(ctx, run)
	if err == nil && !caller.Owns(auth.Identity{Issuer: r.Owner.Issuer, Subject: r.Owner.Subject}) {
		return event.ErrNotFound
	}
	if err != nil {
		return err
	}
	answers = slices.Clone(answers) // checkAnswer may repair their arguments
	asked := make([]event.Interrupt, len(answers))
	for i := range answers {
		if asked[i], err = a.checkAnswer(ctx, r, &answers[i]); err != nil {
			return err
		}
	}
	for i, question := range asked {
		err := a.Log.AddInput(ctx, run, question.ID, encodeInput(answers[i], caller))
		switch {
		case errors.Is(err, event.ErrDuplicateInput), errors.Is(err, event.ErrEnded):
			return ErrAnswered
		case err != nil:
			return fmt.Errorf("give an answer: %w", err)
		}
		a.Logger.InfoContext(ctx, "interrupt answered", "run_id", run, "interrupt_id", question.ID, "kind", question.Kind, "subject", caller.Subject)
	}
	return a.awaitResolutions(ctx, r, asked)
}

// checkAnswer returns the interrupt that answer is for, or an error if that cannot be answered, or not in this way. It
// may repair answer.Args.
func (a *Agent) checkAnswer(ctx context.Context, run event.Run, answer *Input) (event.Interrupt, error) {
	question, err := a.findInterrupt(ctx, run, answer.ID)
	if err != nil {
		return event.Interrupt{}, err
	}
	// If this process executes the run, the timer in awaitAnswer decides instead, which keeps its pace when the
	// machine's clock is set.
	if a.activeRun(run.ID) == nil && a.Log.Now().UnixMilli() >= question.ExpiresAt {
		return event.Interrupt{}, ErrExpired
	}
	if err := a.validateInput(run, question, answer); err != nil {
		return event.Interrupt{}, &InputError{answer.ID, err}
	}
	return question, nil
}

// FinishSignIn handles the query with which an authorization server redirected the user's browser back
// (mcp.Client.Callback). It answers the questions of all runs that wait for this sign-in, in any process; if an answer
// cannot be stored, it only logs that.
//
// found is false if query belongs to no sign-in in progress. If found is false and err is not nil, the log did not
// answer, and the same query may be tried again. If found is true, err says why the sign-in failed, or is nil.
func (a *Agent) FinishSignIn(ctx context.Context, query url.Values) (found bool, err error) {
	waiters, found, signInErr := a.Tools.Callback(ctx, query)
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), wakeTimeout)
	defer stop()
	for _, waiter := range waiters {
		run, interrupt, _ := strings.Cut(waiter, " ") // waiter is from waiterName
		in := encodeInput(Input{ID: interrupt, Action: mcp.Accept}, auth.Identity{})
		if err := a.Log.AddInput(ctx, run, interrupt, in); err != nil && !isTooLate(err) {
			a.Logger.WarnContext(ctx, "a run was not informed of a sign-in; it continues when its question expires", "run_id", run, "error", err)
		}
	}
	return found, signInErr
}

// awaitResolutions returns nil once the log has the events that resolve all of asked, once the run has ended, or after
// resolutionWait. run must have been read before the answers were stored.
func (a *Agent) awaitResolutions(ctx context.Context, run event.Run, asked []event.Interrupt) error {
	open := make(map[string]bool, len(asked))
	for _, question := range asked {
		open[question.ID] = true
	}
	timeout := time.NewTimer(resolutionWait)
	defer timeout.Stop()
	pos := run.Last.Seq
	for {
		page, err := a.Log.After(ctx, run.ID, pos)
		if err != nil {
			return err
		}
		for _, e := range page.Events {
			_, resolvedID := replay.InterruptOf(e)
			delete(open, resolvedID)
			pos = e.Seq
		}
		if page.Ended || len(open) == 0 {
			return nil
		}
		if len(page.Events) > 0 {
			continue // the log may have more events already
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

// findInterrupt returns the run's open interrupt with this id. It reads the run's events, because another process may
// execute the run, or the run may be parked. The error is ErrUnknownInterrupt, ErrAnswered or ErrExpired if the
// interrupt cannot be answered, or an error of the log.
func (a *Agent) findInterrupt(ctx context.Context, run event.Run, id string) (event.Interrupt, error) {
	if s, waits := run.Last.Body.(event.Suspended); waits {
		for _, question := range s.Interrupts {
			if question.ID == id {
				return question, nil
			}
		}
	}
	var found event.Interrupt
	for e, err := range a.eventsSoFar(ctx, run.ID) {
		if err != nil {
			return found, err
		}
		asked, resolvedID := replay.InterruptOf(e) // "" for an event that asks or resolves no question
		if id != "" && asked.ID == id {
			found = asked
		}
		if id == "" || resolvedID != id {
			continue
		}
		if e.Time >= found.ExpiresAt {
			return found, ErrExpired
		}
		return found, ErrAnswered
	}
	if found.ID == "" {
		return found, ErrUnknownInterrupt
	}
	return found, nil
}

// validateInput returns an *InvalidError or *ContentError if an answer does not fit its interrupt. It may repair
// in.Args in the answer to an approval. It sets the in.Content of an accepted form to {} if it is missing, because
// clients omit it if no field was filled in.
func (a *Agent) validateInput(run event.Run, asked event.Interrupt, in *Input) error {
	switch asked.Kind {
	case event.KindApproval:
		return a.validateApproval(asked, in)
	case event.KindBudget:
		return a.validateBudgetIncrease(run, asked, *in)
	}
	switch {
	case in.Approved != nil || in.Reason != "" || in.Args != nil:
		return &InvalidError{"/approved", "goes with an approval; an elicitation is answered with action"}
	case in.Action == mcp.Accept:
		if in.Content == nil && asked.Mode != mcp.ElicitURL {
			in.Content = jsonText("{}")
		}
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

// validateApproval refuses an answer that does not fit an approval. If the person changed the arguments,
// validateApproval checks them against the tool's schema, and applies the same lossless repairs to in.Args as to a
// model's arguments.
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
		return newContentError("/args", fmt.Sprintf("must not be longer than %d bytes", maxArgs))
	}
	isObject := json.Valid(in.Args) && bytes.HasPrefix(in.Args, []byte("{"))
	if !isObject {
		return newContentError("/args", "must be an object")
	}
	args, err := a.Tools.CheckArgs(a.Tools.NameOf(asked.Server, asked.Tool), in.Args)
	if wrong, ok := errors.AsType[*mcp.CallError](err); ok {
		return contentErrorAt("/args", wrong.Fields)
	}
	in.Args = args
	return err
}

// contentErrorAt returns a *ContentError for fields. It prefixes their pointers with pointer, the member of the request
// they are in.
func contentErrorAt(pointer string, fields []mcp.ContentField) error {
	out := &ContentError{}
	for _, f := range fields {
		out.Fields = append(out.Fields, InvalidError{pointer + f.Pointer, f.Detail})
	}
	return out
}

// waiterName returns the name under which a run waits for a sign-in. It consists of the run's id and the id of the
// interrupt that asks for the sign-in, separated by a space, which ids do not contain.
func waiterName(run, interrupt string) string { return run + " " + interrupt }
