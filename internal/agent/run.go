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

// errAbandoned cancels a run that has had no reader for too long. Its text becomes the reason in the cancelled event.
// runByKey recognizes an abandoned run by that reason, and lets the idempotency key start another run. So the text must
// not change.
var errAbandoned = errors.New("abandoned")

// errRequested cancels a run after a call of Cancel in this process, or after a cancellation stored in the log. Its
// text becomes the reason in the cancelled event.
var errRequested = errors.New("requested")

// errNoMemory ends a run that needs more memory than is left.
var errNoMemory = errors.New("no memory is left for the run")

// errShutdown ends the runs of a draining process whose log is not durable, since no other process can continue them.
var errShutdown = errors.New("server_shutdown")

// Causes of the context of a run that this process has relinquished. The process appends no terminal event for it: the
// run continues from its log, in another process or in this one.
var (
	errParked     = errors.New("the run waits for a person")
	errHandedOver = errors.New("the run is handed over")
	errTakenOver  = errors.New("the run was taken over")
)

// newRun returns a run that is not executed yet: it is not in Agent.active and has no slot. parent must be derived from
// Agent.ctx and never from an HTTP request's context, since a run outlives the connection that started it. If the
// caller of newRun does not execute the run, it must call run.cancel, or the context leaks.
func (a *Agent) newRun(parent context.Context, rec event.Run, caller auth.Identity, req Request) *run {
	executing := record.Executing{Run: rec.ID, Parent: req.parent.Run, Call: req.parent.Call}
	ctx, cancel := context.WithCancelCause(record.WithRun(parent, executing))
	r := &run{Run: rec, caller: caller, req: req, ctx: ctx, cancel: cancel, out: event.NewWriter(a.Log, rec.ID), agent: a}
	r.textBytes.Store(int64(req.size()))
	r.out.Observe(r.threadTurn.Add)
	r.suspension = suspension{run: r, awaitedChildren: make(map[string]bool), awaitingCharge: make(map[string]bool)}
	r.inbox = newInbox(r)
	return r
}

// relinquish stops executing the run in this process. why is errParked, errHandedOver or errTakenOver. relinquish seals
// the writer first, so that goroutines that still work for the run cannot append events; when it returns, no append is
// in flight. The process that claims the job continues the run from its log. That may be this process again, with a new
// run value.
func (r *run) relinquish(why error) {
	r.out.Seal()
	r.cancel(why)
}

// relinquished returns why the run was relinquished, or nil if it was not.
func (r *run) relinquished() error {
	switch cause := context.Cause(r.ctx); cause {
	case errParked, errHandedOver, errTakenOver:
		return cause
	}
	return nil
}

// appendWhenResumed appends an event, and blocks while the run is suspended: after a suspended event, only the answer
// to a question or another question may follow. It returns the cause of ctx if ctx ends first. Otherwise the error
// comes from the log.
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

// memoryOf returns how many bytes of memory a run needs for a text of the given size.
func memoryOf(bytes int) int64 { return textCopies * int64(bytes) }

// textCopies is how many copies of a text a run holds at most, besides those in the log. An answer or a result is in
// the conversation, in the request to the model, and in the response. While its turn lasts, a result exists as
// received, as decoded, and in its event.
const textCopies = 3

// reserveMemory adds bytes, which may be negative, to the size of the texts that the run holds. If not enough memory is
// left, it cancels the run with errNoMemory.
func (r *run) reserveMemory(bytes int) {
	r.textBytes.Add(int64(bytes))
	if !r.memory.Hold(memoryOf(bytes)) {
		r.cancel(errNoMemory)
	}
}

// appendStart appends the first event of the run. An error comes from the log.
func (r *run) appendStart(ctx context.Context) error {
	return r.out.Append(ctx, event.Start{
		Question: r.req.questionText(), Model: r.req.Model, ThreadID: r.ThreadID, TraceID: r.TraceID, Metadata: r.req.Metadata,
		UnavailableServers: r.agent.unavailableServers(r.caller, r.req, beforeToolsFor), StructuredOutput: len(r.req.OutputSchema) > 0,
		Agent: r.Agent, ParentRunID: r.ParentID,
	})
}

// writeNote stores a note for a process that takes over the run. The note consists of words, separated by spaces; the
// first word is one of the Note constants of package replay. When writeNote returns nil, the log has stored the note
// and all events before it. It does nothing if no other process can continue the run.
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

// writeParts stores data in as many notes as it needs (replay.Parts). Each note begins with words. It does nothing if
// no other process can continue the run.
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

const (
	appendWait = 30 * time.Second       // how long a log repeats an Append while the log's server does not answer
	logRetry   = 100 * time.Millisecond // how long awaitLog waits before it repeats a request
)

// awaitLog calls request, which uses the log, and repeats it while it returns event.ErrUnavailable, for at most
// appendWait or until ctx ends. It returns the result of the last call. The log repeats an Append for just as long by
// itself, but gives up other requests after some seconds. Without awaitLog, such a request would end a run whose events
// can still be appended.
func awaitLog(ctx context.Context, request func() error) error {
	deadline := time.Now().Add(appendWait)
	for {
		err := request()
		isOver := ctx.Err() != nil || !time.Now().Before(deadline)
		if isOver || !errors.Is(err, event.ErrUnavailable) {
			return err
		}
		waitFor(ctx, logRetry)
	}
}

// waitFor blocks for d, or until ctx ends.
func waitFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// contextUntilRelinquished returns a context that ends when the run is relinquished or stop is called, but not when the
// run is cancelled. It is for waits before an event that closes something, such as a call: such events are appended
// even after the run's context has ended, but not after the run was relinquished. The caller must call stop.
func (r *run) contextUntilRelinquished() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.ctx))
	stopAfterFunc := context.AfterFunc(r.ctx, func() {
		if r.relinquished() != nil {
			cancel()
		}
	})
	return ctx, func() { stopAfterFunc(); cancel() }
}

// awaitOrder blocks a rerun until body is the next event of the recording (recorded.Inputs.Order). For other runs it
// returns nil at once.
func (r *run) awaitOrder(ctx context.Context, body event.Body) error {
	if r.agent.Repeat == nil {
		return nil
	}
	untilRelinquished, stop := r.contextUntilRelinquished()
	defer stop()
	return r.agent.Repeat.Order(ctx, untilRelinquished, r.ID, body)
}

// AdvanceClock sets how much time a run has used, in a rerun with a manual clock (recorded.Inputs.ManualClock). It does
// nothing if this process does not execute the run.
func (a *Agent) AdvanceClock(run string, used time.Duration) {
	if r := a.activeRun(run); r != nil {
		r.clock.Advance(used)
		_ = r.suspension.suspendAsRecorded() // an error of the log ends the run at its next event
	}
}

// registerChild registers a child run in Agent.active even if no slot is free: if children had to wait for slots,
// parents that hold all slots would wait for their children forever. It returns false, without registering r, if this
// process is handing over its runs. A process that is draining but not yet handing over accepts children, since their
// parents may still end here.
func (a *Agent) registerChild(r *run) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.handedOver {
		return false
	}
	r.registerOverLimitLocked()
	a.runs.Add(1)
	return true
}

// registerOverLimitLocked gives the run a slot even if none is free, and registers it in Agent.active. The caller must
// hold Agent.mu.
func (r *run) registerOverLimitLocked() {
	r.slot = r.agent.gate.AcquireOverLimit(r.caller.Key(), memoryOf(r.req.size()))
	r.memory = r.slot.Memory
	r.agent.active[r.ID] = r
}

// activeRun returns the run with this id, or nil if this process does not execute it.
func (a *Agent) activeRun(id string) *run {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.active[id]
}

// Cancel cancels a run, whichever process executes it. It does not wait for the terminal event, which usually follows
// within moments. Cancelling a run that has ended changes nothing and is not an error.
func (a *Agent) Cancel(ctx context.Context, id string) error {
	if r := a.activeRun(id); r != nil {
		r.cancel(errRequested)
		if !a.Durable {
			return nil
		}
	}
	// Another process may execute the run, or may take it over before its terminal event. That process finds the
	// cancellation in the log.
	err := a.Log.AddInput(ctx, id, event.CancelID, nil)
	if errors.Is(err, event.ErrDuplicateInput) || errors.Is(err, event.ErrEnded) {
		return nil
	}
	return err
}

// removeRun removes the run from Agent.active, stops its grace timer, ends its context, releases its slot and wakes
// Drain. endRun may have released the slot already; a second release has no effect.
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

// ownerOf returns the owner of runs and threads that caller starts.
func ownerOf(caller auth.Identity) event.Owner {
	return event.Owner{Issuer: caller.Issuer, Subject: caller.Subject}
}

// abortError reports that a hook ended the run. Its reason is one line of text that the API client may read.
type abortError struct {
	reason   string
	withheld bool // the API client must not get the step's text
}

func (e *abortError) Error() string { return withReason("a hook ended the run", e.reason) }

// withReason returns "statement: reason", or the statement as a sentence if reason is "".
func withReason(statement, reason string) string {
	if reason == "" {
		return statement + "."
	}
	return statement + ": " + reason
}

// recoverTo recovers from a panic and stores it in *err. Use it with defer.
func recoverTo(err *error) {
	if v := recover(); v != nil {
		*err = &panicError{v, debug.Stack()}
	}
}

// panicError reports a panic in one of a run's goroutines. It ends only that run.
type panicError struct {
	value any    // what was passed to panic
	stack []byte // of the goroutine that panicked; only written to the process's log
}

// errorAttrs returns the attributes for logging err, including the stack if err is a panic.
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

// runGuarded calls f, which works for the run outside of the run's own goroutine. If f panics, it cancels the run with
// a *panicError. Every goroutine, timer and callback of a run must use runGuarded, catchPanic or recoverTo, since an
// unrecovered panic ends the process with all its runs.
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

// isIdle reports whether Drain may stop waiting: all runs here are suspended, and no direct call is in flight.
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
	a.stopAccept()
	a.mu.Unlock()
	a.gate.Close()
}

// Disconnect grace: a run that has had no reader for Options.DisconnectGrace is cancelled. Two kinds of runs are
// exempt. Background runs need no reader. Runs that wait for a person are limited by the time to answer, and that
// person may be asked outside of the stream. The first reader of a new run has at least firstReaderGrace to connect.
// Agent.readers counts each run's readers in this process. Before a timer cancels a run, it asks the log for readers in
// other processes.

// firstReaderGrace is the shortest grace period for the first reader after a run has started or was taken over.
const firstReaderGrace = 10 * time.Second

// Reader keeps a run from being cancelled for lack of readers. It must be closed exactly once, with Close,
// CloseAndCancel or Detach.
type Reader struct {
	agent *Agent
	id    string
}

// OpenReader counts a reader of the run with this id. If this process executes the run, OpenReader also ends the run's
// grace period. Another process that executes the run learns of the reader from the log (HasRemoteReader). The run may
// have ended.
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

// CloseAndCancel closes the reader of a client that cannot come back for the answer. If it was the last reader, the run
// is cancelled at once.
func (w *Reader) CloseAndCancel() { w.closeAfter(0) }

// closeAfter counts the reader as gone. If this process executes the run and has no other reader for it, a grace period
// of length grace starts.
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

// Detach closes the reader of a client that was asked to fetch the answer later. From then on, the run needs no reader,
// like a background run. Detach does that only if this process executes the run.
func (w *Reader) Detach() {
	w.agent.mu.Lock()
	if r := w.agent.active[w.id]; r != nil {
		r.Background = true
	}
	w.agent.mu.Unlock()
	w.Close()
}

// startGraceLocked starts a grace period, after which the run is cancelled for lack of readers. It does nothing if the
// run needs no reader, has a reader in this process, waits for a person, or already is in a grace period. The caller
// must hold Agent.mu.
func (r *run) startGraceLocked(grace time.Duration) {
	hasReader := r.agent.readers[r.ID] > 0
	waitsForPerson := r.suspension.openCount.Load() > 0
	if r.Background || hasReader || waitsForPerson || r.graceTimer != nil {
		return
	}
	r.gracePeriods++
	period := r.gracePeriods
	r.graceTimer = time.AfterFunc(grace, func() { r.runGuarded(func() { r.agent.cancelUnread(r, period) }) })
}

// isInGraceLocked reports whether the run is still registered and in the grace period numbered period. The caller must
// hold Agent.mu.
func (r *run) isInGraceLocked(period int) bool {
	return r.agent.active[r.ID] == r && r.graceTimer != nil && r.gracePeriods == period
}

// stopGraceLocked ends the run's grace period, if any. If the timer has fired already, cancelUnread notices that its
// period is over. The caller must hold Agent.mu.
func (r *run) stopGraceLocked() {
	if r.graceTimer != nil {
		r.graceTimer.Stop()
		r.graceTimer = nil
	}
}

// awaitReader starts a grace period of at least firstReaderGrace. It is called when a run has begun, was taken over, or
// stops waiting for a person. It does nothing if this process no longer executes the run.
func (a *Agent) awaitReader(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active[r.ID] == r {
		r.startGraceLocked(max(a.DisconnectGrace, firstReaderGrace))
	}
}

// stopGrace ends the grace period of a run that waits for a person. Until the person answers, only the question's
// expiry limits the wait.
func (a *Agent) stopGrace(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.stopGraceLocked()
}

// cancelUnread cancels a run at the end of the grace period numbered period, unless that period ended early. If the log
// is durable, cancelUnread first asks the log, which may take seconds, whether another process has a reader for the
// run. If so, it starts another grace period instead.
func (a *Agent) cancelUnread(r *run, period int) {
	a.mu.Lock()
	if !r.isInGraceLocked(period) {
		a.mu.Unlock()
		return
	}
	a.runs.Add(1) // Drain waits for this goroutine too
	a.mu.Unlock()
	defer a.runs.Done()
	hasRemoteReader := a.Durable && a.Log.HasRemoteReader(r.ctx, r.ID)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !r.isInGraceLocked(period) {
		return // while the log was asked, the run ended, or a reader was opened and perhaps closed again
	}
	r.graceTimer = nil
	if hasRemoteReader {
		r.startGraceLocked(max(a.DisconnectGrace, time.Second)) // not at once, so that the log is not asked all the time
		return
	}
	r.cancel(errAbandoned)
}
