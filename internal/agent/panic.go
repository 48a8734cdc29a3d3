package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"answerd/internal/event"
)

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

// faultOf is what a log line says of an error, with the stack where it was a panic.
func faultOf(err error) []slog.Attr {
	attrs := []slog.Attr{slog.String("error", err.Error())}
	if p, ok := errors.AsType[*panicError](err); ok {
		attrs = append(attrs, slog.String("stack", string(p.stack)))
	}
	return attrs
}

// guard calls f, which works for the run on a goroutine that is not the run's own. A
// panic in f ends the run.
func (r *run) guard(f func()) {
	var err error
	func() {
		defer recovered(&err)
		f()
	}()
	if err != nil {
		r.cancel(err)
	}
}

// contain is the end of a run whose own end panicked, for execute to defer: still with
// a terminal event, however that is to be had.
func (a *Agent) contain(r *run) {
	v := recover()
	if v == nil {
		return
	}
	a.Logger.Error("run failed", "run_id", r.ID, "error", fmt.Sprintf("panic: %v", v), "stack", string(debug.Stack()))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), departTime)
	defer cancel()
	if err := a.lastWord(ctx, r); err != nil {
		a.Logger.Error("the terminal event could not be written", "run_id", r.ID, "error", err)
	}
	r.inbox.close()
	a.retire(r)
	a.metrics.active.Add(a.ctx, -1)
}

func (a *Agent) lastWord(ctx context.Context, r *run) (err error) {
	defer recovered(&err)
	if run, err := a.Log.Run(ctx, r.ID); err == nil && run.Last.Terminal() {
		return nil
	}
	end := event.RunError{Code: "internal", Message: failedInside}
	err = func() (err error) {
		defer recovered(&err)
		return a.finish(ctx, r, end, errors.New("its end panicked"))
	}()
	if err != nil { // even where what writes events in order is what is broken
		_, err = a.Log.Append(ctx, r.ID, end)
	}
	return err
}

// failedInside is all that a caller is told of a fault of ours.
const failedInside = "The run failed inside the service."
