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
	"answerd/internal/event"
	"answerd/internal/help"
	"answerd/internal/llm"
	"answerd/internal/mcp"
)

// executeRun executes a run in the calling goroutine, which is the run's own. It begins after the start event, or where
// another process stopped, and returns after the terminal event or once this process has relinquished the run.
// restoreErr says why the run cannot continue from its log; nil means that it can. With a restoreErr, executeRun only
// ends the run.
func (a *Agent) executeRun(r *run, restoreErr error) {
	started := time.Now()
	if r.job != nil && r.job.Attempt() > 1 {
		// Another process began the run: measure durations from the run's creation, by the log's clock.
		started = started.Add(r.Created.Sub(a.Log.Now()))
	}
	a.metrics.active.Add(a.ctx, 1)
	defer a.containPanic(r)
	ctx := r.startClock(a.startRunSpan(r))
	defer r.clock.Stop()
	r.suspension.restore()
	l := &loop{agent: a, run: r, started: started, replayed: r.replayed, childSpent: event.Spent{Cost: new(float64)}}
	var end event.Body
	err := restoreErr
	if restoreErr == nil {
		end, err = l.runTurns(ctx)
	}
	a.concludeRun(ctx, l, end, err, restoreErr)
}

// startClock starts the run's clock, and returns a context that ends when the run's time is used up. After a takeover
// the clock continues with the time that earlier processes charged, and with the limit that a person raised, if any.
func (r *run) startClock(ctx context.Context) context.Context {
	limit := r.req.Budget.Seconds
	if r.replayed != nil {
		r.clock.Restore(r.replayed.Used, r.replayed.Reported["seconds"])
		limit = cmp.Or(r.replayed.Raised["seconds"], limit)
	}
	if repeat := r.agent.Repeat; repeat != nil && repeat.ManualClock {
		r.clock.SetManual()
	}
	return r.clock.Start(ctx, limit, r.out, r.runGuarded)
}

// concludeRun appends the terminal event, unless this process has relinquished the run, and removes the run from
// Agent.active. The terminal event is end or, if err is not nil, the event that describes err.
//
// If the run is relinquished while concludeRun is working, the sealed writer refuses the event with ErrFenced. As after
// any refusal by the log, concludeRun then releases the job, and the process that claims it ends the run.
func (a *Agent) concludeRun(ctx context.Context, l *loop, end event.Body, err, restoreErr error) {
	r := l.run
	span := trace.SpanFromContext(ctx)
	isExecutedElsewhere := r.relinquished() != nil || errors.Is(err, event.ErrFenced)
	if err != nil && !isExecutedElsewhere {
		end = a.terminalEventFor(ctx, r, err)
	}
	// Append the event even if the run's context has ended.
	if isExecutedElsewhere || !a.endRun(context.WithoutCancel(ctx), l, end, restoreErr) {
		r.inbox.stopListening()
		span.End()
		a.removeRun(r)
		a.metrics.active.Add(a.ctx, -1)
		if r.job != nil {
			a.releaseJob(r)
		}
		return
	}

	a.wakeParent(r, r.ID, closedInput) // after the event, since the parent reads its child's end from the log
	r.inbox.stopListening()
	a.recordRunEnd(span, l, end)
	span.End()
	a.removeRun(r)
	a.metrics.countRunEnd(a.ctx, end, time.Since(l.started))
	l.logEnd(ctx, end)
}

// endRun appends the run's terminal event and reports whether the log accepted it. Before that, it cancels the run's
// children and calls the run_end hook. If this process dies before the event, the process that takes over does both
// again. restoreErr is as for executeRun.
func (a *Agent) endRun(ctx context.Context, l *loop, end event.Body, restoreErr error) bool {
	r := l.run
	a.cancelChildren(ctx, l)
	l.callRunEndHook(ctx, end)
	// Release the slot before the event: a client that reads the end may ask its next question at once.
	r.slot.Release()
	err := a.appendAndDeliver(ctx, r, end, restoreErr)
	if err != nil && r.relinquished() == nil {
		a.Logger.ErrorContext(ctx, "the terminal event could not be written", "run_id", r.ID, "error", err)
	}
	return err == nil // relinquishing the run after its last event changes nothing
}

// cancelChildren cancels the child runs that earlier processes started for this run, except for those whose call has
// ended or whose use of the budget is in the log. askAgent cancels the children that this process started.
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

// appendAndDeliver calls appendTerminal, stores the deliveries about the run's end before it, and sends them after it.
// Stored later, they would be lost if the process died in between, because no process continues a run that has ended.
// Sent earlier, they could report an end that differs from the one that a process taking over the run appends.
// restoreErr is as for executeRun.
func (a *Agent) appendAndDeliver(ctx context.Context, r *run, end event.Body, restoreErr error) error {
	deliveries, err := a.Deliveries.Prepare(ctx, r.Run, r.agentID(), r.req.Callback, end)
	if err != nil {
		return err
	}
	if err := a.appendTerminal(ctx, r, end, restoreErr); err != nil {
		deliveries.Release()
		return err
	}
	deliveries.Send()
	return nil
}

// appendTerminal ends the run's turn in the thread, appends the terminal event and ends the run's job, in this order.
// The turn comes first because a reader of the event may ask the thread's next question at once. The job comes last
// because no process continues a run without a job. restoreErr is as for executeRun.
func (a *Agent) appendTerminal(ctx context.Context, r *run, end event.Body, restoreErr error) error {
	r.endTurn(ctx, end)
	err := r.out.Append(ctx, end)
	if _, isOrderError := errors.AsType[*event.OrderError](err); isOrderError && restoreErr != nil {
		// The run could not be restored, so the writer does not know which parts and calls are open, and refuses the
		// event. Append it without closing them: every run must get a terminal event.
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

// terminalEventFor returns the terminal event of a run that ended with err. It is the only place that maps errors to
// events: it logs the error, and puts a text in the event that the API client can act on. It looks at the cause of ctx
// before err, because after a cancellation err only says what was interrupted, such as a model request.
func (a *Agent) terminalEventFor(ctx context.Context, r *run, err error) event.Body {
	partial := r.threadTurn.StepText()
	if end := a.terminalEventForCause(ctx, r, partial); end != nil {
		return end
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
	// The hook interrupt is asked in another goroutine, so its abort is the cause of ctx.
	if abort, ok := errors.AsType[*abortError](errors.Join(err, context.Cause(ctx))); ok {
		if abort.withheld {
			partial = ""
		}
		return event.RunError{Code: "tool_aborted", Message: withReason("A hook ended the run", abort.reason), PartialAnswer: partial}
	}

	if modelErr, ok := errors.AsType[*llm.Error](err); ok {
		a.Logger.WarnContext(ctx, "model call failed", "run_id", r.ID, "error", err, help.Model.Attr())
		return modelRunError(modelErr, partial)
	}
	if prompt, ok := errors.AsType[*promptError](err); ok {
		a.Logger.WarnContext(ctx, "prompt could not be used", "run_id", r.ID, "error", prompt.err)
		return prompt.runError()
	}
	if errors.Is(err, event.ErrUnavailable) { // "run failed" reports defects of answerd, and this is none
		a.Logger.WarnContext(ctx, "run interrupted: its events cannot be stored", "run_id", r.ID, "error", err, help.EventLogSpace.Attr())
	} else {
		a.Logger.LogAttrs(ctx, slog.LevelError, "run failed", append(errorAttrs(err), slog.String("run_id", r.ID))...)
	}
	return event.RunError{Code: "internal", Message: internalErrorMessage, PartialAnswer: partial}
}

// terminalEventForCause returns the terminal event if ctx was cancelled with a cause that decides how the run ends. It
// returns nil if ctx has not ended or has another cause. partial is the answer's text so far.
func (a *Agent) terminalEventForCause(ctx context.Context, r *run, partial string) event.Body {
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
			RetryAfter:    2, // seconds
			PartialAnswer: partial,
		}
	case errors.Is(cause, budget.ErrTimeUsed):
		return event.RunError{Code: "budget_exceeded", Message: "The run's time is used up.", PartialAnswer: partial}
	}
	return nil
}

// modelRunError returns the terminal event of a run whose model call failed with err. partial is the answer so far.
func modelRunError(err *llm.Error, partial string) event.RunError {
	end := event.RunError{
		Code: string(err.Kind), Message: err.Public, Retryable: err.Retryable,
		RetryAfter: int64(math.Ceil(err.RetryAfter.Seconds())), PartialAnswer: partial,
	}
	if err.UnknownModel {
		end.Reason = event.ModelNotFound
	}
	return end
}

// containPanic must be deferred by executeRun. If the execution panics, containPanic ends the run, with a terminal
// event if the log accepts one. Without it, the panic would end the process with all its runs. runTurns handles its own
// panics.
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
	// An alert on defects reads this counter.
	a.metrics.runs.Add(a.ctx, 1, endLabels(event.RunError{Code: "internal"}))
}

// forceTerminal appends a terminal event for an internal error, unless the run already has a terminal event. If
// appendAndDeliver fails or panics, it appends the event to the log directly, because readers and the thread would
// otherwise wait forever for the run to end.
func (a *Agent) forceTerminal(ctx context.Context, r *run) (err error) {
	defer recoverTo(&err)
	if rec, readErr := a.Log.Run(ctx, r.ID); readErr == nil && rec.Last.Terminal() {
		return nil
	}
	end := event.RunError{Code: "internal", Message: internalErrorMessage}
	err = catchPanic(func() error { return a.appendAndDeliver(ctx, r, end, errors.New("its end panicked")) })
	if err != nil { // the panic may have come from the deliveries, the thread or the writer
		_, err = a.Log.Append(ctx, r.ID, end)
	}
	return err
}

// internalErrorMessage is the text that API clients get for an internal error, whose cause only the process's log has.
const internalErrorMessage = "The run failed inside the service."

// runError returns the terminal event of a run that could not get the prompt that its request names.
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
