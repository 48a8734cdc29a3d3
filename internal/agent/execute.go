package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel/trace"

	"answerd/internal/agent/budget"
	"answerd/internal/agent/definition"
	"answerd/internal/event"
	"answerd/internal/help"
	"answerd/internal/llm"
	"answerd/internal/mcp"
)

// executeRun executes a run in its own goroutine. It starts with the start event, or where
// another process stopped, and ends with the terminal event, or when this process relinquishes
// the run. lost explains why the run cannot continue; nil if it can.
func (a *Agent) executeRun(r *run, lost error) {
	started := time.Now()
	if r.job != nil && r.job.Attempt() > 1 { // another process has begun the run
		started = started.Add(r.Created.Sub(a.Log.Now()))
	}
	a.metrics.active.Add(a.ctx, 1)
	defer a.containPanic(r)
	ctx := a.startRunSpan(r)
	seconds := r.req.Budget.Seconds
	if r.replayed != nil {
		r.clock.Restore(r.replayed.Used, r.replayed.Reported["seconds"])
		seconds = cmp.Or(r.replayed.Raised["seconds"], seconds)
	}
	if a.Repeat != nil && a.Repeat.ManualClock {
		r.clock.SetManual()
	}
	ctx = r.clock.Start(ctx, seconds, r.out, r.runGuarded)
	defer r.clock.Stop()
	r.suspension.restore()
	l := &loop{agent: a, run: r, started: started, replayed: r.replayed}
	end, err := event.Body(nil), lost
	if err == nil {
		end, err = l.restoredEnd()
	}
	if err == nil && end == nil {
		end, err = l.runTurns(ctx)
	}
	a.concludeRun(ctx, l, end, err, lost)
}

// concludeRun appends the terminal event, unless the run was relinquished, and removes the run.
//
// A run that came to its end keeps that end: err decides between an answer and the event for a cancellation,
// and a cancellation that comes after the last turn finds err nil. A run that is relinquished at this moment
// is also safe: relinquish seals the writer before it sets the cause, so that the append fails with ErrFenced
// and the job is released. The same happens if the log refuses the event; the process that claims
// the job then ends the run.
//
// Children are cancelled, and the hook run_end is asked, before the event. If the process dies in between,
// the next one finds a run that has not ended and does both again. wakeParent comes after it, since the parent
// reads the end of its child in the log. The slot is released before it: see below.
func (a *Agent) concludeRun(ctx context.Context, l *loop, end event.Body, err, lost error) {
	r, span, lasting := l.run, trace.SpanFromContext(ctx), context.WithoutCancel(ctx)
	ended := false
	if r.relinquished() == nil && !errors.Is(err, event.ErrFenced) {
		if err != nil {
			end = a.terminalEventFor(ctx, r, l, err)
		}
		a.cancelChildren(lasting, l)
		l.callRunEndHook(lasting, end)
		// Release the slot first: a client that reads the end may ask its next question at once.
		r.slot.Release()
		// The terminal event is appended even if the run's context has ended.
		if err = a.appendTerminal(lasting, r, end, lost); err != nil && r.relinquished() == nil {
			a.Logger.ErrorContext(ctx, "the terminal event could not be written", "run_id", r.ID, "error", err)
		}
		ended = err == nil // also if the run is relinquished from now on
	}
	if ended {
		a.wakeParent(r, r.ID)
	}
	r.inbox.stopListening()

	if !ended {
		span.End()
		a.removeRun(r)
		a.metrics.active.Add(a.ctx, -1)
		if r.job != nil {
			a.releaseJob(r)
		}
		return
	}

	a.recordRunEnd(span, l, end)
	span.End()
	a.removeRun(r)
	a.metrics.countRunEnd(a.ctx, end, time.Since(l.started))
	l.logEnd(ctx, end)
}

// cancelChildren cancels the child runs of a run that ends, if another process started them and no call
// of this process has waited for their end.
func (a *Agent) cancelChildren(ctx context.Context, l *loop) {
	if l.replayed == nil {
		return
	}
	for _, c := range l.replayed.Calls {
		if !c.HasChild() || c.End != nil || c.Spent != nil {
			continue
		}
		if err := a.Cancel(ctx, c.Child); err != nil && !errors.Is(err, event.ErrNotFound) && !errors.Is(err, event.ErrGone) {
			a.Logger.WarnContext(ctx, "a child run could not be cancelled", "run_id", l.run.ID, "child_run_id", c.Child, "error", err)
		}
	}
}

// appendTerminal appends the terminal event and ends the run's job. The deliveries about the end are
// stored first, and sent afterwards. Stored after the event, they would be lost if the process died between
// the two, because no process continues a run that has ended. Sent before it, they could report an end that the
// next process replaces by another one.
func (a *Agent) appendTerminal(ctx context.Context, r *run, end event.Body, lost error) error {
	deliveries, err := a.Deliveries.Prepare(ctx, r.Run, cmp.Or(r.Agent, definition.DefaultID), r.req.Callback, end)
	if err != nil {
		return err
	}
	if err := a.appendEnd(ctx, r, end, lost); err != nil {
		deliveries.Release()
		return err
	}
	deliveries.Send()
	return nil
}

// appendEnd ends the run's turn, appends the terminal event and ends the run's job, in this order. The turn
// comes first because whoever reads the event may ask the next question of the thread at once. The job ends
// last, because no process continues a run without a job. restoreErr is the error of
// reading the run's state from the log, nil if it was read.
func (a *Agent) appendEnd(ctx context.Context, r *run, end event.Body, restoreErr error) error {
	r.endTurn(ctx, end)
	err := r.out.Append(ctx, end)
	if _, isOrderError := errors.AsType[*event.OrderError](err); isOrderError && restoreErr != nil {
		// The run's state could not be read, so open parts and calls cannot be closed. The
		// terminal event matters more.
		_, err = a.Log.Append(ctx, r.ID, end)
	}
	if err != nil || r.job == nil {
		return err
	}
	if err := r.job.Done(ctx); err != nil {
		// A process that claims the job will find that the run has ended.
		a.Logger.WarnContext(ctx, "the job of an ended run could not be removed", "run_id", r.ID, "error", err)
	}
	return nil
}

// terminalEventFor returns the terminal event for an error. It is the only place that maps
// errors to events: the log gets the cause, and the caller gets a text that they can act on.
// The cause of the context comes before err: when a run is cancelled, err is only what was interrupted by it,
// such as a model request that failed.
func (a *Agent) terminalEventFor(ctx context.Context, r *run, l *loop, err error) event.Body {
	partial := r.threadTurn.StepText()
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, errRequested), errors.Is(cause, errAbandoned):
		return event.Cancelled{Reason: cause.Error(), PartialAnswer: partial}
	case errors.Is(cause, errShutdown):
		return event.RunError{Code: "server_shutdown", Message: "The service is shutting down. Ask again.", Retryable: true, PartialAnswer: partial}
	case errors.Is(cause, errNoMemory):
		a.Logger.WarnContext(ctx, "run ended: it needs more memory than is left", "run_id", r.ID)
		return event.RunError{
			Code:          "overloaded",
			Message:       "The run needed more memory than the service has left. Ask again later.",
			Retryable:     true,
			RetryAfter:    2,
			PartialAnswer: partial,
		}
	case errors.Is(cause, budget.ErrTimeUsed):
		return event.RunError{Code: "budget_exceeded", Message: "The run's time is used up.", PartialAnswer: partial}
	}
	if errors.Is(err, errJobLost) {
		a.Logger.WarnContext(ctx, "run given up", "run_id", r.ID, "error", err, help.Scaling.Attr())
		return event.RunError{
			Code:          "server_shutdown",
			Message:       "The service ended before the run did. Ask again.",
			Retryable:     true,
			PartialAnswer: partial,
		}
	}
	if lost, ok := errors.AsType[*unrecoverableError](err); ok {
		a.Logger.WarnContext(ctx, "run given up", "run_id", r.ID, "error", lost.err, help.Scaling.Attr())
		return event.RunError{Code: "internal", Message: lost.public, Retryable: true, PartialAnswer: partial}
	}
	abort, aborted := errors.AsType[*abortError](err)
	if !aborted { // the hook interrupt ends the run's context
		abort, aborted = errors.AsType[*abortError](context.Cause(ctx))
	}
	if aborted {
		if abort.withheld {
			partial = ""
		}
		return event.RunError{Code: "tool_aborted", Message: withReason("A hook ended the run", abort.reason), PartialAnswer: partial}
	}

	var model *llm.Error
	if errors.As(err, &model) {
		a.Logger.WarnContext(ctx, "model call failed", "run_id", r.ID, "error", err, help.Model.Attr())
		end := event.RunError{
			Code: string(model.Kind), Message: model.Public, Retryable: model.Retryable,
			RetryAfter: int64(math.Ceil(model.RetryAfter.Seconds())), PartialAnswer: partial,
		}
		if model.UnknownModel {
			end.Reason = event.ModelNotFound
		}
		return end
	}
	if prompt, ok := errors.AsType[*promptError](err); ok {
		a.Logger.WarnContext(ctx, "prompt could not be used", "run_id", r.ID, "error", prompt.err)
		return prompt.runError()
	}
	a.Logger.LogAttrs(ctx, slog.LevelError, "run failed", append(errorAttrs(err), slog.String("run_id", r.ID))...)
	return event.RunError{Code: "internal", Message: internalErrorMessage, PartialAnswer: partial}
}

// containPanic ends a run whose concludeRun panicked; executeRun defers it. The run still gets a
// terminal event.
func (a *Agent) containPanic(r *run) {
	v := recover()
	if v == nil {
		return
	}
	a.Logger.Error("run failed", "run_id", r.ID, "error", fmt.Sprintf("panic: %v", v), "stack", string(debug.Stack()))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), releaseTimeout)
	defer cancel()
	if err := a.forceTerminal(ctx, r); err != nil {
		a.Logger.Error("the terminal event could not be written", "run_id", r.ID, "error", err)
	}
	r.inbox.stopListening()
	a.removeRun(r)
	a.metrics.active.Add(a.ctx, -1)
	a.metrics.runs.Add(a.ctx, 1, newEndLabels(event.RunError{Code: "internal"})[0]) // an alert on defects reads it
}

// forceTerminal appends a terminal event unless the log has one. It goes to the log without the writer if the
// writer refuses the event or panics, because a run without an end would keep its readers and its thread waiting.
func (a *Agent) forceTerminal(ctx context.Context, r *run) (err error) {
	defer recoverTo(&err)
	if run, err := a.Log.Run(ctx, r.ID); err == nil && run.Last.Terminal() {
		return nil
	}
	end := event.RunError{Code: "internal", Message: internalErrorMessage}
	err = func() (err error) {
		defer recoverTo(&err)
		return a.appendTerminal(ctx, r, end, errors.New("its end panicked"))
	}()
	if err != nil { // even if the code that orders events is broken
		_, err = a.Log.Append(ctx, r.ID, end)
	}
	return err
}

// internalErrorMessage replaces the cause of an internal fault for callers.
const internalErrorMessage = "The run failed inside the service."

// runError returns the terminal event of a run that needed the prompt.
func (e *promptError) runError() event.RunError {
	if errors.Is(e.err, mcp.ErrBadPrompt) {
		return event.RunError{Code: "unprocessable", Message: "The MCP server has no such prompt, or does not take these arguments."}
	}
	return event.RunError{
		Code:      "unavailable",
		Message:   "The prompt cannot be had from its MCP server now. Ask again later; GET /servers says why.",
		Retryable: true,
	}
}
