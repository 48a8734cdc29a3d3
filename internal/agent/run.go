package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"answerd/internal/agent/record"
	"answerd/internal/agent/replay"
	"answerd/internal/auth"
	"answerd/internal/event"
)

// errAbandoned cancels a run without readers. Its text becomes the reason in the event cancelled. runByKey recognizes
// an abandoned run by this reason, and lets its idempotency key start another run. So the text must not change.
var errAbandoned = errors.New("abandoned")

// errRequested cancels a run because of Cancel in this process, or because of an input in the log. Its text becomes
// the reason in the event cancelled.
var errRequested = errors.New("requested")

// errNoMemory ends a run that needs more memory than is left.
var errNoMemory = errors.New("no memory is left for the run")

// errShutdown ends the runs that a draining process could not hand over, because its log ends with it.
var errShutdown = errors.New("server_shutdown")

// Causes of the context of a run that is relinquished. Such a run gets no terminal event here:
// it continues from its log, in another process or in this one.
var (
	errParked     = errors.New("the run waits for a person")
	errHandedOver = errors.New("the run is handed over")
	errTakenOver  = errors.New("the run was taken over")
)

// newRun returns a run that is not executed yet: it is not registered in Agent.active and has no slot. parent must be
// derived from Agent.ctx and never from the context of a request, since a run outlives the connection that asked for
// it. A caller that does not execute the run must call its cancel, or its context leaks.
func (a *Agent) newRun(parent context.Context, rec event.Run, caller auth.Identity, req Request) *run {
	parent = record.WithRun(parent, record.Executing{Run: rec.ID, Parent: req.parent.Run, Call: req.parent.Call})
	ctx, cancel := context.WithCancelCause(parent)
	r := &run{Run: rec, caller: caller, req: req, ctx: ctx, cancel: cancel, out: event.NewWriter(a.Log, rec.ID), agent: a}
	r.textBytes.Store(int64(req.size()))
	r.out.Observe(r.threadTurn.Add)
	r.suspension.run = r
	r.inbox = newInbox(r)
	return r
}

// relinquish stops executing the run here; why is errParked, errHandedOver or errTakenOver. It seals the writer first,
// so that goroutines of the run that are still working cannot append events. When it returns, no append is in flight.
// The process that claims the job continues the run from its log. That may be this process again, with another run
// value.
func (r *run) relinquish(why error) {
	r.out.Seal()
	r.cancel(why)
}

// relinquished returns the cause with which the run was relinquished; nil if it was not.
func (r *run) relinquished() error {
	switch cause := context.Cause(r.ctx); cause {
	case errParked, errHandedOver, errTakenOver:
		return cause
	}
	return nil
}

// appendWhenResumed appends an event. It blocks while the run is suspended, because no event may follow the event
// suspended before a question is resolved or another question is asked.
func (r *run) appendWhenResumed(ctx context.Context, body event.Body) error {
	for {
		err := r.out.Append(ctx, body)
		if !errors.Is(err, event.ErrSuspended) {
			return err
		}
		select {
		case <-r.suspension.resumeSignal():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// memoryOf returns how many bytes of memory a run needs for a text of that many bytes.
func memoryOf(bytes int) int64 { return textCopies * int64(bytes) }

// textCopies is how many copies of a text a run holds at most, besides those of the log. An answer or a result is in
// the conversation, in the request to the model, and in the response. During its turn, a result exists as it was
// received, decoded, and in its event.
const textCopies = 3

// reserveMemory counts that many more bytes of text that the run holds, or fewer if bytes is negative. If not enough
// memory is left, it cancels the run with errNoMemory.
func (r *run) reserveMemory(bytes int) {
	r.textBytes.Add(int64(bytes))
	if !r.memory.Hold(memoryOf(bytes)) {
		r.cancel(errNoMemory)
	}
}

// appendStart appends the first event of the run.
func (r *run) appendStart(ctx context.Context) error {
	return r.out.Append(ctx, event.Start{
		Question: r.req.questionText(), Model: r.req.Model, ThreadID: r.ThreadID, TraceID: r.TraceID, Metadata: r.req.Metadata,
		UnavailableServers: r.agent.unavailableServers(r.caller, r.req, false), StructuredOutput: len(r.req.OutputSchema) > 0,
		Agent: r.Agent, ParentRunID: r.ParentID,
	})
}

// writeNote stores a note for a process that takes over the run: words, separated by spaces. The first of words is one
// of the constants of package replay. When writeNote returns nil, the note and all events before it are stored. It does
// nothing if no other process could continue the run.
func (r *run) writeNote(ctx context.Context, words ...any) error {
	if r.job == nil {
		return nil
	}
	text := strings.TrimSuffix(fmt.Sprintln(words...), "\n") // unlike Sprint, Sprintln separates texts too
	err := r.agent.Log.AddNote(ctx, r.ID, []byte(text))
	if err == nil {
		err = r.agent.Log.Flush(ctx, r.ID)
	}
	if err != nil {
		return fmt.Errorf("store a %s note: %w", words[0], err)
	}
	return nil
}

// writeParts stores data in as many notes as it needs (replay.Parts), each of which begins with words. It does nothing
// if no other process could continue the run.
func (r *run) writeParts(ctx context.Context, data []byte, words ...any) error {
	if r.job == nil {
		return nil
	}
	for _, part := range replay.Parts(data) {
		if err := r.writeNote(ctx, append(slices.Clone(words), part)...); err != nil {
			return err
		}
	}
	return nil
}

// appendWait is how long a log repeats an Append while its server does not answer.
const appendWait = 30 * time.Second

// awaitLog calls f until it returns another error than event.ErrUnavailable, for at most appendWait or until ctx ends,
// and returns the last error of f. The log itself repeats an Append for as long, but other requests only for some
// seconds. Without awaitLog, they would end a run whose events can still be appended.
func awaitLog(ctx context.Context, f func() error) error {
	deadline := time.Now().Add(appendWait)
	for {
		err := f()
		if !errors.Is(err, event.ErrUnavailable) || ctx.Err() != nil || !time.Now().Before(deadline) {
			return err
		}
		waitFor(ctx, 100*time.Millisecond)
	}
}

// waitFor returns after d, or when ctx ends.
func waitFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// contextUntilRelinquished returns a context that ends when the run is relinquished, or with stop. It does not end when
// the run is cancelled. It is for waits before events that close something, such as a call: these events are appended
// even if the run's context has ended, but not once the run is relinquished. The caller must call stop.
func (r *run) contextUntilRelinquished() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.ctx))
	stopAfterFunc := context.AfterFunc(r.ctx, func() {
		if r.relinquished() != nil {
			cancel()
		}
	})
	return ctx, func() { stopAfterFunc(); cancel() }
}

// awaitOrder blocks in a rerun until the recording has the event body next (recorded.Inputs.Order). For other runs it
// returns nil at once.
func (r *run) awaitOrder(ctx context.Context, body event.Body) error {
	if r.agent.Repeat == nil {
		return nil
	}
	untilRelinquished, stop := r.contextUntilRelinquished()
	defer stop()
	return r.agent.Repeat.Order(ctx, untilRelinquished, r.ID, body)
}

// AdvanceClock sets the time that a run has used, for a rerun whose clock is manual (recorded.Inputs.ManualClock). It
// does nothing if the run is not executed in this process.
func (a *Agent) AdvanceClock(run string, used time.Duration) {
	a.mu.Lock()
	r := a.active[run]
	a.mu.Unlock()
	if r != nil {
		r.clock.Advance(used)
		_ = r.suspension.recheck() // an error of the log ends the run at its next event
	}
}

// registerChild registers a child run as executed here, whether or not a slot is free: if children waited for slots,
// parents that hold all slots would wait for their children forever. It reports false if this process is handing over
// its runs. A process that is draining but not yet handing over accepts children, since their parents may still end
// here.
func (a *Agent) registerChild(r *run) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.handedOver {
		return false
	}
	slot := a.gate.AcquireOverLimit(r.caller.Key(), memoryOf(r.req.size()))
	r.slot = slot
	r.memory = slot.Memory
	a.active[r.ID] = r
	a.runs.Add(1)
	return true
}

// isActive reports whether this process executes a run.
func (a *Agent) isActive(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.active[id] != nil
}

// Cancel cancels a run, whichever process executes it. It does not wait for the terminal event, which usually follows
// within moments. A run that has ended stays unchanged, which is not an error.
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
	// The run may be executed by another process, or be taken over before its terminal event. Such a process
	// finds the cancellation in the log.
	err := a.Log.AddInput(ctx, id, event.CancelID, nil)
	if errors.Is(err, event.ErrDuplicateInput) || errors.Is(err, event.ErrEnded) {
		return nil
	}
	return err
}

// removeRun removes the run from those of this process, ends its context, releases its slot and wakes Drain. If
// concludeRun has released the slot already, releasing it again has no effect.
func (a *Agent) removeRun(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active[r.ID] == r {
		delete(a.active, r.ID)
	}
	if r.graceTimer != nil {
		r.graceTimer.Stop()
	}
	r.cancel(nil)
	r.slot.Release()
	a.signalIdle()
}

// ownerOf returns the owner of what the caller starts.
func ownerOf(caller auth.Identity) event.Owner {
	return event.Owner{Issuer: caller.Issuer, Subject: caller.Subject}
}

// abortError reports that a hook ended the run. Its reason is one line that the caller may read.
type abortError struct {
	reason   string
	withheld bool // the caller must not get the text of the step
}

func (e *abortError) Error() string { return withReason("a hook ended the run", e.reason) }

// withReason returns what as a sentence, or what followed by a colon and reason if reason is not "".
func withReason(what, reason string) string {
	if reason == "" {
		return what + "."
	}
	return what + ": " + reason
}

// recoverTo turns a panic into an error of the function that defers it.
func recoverTo(err *error) {
	if v := recover(); v != nil {
		*err = &panicError{v, debug.Stack()}
	}
}

// panicError reports a panic in a goroutine of a run. It ends only that run.
type panicError struct {
	value any    // of the panic
	stack []byte // of the goroutine that panicked; only the log shows it
}

// errorAttrs returns the attributes of an error for a log line, with the stack of a panic.
func errorAttrs(err error) []slog.Attr {
	attrs := []slog.Attr{slog.String("error", err.Error())}
	if p, ok := errors.AsType[*panicError](err); ok {
		attrs = append(attrs, slog.String("stack", string(p.stack)))
	}
	return attrs
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// catchPanic calls f and returns its error. A panic in f becomes an error too.
func catchPanic(f func() error) (err error) {
	defer recoverTo(&err)
	return f()
}

// runGuarded calls f, which works for the run in another goroutine than the run's own. A panic in f cancels this run
// with a *panicError. Every goroutine, timer and callback of a run must use runGuarded, catchPanic or recoverTo, since a
// panic that is not recovered ends the process with all its runs.
func (r *run) runGuarded(f func()) {
	if err := catchPanic(func() error { f(); return nil }); err != nil {
		r.cancel(err)
	}
}

// signalIdle makes Drain call isIdle again. It does not block.
func (a *Agent) signalIdle() {
	select {
	case a.idleSignal <- struct{}{}:
	default:
	}
}

// isIdle reports whether Drain need not wait: all runs here are suspended, and no direct call is in flight.
func (a *Agent) isIdle() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.active {
		if !r.suspension.isSuspended.Load() {
			return false
		}
	}
	return a.directCalls == 0
}

// StopAccepting makes the agent refuse new runs and direct calls from now on, with ErrDraining.
func (a *Agent) StopAccepting() {
	a.mu.Lock()
	a.draining = true
	a.mu.Unlock()
	a.gate.Close()
	a.stopAccept()
}

// Disconnect grace: a run without a reader for Options.DisconnectGrace is cancelled. Two kinds of runs are exempt:
// background runs, and runs that wait for a person. A person may be asked outside of the stream, and the time to answer
// limits the wait. The first reader of a new run has at least firstReaderGrace to connect. Agent.readers counts the
// readers of each run in this process. Before a timer cancels a run, it asks the log for readers in other processes.

// firstReaderGrace bounds from below the time from the start of a run, or from its takeover, to its first reader.
const firstReaderGrace = 10 * time.Second

// Reader prevents that a run is cancelled for lack of readers. It must be closed exactly once, with Close,
// CloseAndCancel or Detach.
type Reader struct {
	agent *Agent
	id    string
}

// OpenReader counts a reader of the run with that id, and ends the grace period of the run if this process executes
// it. Any process may execute the run. It has no effect on a run that has ended.
func (a *Agent) OpenReader(id string) *Reader {
	a.metrics.streams.Add(a.ctx, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.readers[id]++
	if r := a.active[id]; r != nil {
		r.stopGraceLocked()
	}
	return &Reader{agent: a, id: id}
}

// Close ends the reader. If it was the last one, the grace period starts.
func (w *Reader) Close() { w.closeAfter(w.agent.DisconnectGrace) }

// CloseAndCancel ends a reader that cannot reconnect for the answer. If it was the last one, the
// run is cancelled at once.
func (w *Reader) CloseAndCancel() { w.closeAfter(0) }

// closeAfter counts the reader as gone. If this process executes the run and has no other reader of it open, a grace
// period of that length starts.
func (w *Reader) closeAfter(grace time.Duration) {
	a := w.agent
	a.metrics.streams.Add(a.ctx, -1)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.readers[w.id]--
	if a.readers[w.id] == 0 {
		delete(a.readers, w.id)
	}
	if r := a.active[w.id]; r != nil {
		r.startGraceLocked(grace)
	}
}

// Detach ends the reader of a caller who was asked to fetch the answer later. From now on the
// run needs no reader, like a background run.
func (w *Reader) Detach() {
	w.agent.mu.Lock()
	if r := w.agent.active[w.id]; r != nil {
		r.Background = true
	}
	w.agent.mu.Unlock()
	w.Close()
}

// startGraceLocked starts a grace period, after which the run is cancelled for lack of readers. It does nothing if the
// run needs no reader, has a reader in this process, waits for a person, or is in a grace period already. The caller
// holds the agent's mutex.
func (r *run) startGraceLocked(grace time.Duration) {
	if r.Background || r.graceTimer != nil || r.agent.readers[r.ID] > 0 || r.suspension.openCount.Load() > 0 {
		return
	}
	r.gracePeriods++
	period := r.gracePeriods
	r.graceTimer = time.AfterFunc(grace, func() { r.runGuarded(func() { r.agent.cancelUnread(r, period) }) })
}

// isInGraceLocked reports whether the run is still in the grace period with that number. The caller holds the agent's
// mutex.
func (r *run) isInGraceLocked(period int) bool {
	return r.agent.active[r.ID] == r && r.graceTimer != nil && r.gracePeriods == period
}

// stopGraceLocked ends the grace period of the run, if it is in one. If the timer has fired already, cancelUnread
// finds that this period is over. The caller holds the agent's mutex.
func (r *run) stopGraceLocked() {
	if r.graceTimer != nil {
		r.graceTimer.Stop()
		r.graceTimer = nil
	}
}

// awaitReader starts a grace period, of at least firstReaderGrace, for a run that has begun, that was taken over, or
// whose last open question was resolved. It does nothing if the run is not executed here any more.
func (a *Agent) awaitReader(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active[r.ID] == r {
		r.startGraceLocked(max(a.DisconnectGrace, firstReaderGrace))
	}
}

// holdGrace ends the grace period of a run that waits for a person. Until the person has answered, the expiry of the
// question limits the wait instead.
func (a *Agent) holdGrace(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.stopGraceLocked()
}

// cancelUnread cancels a run at the end of the grace period with that number, unless that period was ended before. If
// the log is durable, it first asks the log whether another process has a reader of the run, which may take seconds;
// in that case it starts another grace period.
func (a *Agent) cancelUnread(r *run, period int) {
	a.mu.Lock()
	if !r.isInGraceLocked(period) {
		a.mu.Unlock()
		return
	}
	a.runs.Add(1) // Drain waits for this goroutine too
	a.mu.Unlock()
	defer a.runs.Done()
	readElsewhere := a.Durable && a.Log.HasRemoteReader(r.ctx, r.ID)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !r.isInGraceLocked(period) {
		return // while the log was asked, the run has ended, or a reader was opened and perhaps closed again
	}
	r.graceTimer = nil
	if readElsewhere {
		r.startGraceLocked(max(a.DisconnectGrace, time.Second))
		return
	}
	r.cancel(errAbandoned)
}
