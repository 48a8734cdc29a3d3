package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"answerd/internal/agent/admission"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm"
)

// Why a run was ended from outside, as the cause of its context.
var (
	errRequested = errors.New("requested")
	errAbandoned = errors.New("abandoned")
	errShutdown  = errors.New("server_shutdown")
	errSeconds   = errors.New("the run's seconds are used up")
	errToolTime  = errors.New("the run's time for tools is used up") // of its calls only
)

// run is a run while it goes on.
type run struct {
	event.Run
	caller auth.Identity // who asked; the run acts on his behalf, and the log has no token
	req    Request
	ctx    context.Context
	cancel context.CancelCauseFunc
	out    *event.Writer
	agent  *Agent
	waits  waits
	clock  clock
	inbox  inbox
	job    event.Job // nil where no other process could go on
	past   *past     // nil unless one did before
	slot   *admission.Slot

	// The agent's mutex guards the rest.
	timer *time.Timer // ends the run that nobody watches; nil while somebody does
}

func (a *Agent) newRun(parent context.Context, rec event.Run, caller auth.Identity, r Request) *run {
	ctx, cancel := context.WithCancelCause(parent)
	run := &run{Run: rec, caller: caller, req: r, ctx: ctx, cancel: cancel, out: event.NewWriter(a.Log, rec.ID), agent: a}
	run.waits.run, run.inbox = run, newInbox(run)
	return run
}

// say appends what may come at any time, and not while the run is suspended: then it
// waits.
func (r *run) say(ctx context.Context, b event.Body) error {
	for {
		err := r.out.Append(ctx, b)
		if !errors.Is(err, event.ErrSuspended) {
			return err
		}
		select {
		case <-r.waits.resumed():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Cancel asks for the end of a run, wherever it is executed; its last event follows
// within moments, as a rule. A run that has ended stays as it is.
func (a *Agent) Cancel(ctx context.Context, id string) error {
	a.mu.Lock()
	r := a.active[id]
	a.mu.Unlock()
	if r != nil {
		r.cancel(errRequested)
	}
	if r != nil && !a.Durable {
		return nil
	}
	// Whoever executes the run from now on has to know.
	err := a.Log.AddInput(ctx, id, event.CancelID, nil)
	if errors.Is(err, event.ErrDuplicateInput) || errors.Is(err, event.ErrEnded) {
		return nil
	}
	return err
}

// execute is a run's goroutine: from its start event, or where it was left, to its
// terminal one, or until it is left again. lost is why it cannot go on, nil if it can.
func (a *Agent) execute(r *run, lost error) {
	started := time.Now()
	a.metrics.active.Add(a.ctx, 1)
	defer a.contain(r)
	ctx, _ := a.Tracer.Start(r.ctx, "tool_calling_loop")
	seconds := r.req.Budget.Seconds
	if r.past != nil {
		r.clock.remember(r.past.used, r.past.told["seconds"])
		seconds = cmp.Or(r.past.raised["seconds"], seconds)
	}
	r.clock.start(ctx, seconds, r.out)
	defer r.clock.stop()
	ctx = r.clock.ctx
	l := &loop{agent: a, run: r, started: started, past: r.past}
	end, err := event.Body(nil), lost
	if err == nil {
		end, err = l.answer(ctx)
	}
	a.conclude(ctx, l, end, err, lost)
}

// conclude writes the end that a run has come to, unless it was left, ends the span of ctx,
// and lets go of the run.
func (a *Agent) conclude(ctx context.Context, l *loop, end event.Body, err, lost error) {
	r, span := l.run, trace.SpanFromContext(ctx)
	if r.gone() == nil && !errors.Is(err, event.ErrFenced) {
		if err != nil {
			end = a.failure(ctx, r, l, err)
		}
		// Whoever reads the end may ask the next question at once, and has a place for it.
		r.slot.Release()
		// The terminal event is written whatever became of the run's context.
		if err = a.finish(context.WithoutCancel(ctx), r, end, lost); err != nil && r.gone() == nil {
			a.Logger.ErrorContext(ctx, "the terminal event could not be written", "run_id", r.ID, "error", err)
		}
	}
	r.inbox.close()
	if err != nil || r.gone() != nil {
		span.End()
		a.retire(r)
		a.metrics.active.Add(a.ctx, -1)
		if r.job != nil {
			a.depart(r)
		}
		return
	}
	if failed, ok := end.(event.RunError); ok {
		span.SetStatus(codes.Error, failed.Code)
	}
	span.End()
	a.retire(r)
	a.metrics.ended(a.ctx, end, time.Since(l.started))
	a.Logger.InfoContext(ctx, "run ended", "run_id", r.ID, "outcome", string(end.Type()),
		"steps", l.step, "tool_calls", len(l.meta.ToolNames), "duration_ms", time.Since(l.started).Milliseconds())
}

// finish writes the terminal event, with which the run's job is done.
func (a *Agent) finish(ctx context.Context, r *run, end event.Body, lost error) error {
	err := r.out.Append(ctx, end)
	if _, order := errors.AsType[*event.OrderError](err); order && lost != nil {
		// Nobody knows what is open in it. Its end is what matters.
		_, err = a.Log.Append(ctx, r.ID, end)
	}
	if err != nil || r.job == nil {
		return err
	}
	if err := r.job.Done(ctx); err != nil {
		// Whoever gets the job finds that the run has ended.
		a.Logger.WarnContext(ctx, "the job of a run is not taken away", "run_id", r.ID, "error", err)
	}
	return nil
}

func (a *Agent) retire(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active[r.ID] == r {
		delete(a.active, r.ID)
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	r.cancel(nil)
	r.slot.Release()
	a.settle()
}

// failure is the one place that turns an error into a terminal event. The log gets
// the cause; the caller gets what it can act on.
func (a *Agent) failure(ctx context.Context, r *run, l *loop, err error) event.Body {
	partial := l.said.String()
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errRequested), errors.Is(cause, errAbandoned):
		return event.Cancelled{Reason: cause.Error(), PartialAnswer: partial}
	case errors.Is(cause, errShutdown):
		return event.RunError{Code: "server_shutdown", Message: "The service is shutting down.", Retryable: true, PartialAnswer: partial}
	case errors.Is(cause, errSeconds):
		return event.RunError{Code: "budget_exceeded", Message: "The run's time is used up.", PartialAnswer: partial}
	}
	if lost, ok := errors.AsType[*lostError](err); ok {
		a.Logger.WarnContext(ctx, "run given up", "run_id", r.ID, "error", lost.err)
		return event.RunError{Code: "internal", Message: lost.public, Retryable: true, PartialAnswer: partial}
	}
	if abort, ok := errors.AsType[*abortError](err); ok {
		return event.RunError{Code: "tool_aborted", Message: sentence("A hook ended the run", abort.reason), PartialAnswer: partial}
	}
	var model *llm.Error
	if errors.As(err, &model) {
		a.Logger.WarnContext(ctx, "model call failed", "run_id", r.ID, "error", err)
		return event.RunError{Code: string(model.Kind), Message: model.Public, Retryable: model.Retryable, PartialAnswer: partial}
	}
	if prompt, ok := errors.AsType[*promptError](err); ok {
		a.Logger.WarnContext(ctx, "prompt could not be used", "run_id", r.ID, "error", prompt.err)
		return prompt.end()
	}
	a.Logger.LogAttrs(ctx, slog.LevelError, "run failed", append(faultOf(err), slog.String("run_id", r.ID))...)
	return event.RunError{Code: "internal", Message: failedInside, PartialAnswer: partial}
}
