package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel/codes"

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

	// The agent's mutex guards the rest.
	watchers int
	timer    *time.Timer // ends the run that nobody watches; nil while somebody does
}

func (a *Agent) newRun(parent context.Context, rec event.Run, caller auth.Identity, r Request) *run {
	ctx, cancel := context.WithCancelCause(parent)
	run := &run{Run: rec, caller: caller, req: r, ctx: ctx, cancel: cancel, out: event.NewWriter(a.Log, rec.ID), agent: a}
	run.waits.run = run
	return run
}

// rest lets the run go on without watchers for at most grace.
func (r *run) rest(grace time.Duration) {
	if !r.Background {
		r.timer = time.AfterFunc(grace, func() { r.cancel(errAbandoned) })
	}
}

// Watch is somebody's interest in a run. It must be released once.
type Watch struct {
	agent *Agent
	run   *run // nil when the run had ended
}

// Watch keeps the run of that id from being cancelled as one that nobody reads. It
// does nothing for a run that has ended.
func (a *Agent) Watch(id string) *Watch {
	a.metrics.streams.Add(a.ctx, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	w := &Watch{agent: a, run: a.active[id]}
	if w.run != nil {
		w.run.watchers++
		if w.run.timer != nil {
			w.run.timer.Stop()
			w.run.timer = nil
		}
	}
	return w
}

// Release ends the interest; the last one to leave starts the grace period.
func (w *Watch) Release() { w.release(w.agent.Grace) }

// Abandon ends the interest of a caller that would not come back: if nobody else
// watches, the run is cancelled at once.
func (w *Watch) Abandon() { w.release(0) }

func (w *Watch) release(grace time.Duration) {
	w.agent.metrics.streams.Add(w.agent.ctx, -1)
	if w.run == nil {
		return
	}
	w.agent.mu.Lock()
	defer w.agent.mu.Unlock()
	w.run.watchers--
	if w.run.watchers == 0 && w.agent.active[w.run.ID] == w.run && w.run.waits.asking.Load() == 0 {
		w.run.rest(grace)
	}
}

// Detach ends the interest of a caller who was told to come back for the answer: from
// now on the run goes on without readers, as a background run does.
func (w *Watch) Detach() {
	if w.run != nil {
		w.agent.mu.Lock()
		w.run.Background = true
		w.agent.mu.Unlock()
	}
	w.Release()
}

// linger keeps a run that waits for a person from being cancelled as one that nobody
// reads: it ends with the time to answer at the latest.
func (a *Agent) linger(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// expectReader lets a run go on that no longer waits, until whoever answered reads it.
func (a *Agent) expectReader(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.watchers == 0 && r.timer == nil && a.active[r.ID] == r && r.waits.asking.Load() == 0 {
		r.rest(max(a.Grace, startGrace))
	}
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

// Cancel ends a run, if it goes on; its last event follows within moments.
func (a *Agent) Cancel(id string) {
	a.mu.Lock()
	r := a.active[id]
	a.mu.Unlock()
	if r != nil {
		r.cancel(errRequested)
	}
}

// execute is a run's goroutine: from its start event to its terminal one.
func (a *Agent) execute(r *run) {
	started := time.Now()
	a.metrics.active.Add(a.ctx, 1)
	ctx, span := a.Tracer.Start(r.ctx, "tool_calling_loop")
	r.clock.start(ctx, r.req.Budget.Seconds, r.out)
	defer r.clock.stop()
	ctx = r.clock.ctx
	l := &loop{agent: a, run: r, started: started}
	end, err := l.answer(ctx)
	if err != nil {
		end = a.failure(ctx, r, l, err)
	}
	// The terminal event is written whatever became of the run's context.
	if err := r.out.Append(context.WithoutCancel(ctx), end); err != nil {
		a.Logger.ErrorContext(ctx, "the terminal event could not be written", "run_id", r.ID, "error", err)
	}
	if failed, ok := end.(event.RunError); ok {
		span.SetStatus(codes.Error, failed.Code)
	}
	span.End()
	a.retire(r)
	a.metrics.ended(a.ctx, end, time.Since(started))
	a.Logger.InfoContext(ctx, "run ended", "run_id", r.ID, "outcome", string(end.Type()),
		"steps", l.step, "tool_calls", len(l.meta.ToolNames), "duration_ms", time.Since(started).Milliseconds())
}

func (a *Agent) retire(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.active, r.ID)
	if r.timer != nil {
		r.timer.Stop()
	}
	r.cancel(nil)
}

// panicError is a panic in a goroutine of a run. It ends that run and no other.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// recovered turns a panic into an error of the function that defers it.
func recovered(err *error) {
	if v := recover(); v != nil {
		*err = &panicError{v, debug.Stack()}
	}
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
	attrs := []slog.Attr{slog.String("run_id", r.ID), slog.String("error", err.Error())}
	var p *panicError
	if errors.As(err, &p) {
		attrs = append(attrs, slog.String("stack", string(p.stack)))
	}
	a.Logger.LogAttrs(ctx, slog.LevelError, "run failed", attrs...)
	return event.RunError{Code: "internal", Message: "The run failed inside the service.", PartialAnswer: partial}
}
