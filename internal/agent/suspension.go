package agent

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"answerd/internal/event"
)

// maxElicitations bounds the questions of servers that may be open in a run. Each has up to 72
// KiB, and every suspended event contains all of them. Approvals are bounded by the calls of a
// turn.
const maxElicitations = 16

// suspension tracks the open interrupts of a run and the calls of its turn that are in flight.
// If every call in flight waits for a person, or for an earlier call that does, the run cannot
// proceed without an answer: it is suspended. It then appends the event suspended, and its clock
// is paused. If another process can continue the run, its job is parked, and this process stops
// executing it.
//
// Order of calls: a call whose charge depends on earlier calls of its turn blocks in waitTurn
// until releaseTurn. Meanwhile it counts as waiting. Otherwise a run whose first call waits for
// a person would never be suspended.
//
// Order of locks: mu comes before the mutex of the writer and before that of the agent, since events are
// appended and the grace period is changed while mu is held. So code that holds the agent's mutex reads only
// openCount and isSuspended.
type suspension struct {
	run *run

	openCount   atomic.Int32 // number of open interrupts, for callers that must not wait for mu
	isSuspended atomic.Bool  // likewise

	// mu guards the fields below. It is held while the events of questions, answers and
	// suspensions are appended, so that their order in the log matches the order of the state
	// changes.
	mu              sync.Mutex
	turnCtx         context.Context // the context of the calls
	inFlight        map[string]bool // by call id; true for a call that is blocked on an earlier one
	open            []*interrupt    // in the order in which they were asked
	resumed         chan struct{}   // closed when the run continues; nil unless it is suspended
	awaitedChildren map[string]bool // the child runs of calls in flight
	awaitingCharge  map[string]bool // the calls that wait in recorded.Inputs.Charge
}

// beginTurn marks the calls of a turn as in flight. It must precede all of them: otherwise the
// first call that asks would suspend a run whose other calls have not started yet.
func (s *suspension) beginTurn(turn context.Context, calls []*call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turnCtx, s.inFlight = turn, make(map[string]bool, len(calls))
	for _, c := range calls {
		s.inFlight[c.CallID] = false
	}
}

// endCall removes a call that has ended. All remaining calls may be waiting, which suspends the
// run.
func (s *suspension) endCall(callID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.inFlight, callID)
	return s.suspendIfBlockedLocked()
}

// waitTurn blocks a call until releaseTurn closes changed, which means that an earlier call of
// its turn was decided. It returns ctx's cause, or the error of the log.
func (s *suspension) waitTurn(ctx context.Context, callID string, changed <-chan struct{}) error {
	s.mu.Lock()
	var err error
	select {
	case <-changed:
	default:
		s.inFlight[callID] = true
		err = s.suspendIfBlockedLocked()
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// recheck suspends the run if it is due. Only the runs that repeat a recorded one need it: the recording may
// have the event only after one that changes nothing here.
func (s *suspension) recheck() error {
	if s.run.agent.Repeat == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.suspendIfBlockedLocked()
}

// setAwaitsCharge records whether a call waits in recorded.Inputs.Charge.
func (s *suspension) setAwaitsCharge(callID string, waits bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.awaitingCharge == nil {
		s.awaitingCharge = make(map[string]bool)
	}
	delete(s.awaitingCharge, callID)
	if waits {
		s.awaitingCharge[callID] = true
		return s.suspendIfBlockedLocked()
	}
	return nil
}

// releaseTurn closes changed, which wakes the calls in waitTurn. In the same critical section it
// marks all calls as not blocked. A call that is about to continue must not count as waiting,
// because the run would be suspended while it continues.
func (s *suspension) releaseTurn(changed chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.inFlight {
		s.inFlight[id] = false
	}
	close(changed)
}

// openInterrupts asks the owner of the run: it appends the questions that are not in the log yet, and
// counts all as open. Nil ones are left out, and so are elicitations beyond maxElicitations, which
// stay unasked. The error is the log's.
func (s *suspension) openInterrupts(ctx context.Context, all []*interrupt) error {
	if s.run.agent.Repeat == nil {
		return s.openTogether(ctx, all)
	}
	for _, i := range all { // the recording says when the run is suspended
		if i == nil {
			continue
		}
		if !i.isAsked {
			if err := s.run.awaitOrder(ctx, i.Body()); err != nil {
				return err
			}
		}
		if err := s.openTogether(ctx, []*interrupt{i}); err != nil {
			return err
		}
	}
	return nil
}

// openTogether is openInterrupts for a run that does not repeat a recording: it opens all questions before the run
// may be suspended, so that the run is suspended once for all of them.
func (s *suspension) openTogether(ctx context.Context, all []*interrupt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	elicitations := 0
	for _, open := range s.open {
		if open.Kind == event.KindElicitation {
			elicitations++
		}
	}
	for _, i := range all {
		if i == nil {
			continue
		}
		if i.Kind == event.KindElicitation {
			if elicitations == maxElicitations {
				continue
			}
			elicitations++
		}
		s.addOpenLocked(i)
		if i.isAsked {
			continue
		}
		// The turn may have ended. Then the question is withdrawn at once, which is not an
		// error.
		if err := s.run.out.Append(context.WithoutCancel(ctx), i.Body()); err != nil {
			s.removeOpenLocked(i)
			return err
		}
		i.isAsked = true
		s.resumeLocked()
	}
	return s.suspendIfBlockedLocked()
}

// recordUnanswered appends a question together with its resolution, since no person can answer
// it. So readers learn why a call was refused. Events of parallel calls may come in between, but the run is not
// suspended there, because the call that asks does not wait.
func (s *suspension) recordUnanswered(ctx context.Context, i *interrupt, res resolution) error {
	resolved := i.resolvedEvent(res)
	if err := s.run.awaitOrder(ctx, i.Body()); err != nil {
		return err
	}
	if err := s.appendAndResume(context.WithoutCancel(ctx), i.Body()); err != nil {
		return err
	}
	if err := s.run.awaitOrder(ctx, resolved); err != nil {
		return err
	}
	return s.run.out.Append(context.WithoutCancel(ctx), resolved)
}

// appendAndResume appends an event that ends a suspension.
func (s *suspension) appendAndResume(ctx context.Context, body event.Body) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.run.out.Append(ctx, body); err != nil {
		return err
	}
	s.resumeLocked()
	return nil
}

// resolveInterrupt appends the resolution of a question and lets the run continue. It does so
// even if ctx has ended, because every question must be closed. If the log refuses the event,
// the question stays open: the run may have been parked at this moment, and must get the answer
// when it continues.
func (s *suspension) resolveInterrupt(ctx context.Context, i *interrupt, v resolution) error {
	err := s.run.awaitOrder(ctx, i.resolvedEvent(v))
	if err == nil {
		err = s.appendResolution(ctx, i, v)
	}
	if err == nil {
		s.run.agent.wakeParent(s.run, i.ID) // which may ask the same question
	}
	return err
}

// appendResolution appends the resolution, counts the question as closed and ends the suspension, as one step
// under mu. If other questions still block all calls, the run is suspended again at once, with an event that has
// only those.
func (s *suspension) appendResolution(ctx context.Context, i *interrupt, v resolution) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.run.out.Append(context.WithoutCancel(ctx), i.resolvedEvent(v)); err != nil {
		return err
	}
	s.removeOpenLocked(i)
	s.resumeLocked()
	return s.suspendIfBlockedLocked()
}

// addOpenLocked counts a question as open. The first one stops the disconnect grace period.
func (s *suspension) addOpenLocked(i *interrupt) {
	s.open = append(s.open, i)
	if s.openCount.Add(1) == 1 {
		s.run.agent.holdGrace(s.run)
	}
}

// removeOpenLocked counts a question as closed. After the last one, the disconnect grace period
// starts.
func (s *suspension) removeOpenLocked(i *interrupt) {
	for at, o := range s.open {
		if o == i {
			s.open = append(s.open[:at], s.open[at+1:]...)
			break
		}
	}
	if s.openCount.Add(-1) == 0 {
		s.run.agent.awaitReader(s.run)
	}
}

// suspendIfBlockedLocked suspends the run if every call in flight waits, and parks it if it can. It is called
// after each change that can make this true: a call ends, a call begins to wait for an earlier one, a question
// is asked, one of several is answered. A turn whose context has ended is not suspended, because its questions
// are about to be withdrawn. The clock is paused before the event is appended: the time that the log takes is
// not the run's, and a milestone that came between the two could not be appended after suspended.
func (s *suspension) suspendIfBlockedLocked() error {
	if len(s.inFlight) == 0 || len(s.open) == 0 || s.turnCtx.Err() != nil {
		return nil
	}
	waiting := make(map[string]bool, len(s.open))
	all := make([]event.Interrupt, len(s.open))
	for n, i := range s.open {
		waiting[i.CallID], all[n] = true, i.Interrupt
	}
	for id, blocked := range s.inFlight {
		if !blocked && !waiting[id] && !s.awaitingCharge[id] {
			return nil
		}
	}
	if s.resumed == nil {
		if repeat := s.run.agent.Repeat; repeat != nil {
			if suspends, ok := repeat.Suspends(s.run.ID); ok && !suspends {
				return nil
			}
		}
		s.pauseLocked()
		if err := s.run.out.Append(context.WithoutCancel(s.turnCtx), event.Suspended{Interrupts: all}); err != nil {
			s.resumeLocked()
			return err
		}
	}
	s.run.memory.HoldOnly()
	s.run.agent.signalIdle() // Drain does not wait for suspended runs
	if s.canParkLocked() {
		s.run.relinquish(errParked)
	}
	return nil
}

// canParkLocked reports whether a suspended run needs no process: its log is durable, no server
// keeps a request open for an answer, the hook interrupt has replied about every question, and no
// answer or expiry is due now.
func (s *suspension) canParkLocked() bool {
	if s.run.job == nil || !s.run.agent.Durable {
		return false
	}
	for _, i := range s.open {
		if i.HeldOpen || i.notifying || len(i.answer) > 0 || i.timeLeft(s.run.agent.Log.Now()) <= 0 {
			return false
		}
	}
	return true
}

// endNotification notes that the hook interrupt has replied, or will not reply. A suspended run
// that waited for that is parked.
func (s *suspension) endNotification(i *interrupt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i.notifying = false
	if s.resumed != nil {
		_ = s.suspendIfBlockedLocked() // it appends nothing, since the run is suspended
	}
}

// earliestExpiry returns when the first of the open questions expires, or the zero time.
func (s *suspension) earliestExpiry() (first time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.open {
		if t := time.UnixMilli(i.ExpiresAt); first.IsZero() || t.Before(first) {
			first = t
		}
	}
	return first
}

// setAwaitsChild notes that a call in flight waits for a child run, or that it does no more.
func (s *suspension) setAwaitsChild(id string, waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.awaitedChildren == nil {
		s.awaitedChildren = make(map[string]bool)
	}
	delete(s.awaitedChildren, id)
	if waits {
		s.awaitedChildren[id] = true
	}
}

// awaitedInputs returns the ids of the inputs that the run waits for: of the open questions, and of the child
// runs, which send one at their end.
func (s *suspension) awaitedInputs() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := maps.Clone(s.awaitedChildren)
	if ids == nil {
		ids = make(map[string]bool, len(s.open))
	}
	for _, i := range s.open {
		ids[i.ID] = true
	}
	return ids
}

// restore makes a run that another process has suspended count as suspended, until one of its questions is resolved
// or another one is asked. Its time must not pass while this process prepares to ask the questions again.
func (s *suspension) restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run.out.Suspended() {
		s.pauseLocked()
	}
}

// pauseLocked begins the suspension and pauses the clock.
func (s *suspension) pauseLocked() {
	s.run.clock.Pause()
	s.resumed = make(chan struct{})
	s.isSuspended.Store(true)
}

// appendOutcome appends the outcome of a call. In a run that another process has suspended, a call may end without an
// answer: the rules or a hook of this process may refuse a call that waited for an earlier call in the other process.
// No event may follow suspended, so the call waits for the answer too, and meanwhile the run may be parked.
func (s *suspension) appendOutcome(ctx context.Context, callID string, ended event.Body) error {
	for {
		err := s.run.out.Append(context.WithoutCancel(ctx), ended)
		if !errors.Is(err, event.ErrSuspended) {
			return err
		}
		s.mu.Lock()
		resumed := s.resumed
		s.inFlight[callID] = true
		err = s.suspendIfBlockedLocked()
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if resumed == nil {
			continue // it was resumed just now
		}
		select {
		case <-resumed:
		case <-s.run.ctx.Done():
			return context.Cause(s.run.ctx)
		}
	}
}

// withdrawRestored appends that a question of another process is withdrawn, which was not opened again here.
func (s *suspension) withdrawRestored(ctx context.Context, rec event.Interrupt) error {
	withdrawn := newInterrupt(rec).resolvedEvent(resolution{unanswered: errWithdrawn})
	if err := s.run.awaitOrder(ctx, withdrawn); err != nil {
		return err
	}
	return s.appendAndResume(ctx, withdrawn)
}

// resumeLocked ends the suspension. The caller has appended the event that reports it.
func (s *suspension) resumeLocked() {
	if s.resumed != nil {
		close(s.resumed)
		s.resumed = nil
		s.isSuspended.Store(false)
		s.run.clock.Resume()
	}
}

// resumeSignal returns a channel that is closed as soon as the run is not suspended.
func (s *suspension) resumeSignal() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resumed != nil {
		return s.resumed
	}
	resumed := make(chan struct{})
	close(resumed)
	return resumed
}

// wakeParent stores an input in the parent of a child run, whose questions have the same ids. If the
// parent waits for that question, it is resolved there too; if the parent is parked, it continues. An
// answer that the parent got first stays.
func (a *Agent) wakeParent(child *run, id string) {
	if child.req.parent.Run == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(child.ctx), wakeTimeout)
	defer cancel()
	err := a.Log.AddInput(ctx, child.req.parent.Run, id, closedInput)
	switch {
	case err == nil, errors.Is(err, event.ErrDuplicateInput), errors.Is(err, event.ErrEnded), errors.Is(err, event.ErrGone), errors.Is(err, event.ErrNotFound):
	default:
		a.Logger.WarnContext(ctx, "a run could not be told of its child; it continues when its question expires",
			"run_id", child.req.parent.Run, "child_run_id", child.ID, "error", err)
	}
}

// awaitCharge waits until a call is charged, if the run repeats a recorded one. Meanwhile the call counts as
// waiting, so that the run can be suspended.
func (r *run) awaitCharge(callID, child string) error {
	if r.agent.Repeat == nil {
		return nil
	}
	if err := r.suspension.setAwaitsCharge(callID, true); err != nil {
		return err
	}
	kept, stop := r.keptContext()
	defer stop()
	r.agent.Repeat.Charge(kept, r.ID, callID, child)
	return r.suspension.setAwaitsCharge(callID, false)
}
