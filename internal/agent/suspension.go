package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"answerd/internal/event"
)

// maxElicitations bounds the questions of servers that may be open in a run, because each has up to 72 KiB, and every
// suspended event contains all of them. Approvals are bounded by the calls of a turn.
const maxElicitations = 16

// suspension tracks the open interrupts of a run and the calls of its turn that are in flight. If each call in flight
// waits for a person, or for an earlier call that waits for a person, the run cannot continue without an answer. It is
// then suspended: its clock is paused, and the event suspended is appended. If another process can continue the run,
// its job is parked, and this process stops executing it.
//
// Order of calls: a call whose charge depends on earlier calls of its turn blocks in waitTurn until releaseTurn. While
// it blocks, it counts as waiting. Otherwise a run whose first call waits for a person would never be suspended.
//
// Order of locks: mu is locked before the mutex of the writer and before that of the agent, since events are appended
// and the grace period is changed while mu is held. So code that holds the agent's mutex must not lock mu; it reads
// only openCount and isSuspended.
type suspension struct {
	run *run

	openCount   atomic.Int32 // the number of open interrupts, for code that must not lock mu
	isSuspended atomic.Bool  // whether the run is suspended, for code that must not lock mu

	// mu guards the fields below. It is held while the events of questions, answers and suspensions are appended, so
	// that their order in the log matches the order of the state changes.
	mu              sync.Mutex
	turnCtx         context.Context // the context of the turn's calls
	inFlight        map[string]bool // by call id; true if the call blocks until an earlier call is decided or the run resumes
	open            []*interrupt    // the open interrupts, in the order in which they were asked
	resumed         chan struct{}   // closed when the run continues; nil unless it is suspended
	awaitedChildren map[string]bool // by id, the child runs for which calls in flight wait
	awaitingCharge  map[string]bool // by id, the calls of a rerun that wait in recorded.Inputs.Charge
}

// beginTurn marks the calls of a turn, whose context is ctx, as in flight. It must be called before any of them starts:
// otherwise the first call that asks a question would suspend a run whose other calls have not started yet.
func (s *suspension) beginTurn(ctx context.Context, calls []*call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turnCtx = ctx
	s.inFlight = make(map[string]bool, len(calls))
	for _, c := range calls {
		s.inFlight[c.CallID] = false
	}
}

// endCall removes a call that has ended from those in flight. If all remaining calls wait, it suspends the run. The
// error is that of the log.
func (s *suspension) endCall(callID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.inFlight, callID)
	return s.suspendIfBlockedLocked()
}

// waitTurn blocks a call until releaseTurn closes changed, that is, until an earlier call of its turn was charged or
// refused. If this leaves no call that can continue, it suspends the run. It returns nil once changed is closed, the
// cause of ctx if ctx ends first, or the error of the log.
func (s *suspension) waitTurn(ctx context.Context, callID string, changed <-chan struct{}) error {
	s.mu.Lock()
	var err error
	select {
	case <-changed: // closed already: the call does not wait
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

// recheck suspends a rerun if all of its calls wait and the recording has the event suspended next. It is called after
// events that change nothing in s, because the recorded suspension may follow such an event. For any other run, it
// does nothing.
func (s *suspension) recheck() error {
	if s.run.agent.Repeat == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.suspendIfBlockedLocked()
}

// setAwaitsCharge sets whether a call of a rerun waits in recorded.Inputs.Charge. If it does and all calls wait, it
// suspends the run. The error is that of the log.
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

// releaseTurn closes changed, which wakes the calls in waitTurn, and marks all calls as not blocked. It does both while
// it holds mu: a call that is about to continue must not count as waiting, because the run would be suspended while the
// call continues.
func (s *suspension) releaseTurn(changed chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.inFlight {
		s.inFlight[id] = false
	}
	close(changed)
}

// openInterrupts asks questions: it adds them to s.open and appends the events of those that the log does not have yet.
// If all calls then wait for answers, it suspends the run, once for all questions. It ignores nil elements, and does not
// ask elicitations beyond maxElicitations: their isAsked stays false. The error is that of the log.
func (s *suspension) openInterrupts(ctx context.Context, all []*interrupt) error {
	if s.run.agent.Repeat == nil {
		return s.openTogether(ctx, all)
	}
	// In a rerun, each question waits for its place in the recording, which also says when the run is suspended.
	for _, question := range all {
		if question == nil {
			continue
		}
		if !question.isAsked {
			if err := s.run.awaitOrder(ctx, question.Body()); err != nil {
				return err
			}
		}
		if err := s.openTogether(ctx, []*interrupt{question}); err != nil {
			return err
		}
	}
	return nil
}

// openTogether opens questions as openInterrupts does, without waiting for a place in a recording. It holds mu
// throughout, so that no other goroutine suspends the run between two questions. If the log refuses the event of a
// question, the questions before that one stay open.
func (s *suspension) openTogether(ctx context.Context, all []*interrupt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	elicitations := 0
	for _, open := range s.open {
		if open.Kind == event.KindElicitation {
			elicitations++
		}
	}
	for _, question := range all {
		if question == nil {
			continue
		}
		if question.Kind == event.KindElicitation {
			if elicitations == maxElicitations {
				continue
			}
			elicitations++
		}
		s.addOpenLocked(question)
		if question.isAsked {
			continue
		}
		// Append even if ctx has ended: awaitAnswer then withdraws the question at once.
		if err := s.run.out.Append(context.WithoutCancel(ctx), question.Body()); err != nil {
			s.removeOpenLocked(question)
			return err
		}
		question.isAsked = true
		s.resumeLocked()
	}
	return s.suspendIfBlockedLocked()
}

// recordUnanswered appends a question that no person can answer, and its resolution res, so that readers learn why a
// call was refused. Events of parallel calls may come between the two events, but not the event suspended, because the
// call that asks does not wait.
func (s *suspension) recordUnanswered(ctx context.Context, question *interrupt, res resolution) error {
	resolved := question.resolvedEvent(res)
	if err := s.run.awaitOrder(ctx, question.Body()); err != nil {
		return err
	}
	if err := s.appendAndResume(context.WithoutCancel(ctx), question.Body()); err != nil {
		return err
	}
	if err := s.run.awaitOrder(ctx, resolved); err != nil {
		return err
	}
	return s.run.out.Append(context.WithoutCancel(ctx), resolved)
}

// appendAndResume appends an event that ends a suspension, and ends the suspension if the run is suspended.
func (s *suspension) appendAndResume(ctx context.Context, body event.Body) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.run.out.Append(ctx, body); err != nil {
		return err
	}
	s.resumeLocked()
	return nil
}

// resolveInterrupt appends the resolution of a question and lets the run continue, even if ctx has ended, because
// every question must be closed. In a child run it also closes the same question in the parent. If the log refuses the
// event, the question stays open and the error is returned: the run may have been parked at this moment, and must get
// the answer when it continues.
func (s *suspension) resolveInterrupt(ctx context.Context, question *interrupt, res resolution) error {
	if err := s.run.awaitOrder(ctx, question.resolvedEvent(res)); err != nil {
		return err
	}
	if err := s.appendResolution(ctx, question, res); err != nil {
		return err
	}
	s.run.agent.wakeParent(s.run, question.ID)
	return nil
}

// appendResolution appends the resolution of a question, counts the question as closed and ends the suspension, all
// while it holds mu. If the questions that are still open block all calls, the run is suspended again at once; the new
// event suspended has only these questions.
func (s *suspension) appendResolution(ctx context.Context, question *interrupt, res resolution) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.run.out.Append(context.WithoutCancel(ctx), question.resolvedEvent(res)); err != nil {
		return err
	}
	s.removeOpenLocked(question)
	s.resumeLocked()
	return s.suspendIfBlockedLocked()
}

// addOpenLocked counts a question as open. The first open question ends the disconnect grace period. The caller holds
// mu.
func (s *suspension) addOpenLocked(question *interrupt) {
	s.open = append(s.open, question)
	if s.openCount.Add(1) == 1 {
		s.run.agent.holdGrace(s.run)
	}
}

// removeOpenLocked counts a question as closed. If no other question is open, it starts the disconnect grace period.
// The caller holds mu.
func (s *suspension) removeOpenLocked(question *interrupt) {
	if n := slices.Index(s.open, question); n >= 0 {
		s.open = slices.Delete(s.open, n, n+1)
	}
	if s.openCount.Add(-1) == 0 {
		s.run.agent.awaitReader(s.run)
	}
}

// suspendIfBlockedLocked suspends the run if every call in flight waits, and relinquishes it with errParked if it can
// be parked. It must be called after each change that can make every call wait: a call ends or begins to wait for an
// earlier call, a question is asked, or one of several questions is answered. If the run is suspended already, it
// only checks again whether the run can be parked. The caller holds mu. The error is that of the log.
func (s *suspension) suspendIfBlockedLocked() error {
	if !s.isBlockedLocked() {
		return nil
	}
	if s.resumed == nil { // the run is not suspended yet
		if repeat := s.run.agent.Repeat; repeat != nil {
			if suspends, ok := repeat.Suspends(s.run.ID); ok && !suspends {
				return nil // the recording has another event next
			}
		}
		all := make([]event.Interrupt, len(s.open))
		for n, question := range s.open {
			all[n] = question.Interrupt
		}
		// Pause the clock first. The time that the log takes does not count for the run, and a budget event of the
		// clock could not be appended after the event suspended.
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

// isBlockedLocked reports whether questions are open and every call in flight waits. A turn whose context has ended is
// not blocked, because its questions are about to be withdrawn. The caller holds mu.
func (s *suspension) isBlockedLocked() bool {
	if len(s.inFlight) == 0 || len(s.open) == 0 || s.turnCtx.Err() != nil {
		return false
	}
	asking := make(map[string]bool, len(s.open)) // by id, the calls that wait for the answer to an open question
	for _, question := range s.open {
		asking[question.CallID] = true
	}
	for id, blocked := range s.inFlight {
		if !blocked && !asking[id] && !s.awaitingCharge[id] {
			return false
		}
	}
	return true
}

// canParkLocked reports whether a suspended run needs no process: its log is durable, no server
// keeps a request open for an answer, the hook interrupt has replied about every question, and no
// answer or expiry is due now. The caller holds mu.
func (s *suspension) canParkLocked() bool {
	if s.run.job == nil || !s.run.agent.Durable {
		return false
	}
	for _, question := range s.open {
		if question.HeldOpen || question.notifying || len(question.answer) > 0 || question.timeLeft(s.run.agent.Log.Now()) <= 0 {
			return false
		}
	}
	return true
}

// endNotification records that the hook interrupt has replied about a question, or will not reply. If the run is
// suspended and only waited for this reply, it is parked.
func (s *suspension) endNotification(question *interrupt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	question.notifying = false
	if s.resumed != nil {
		_ = s.suspendIfBlockedLocked() // no error: it appends nothing, since the run is suspended
	}
}

// earliestExpiry returns when the first of the open questions expires; the zero time if no question is open.
func (s *suspension) earliestExpiry() (first time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, question := range s.open {
		if t := time.UnixMilli(question.ExpiresAt); first.IsZero() || t.Before(first) {
			first = t
		}
	}
	return first
}

// setAwaitsChild sets whether a call in flight waits for the child run with that id.
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

// awaitedInputs returns the ids of the inputs that the run waits for: those of the open questions, and those of the
// child runs in progress. A child run stores an input with its own id in the parent at its end (wakeParent).
func (s *suspension) awaitedInputs() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := maps.Clone(s.awaitedChildren)
	if ids == nil {
		ids = make(map[string]bool, len(s.open))
	}
	for _, question := range s.open {
		ids[question.ID] = true
	}
	return ids
}

// restore counts the run as suspended and pauses its clock, if another process has suspended the run. The run's time
// must not pass while this process prepares to wait for the open questions again. The suspension ends when one of the
// questions is resolved or another question is asked.
func (s *suspension) restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run.out.Suspended() {
		s.pauseLocked()
	}
}

// pauseLocked begins the suspension and pauses the clock. It appends no event. The caller holds mu.
func (s *suspension) pauseLocked() {
	s.run.clock.Pause()
	s.resumed = make(chan struct{})
	s.isSuspended.Store(true)
}

// appendOutcome appends the outcome of a call, even if ctx has ended. It blocks while the run is suspended, because no
// event may follow the event suspended; the call then counts as waiting, and the run may be parked. This happens in a
// run that another process has suspended: the rules or a hook of this process may refuse a call that waited for an
// earlier call in the other process, so that it ends although no question was answered.
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
			continue // the run was resumed after Append had failed
		}
		select {
		case <-resumed:
		case <-s.run.ctx.Done():
			return context.Cause(s.run.ctx)
		}
	}
}

// withdrawRestored appends the event that withdraws a question of another process that was not opened again here. It
// ends the suspension if the run is suspended.
func (s *suspension) withdrawRestored(ctx context.Context, rec event.Interrupt) error {
	withdrawn := newInterrupt(rec).resolvedEvent(resolution{unanswered: errWithdrawn})
	if err := s.run.awaitOrder(ctx, withdrawn); err != nil {
		return err
	}
	return s.appendAndResume(ctx, withdrawn)
}

// resumeLocked ends the suspension and resumes the clock. It does nothing if the run is not suspended. The caller holds
// mu, and has appended the event that ends the suspension.
func (s *suspension) resumeLocked() {
	if s.resumed != nil {
		close(s.resumed)
		s.resumed = nil
		s.isSuspended.Store(false)
		s.run.clock.Resume()
	}
}

// resumeSignal returns a channel that is closed when the present suspension ends; a closed channel if the run is not
// suspended.
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

// wakeParent stores an input in the parent of a child run, if child is one, so that a parked parent continues. id is
// that of a question that was resolved in the child, which the parent asks under the same id, or of the child itself
// at its end. If the question is still open in the parent, the input closes it there; an answer that the parent got
// before stays. Errors are only logged.
func (a *Agent) wakeParent(child *run, id string) {
	if child.req.parent.Run == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(child.ctx), wakeTimeout)
	defer cancel()
	if err := a.Log.AddInput(ctx, child.req.parent.Run, id, closedInput); err != nil && !isTooLate(err) {
		a.Logger.WarnContext(ctx, "a run could not be told of its child; it continues when its question expires",
			"run_id", child.req.parent.Run, "child_run_id", child.ID, "error", err)
	}
}

// awaitCharge blocks in a rerun until the recording has the charge of the call next. With child "" that is the charge
// of the call itself, otherwise of what its child run has used. While awaitCharge blocks, the call counts as waiting,
// so that the run can be suspended. It returns nil at once if the run is not a rerun. The error is that of the log.
func (r *run) awaitCharge(callID, child string) error {
	if r.agent.Repeat == nil {
		return nil
	}
	if err := r.suspension.setAwaitsCharge(callID, true); err != nil {
		return err
	}
	ctx, stop := r.contextUntilRelinquished()
	defer stop()
	r.agent.Repeat.Charge(ctx, r.ID, callID, child)
	return r.suspension.setAwaitsCharge(callID, false)
}
