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

// errAbandoned cancels a run without readers. Its text becomes the reason in the event cancelled, which runByKey
// compares to let the idempotency key of such a run start another one. So the text must not change.
var errAbandoned = errors.New("abandoned")

// errRequested cancels a run because somebody asked for it, in this process or through an input in the log. Its
// text becomes the reason in the event cancelled.
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

// newRun returns a run that nobody executes yet: it is not registered in Agent.active and has no slot. parent is
// within Agent.ctx and never within the context of a request, since a run outlives the connection that asked for
// it. Whoever does not execute the run must call its cancel, or its context leaks.
func (a *Agent) newRun(parent context.Context, rec event.Run, caller auth.Identity, r Request) *run {
	parent = record.WithRun(parent, record.Executing{Run: rec.ID, Parent: r.parent.Run, Call: r.parent.Call})
	ctx, cancel := context.WithCancelCause(parent)
	run := &run{Run: rec, caller: caller, req: r, ctx: ctx, cancel: cancel, out: event.NewWriter(a.Log, rec.ID), agent: a}
	run.textBytes.Store(int64(run.req.size()))
	run.out.Observe(run.threadTurn.Add)
	run.suspension.run, run.inbox = run, newInbox(run)
	return run
}

// relinquish stops executing the run here. It seals the writer first, so that no goroutine that
// is still working can append an event. When it returns, no append is in flight, and what was appended is what
// the next process finds. Whatever process claims the job continues the run; it may be this
// one again, with a new value of run.
func (r *run) relinquish(why error) {
	r.out.Seal()
	r.cancel(why)
}

// relinquished returns why this process stopped executing the run, or nil.
func (r *run) relinquished() error {
	switch cause := context.Cause(r.ctx); cause {
	case errParked, errHandedOver, errTakenOver:
		return cause
	}
	return nil
}

// appendWhenResumed appends an event. While the run is suspended it waits, because no event may
// follow suspended until a person has answered.
func (r *run) appendWhenResumed(ctx context.Context, b event.Body) error {
	for {
		err := r.out.Append(ctx, b)
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

// memoryOf returns how much memory a run needs for n bytes of text.
func memoryOf(n int) int64 { return textCopies * int64(n) }

// textCopies is how many times a run holds a text at most, besides the log's own copies: an answer
// or a result in the conversation, in the request to the model, and in the response; and a result,
// until its turn has ended, as it was received, decoded, and in its event.
const textCopies = 3

// reserveMemory counts n more bytes of text that the run holds, or fewer if n is negative. If not enough
// memory is left, the run ends.
func (r *run) reserveMemory(n int) {
	r.textBytes.Add(int64(n))
	if !r.memory.Hold(memoryOf(n)) {
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

// writeNote stores a note for a process that takes over the run. It does nothing if no other
// process could continue the run.
func (r *run) writeNote(ctx context.Context, words ...any) error {
	if r.job == nil {
		return nil
	}
	text := strings.TrimSuffix(fmt.Sprintln(words...), "\n")
	err := r.agent.Log.AddNote(ctx, r.ID, []byte(text))
	if err == nil {
		err = r.agent.Log.Flush(ctx, r.ID)
	}
	if err != nil {
		return fmt.Errorf("store a %s note: %w", words[0], err)
	}
	return nil
}

// writeParts writes data as notes that begin with words. It does nothing if no other process could
// continue the run.
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

// appendWait is how long a log repeats an Append while it does not answer.
const appendWait = 30 * time.Second

// awaitLog repeats f while the log does not answer, for as long as the log itself repeats an Append, until ctx ends. So
// a request that the log answers only for some seconds does not end a run whose events can still be appended.
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

// keptContext returns a context that ends when another process continues the run, or with stop. It is for waits
// before events that close something: these are appended even if the run's context has ended, but not by a
// process that has given the run up.
func (r *run) keptContext() (kept context.Context, stop func()) {
	kept, cancel := context.WithCancel(context.WithoutCancel(r.ctx))
	unhook := context.AfterFunc(r.ctx, func() {
		if r.relinquished() != nil {
			cancel()
		}
	})
	return kept, func() { unhook(); cancel() }
}

// awaitOrder waits for the turn of an event, if the run repeats a recorded one.
func (r *run) awaitOrder(ctx context.Context, b event.Body) error {
	if r.agent.Repeat == nil {
		return nil
	}
	kept, stop := r.keptContext()
	defer stop()
	return r.agent.Repeat.Order(ctx, kept, r.ID, b)
}

// AdvanceClock lets the time of a run that is executed here reach used (recorded.Inputs).
func (a *Agent) AdvanceClock(run string, used time.Duration) {
	a.mu.Lock()
	r := a.active[run]
	a.mu.Unlock()
	if r != nil {
		r.clock.Advance(used)
		_ = r.suspension.recheck() // an error of the log ends the run at its next event
	}
}

// registerChild registers a run that needs no free slot, because its parent has one and waits. If children
// waited for slots, parents that hold all of them would wait for their children forever. It reports
// false if this process is handing over its runs. A draining process accepts children, since a run that may
// still end here could not end without them.
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

// Cancel ends a run in any process. The terminal event usually follows within moments. A run
// that has ended stays unchanged.
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
	// Another process may take over the run before its terminal event, so the cancellation must
	// be in the log.
	err := a.Log.AddInput(ctx, id, event.CancelID, nil)
	if errors.Is(err, event.ErrDuplicateInput) || errors.Is(err, event.ErrEnded) {
		return nil
	}
	return err
}

// removeRun removes the run from those of this process, ends its context and releases its slot. It releases the
// slot a second time after concludeRun, which has no effect.
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
	reason string
	// withheld reports that the caller must not get the text of the step.
	withheld bool
}

func (e *abortError) Error() string { return withReason("a hook ended the run", e.reason) }

// withReason returns what, followed by the reason if there is one.
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

// runGuarded calls f, which works for the run in another goroutine than the run's own. A panic
// in f ends only this run. Every goroutine, timer and callback of a run needs it or recoverTo, since a panic
// that nobody recovers ends the process with all its runs.
func (r *run) runGuarded(f func()) {
	var err error
	func() {
		defer recoverTo(&err)
		f()
	}()
	if err != nil {
		r.cancel(err)
	}
}

// signalIdle makes Drain check again, since fewer runs may be active.
func (a *Agent) signalIdle() {
	select {
	case a.idleSignal <- struct{}{}:
	default:
	}
}

// isIdle reports whether all active runs are suspended and no direct call is in flight.
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

// StopAccepting refuses new runs and direct calls from now on.
func (a *Agent) StopAccepting() {
	a.mu.Lock()
	a.draining = true
	a.mu.Unlock()
	a.gate.Close()
	a.stopAccept()
}

// Disconnect grace: a run without a reader for Options.DisconnectGrace is cancelled. Two kinds
// of runs are exempt: background runs, and runs that wait for a person. A person may be asked
// outside of the stream, and the time to answer limits the wait. The first reader of a new run
// has at least firstReaderGrace to connect. Agent.readers counts the readers of each run in this
// process. Before a timer cancels a run, it asks the log for readers in other processes.

// firstReaderGrace bounds from below the time from the start of a run, or from its takeover, to
// its first reader.
const firstReaderGrace = 10 * time.Second

// Reader prevents that a run is cancelled for lack of readers. It must be closed once, with one
// of its methods.
type Reader struct {
	agent *Agent
	id    string
}

// OpenReader counts a reader of the run with that id; any process may execute the run. For a run
// that has ended it has no effect.
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

// closeAfter counts the reader as gone. The grace period starts only if no other reader is open in this process.
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

// startGraceLocked starts the timer that cancels the run, unless the run needs no reader, has
// one, or waits for a person.
func (r *run) startGraceLocked(grace time.Duration) {
	if r.Background || r.graceTimer != nil || r.agent.readers[r.ID] > 0 || r.suspension.openCount.Load() > 0 {
		return
	}
	r.gracePeriods++
	period := r.gracePeriods
	r.graceTimer = time.AfterFunc(grace, func() { r.runGuarded(func() { r.agent.cancelUnread(r, period) }) })
}

// isInGraceLocked reports whether the run is still in its nth grace period, from 1.
func (r *run) isInGraceLocked(period int) bool {
	return r.agent.active[r.ID] == r && r.graceTimer != nil && r.gracePeriods == period
}

// stopGraceLocked ends the grace period. Its timer may have fired already: cancelUnread then finds that this
// period is over.
func (r *run) stopGraceLocked() {
	if r.graceTimer != nil {
		r.graceTimer.Stop()
		r.graceTimer = nil
	}
}

// awaitReader starts the grace period of a run that starts or continues in this process. The
// client whose request caused that is about to read the run.
func (a *Agent) awaitReader(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active[r.ID] == r {
		r.startGraceLocked(max(a.DisconnectGrace, firstReaderGrace))
	}
}

// holdGrace stops the grace period of a run that waits for a person. The time to answer limits
// the wait instead.
func (a *Agent) holdGrace(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.stopGraceLocked()
}

// cancelUnread cancels a run at the end of its nth grace period. With a shared log, another process
// may have readers of the run; in that case the grace period starts again.
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
		return // the run ended or got a reader while the log was asked; the reader may have left since
	}
	r.graceTimer = nil
	if readElsewhere {
		r.startGraceLocked(max(a.DisconnectGrace, time.Second))
		return
	}
	r.cancel(errAbandoned)
}
