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

// maxElicitations is how many questions from servers a run may have open, because each has up to 72 KiB and every
// suspended event contains all of them. For approvals, the number of calls in a turn is the limit.
const maxElicitations = 16

// suspension tracks a run's open interrupts and the calls in flight of its current turn. If each of these calls waits
// for a person, or for an earlier call that waits for a person, the run cannot continue without an answer. It is then
// suspended: its clock is paused, and a suspended event is appended. If another process can continue the run, its job
// is also parked, and this process stops executing it.
//
// Order of calls: a call whose charge depends on earlier calls of its turn blocks in awaitEarlierCalls until wakeCalls.
// While it blocks, it counts as waiting. Otherwise a run whose first call waits for a person could never be suspended.
//
// Order of locks: lock mu before the writer's mutex and before the agent's mutex, because events are appended and the
// grace period is changed with mu held. So code that holds the agent's mutex must not lock mu; it may only read
// openCount and isSuspended.
type suspension struct {
	run *run

	openCount   atomic.Int32 // how many interrupts are open, for code that must not lock mu
	isSuspended atomic.Bool  // for code that must not lock mu

	// mu guards the fields below. It is held while the events of questions, answers and suspensions are appended, so
	// that the events are in the same order as the changes of state.
	mu              sync.Mutex
	turnCtx         context.Context // the context of the current turn's calls
	inFlight        map[string]bool // by call id; true if the call waits for an earlier call or for the run to resume
	open            []*interrupt    // the open interrupts, in the order they were asked
	resumed         chan struct{}   // closed when the suspension ends; nil if the run is not suspended
	awaitedChildren map[string]bool // by id: child runs that calls in flight wait for
	awaitingCharge  map[string]bool // by id: calls of a rerun that wait in recorded.Inputs.Charge
}

// runQuestion takes the place of a call's id in inFlight while the run itself asks a question, such as about a limit.
const runQuestion = ""

// beginCalls marks the calls of a turn with these ids, which have the context ctx, as in flight. Call it before any of
// them starts: otherwise the first call that asks a question would suspend the run although other calls have yet to
// start.
func (s *suspension) beginCalls(ctx context.Context, callIDs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turnCtx = ctx
	s.inFlight = make(map[string]bool, len(callIDs))
	for _, id := range callIDs {
		s.inFlight[id] = false
	}
}

// endCall removes an ended call from the calls in flight. If all remaining calls wait, it suspends the run. An error
// comes from the log.
func (s *suspension) endCall(callID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.inFlight, callID)
	return s.suspendIfBlockedLocked()
}

// awaitEarlierCalls blocks a call until decided is closed, which wakeCalls does when an earlier call of the turn was
// charged or refused. If no call in flight can continue while this one blocks, awaitEarlierCalls suspends the run. It
// returns nil once decided is closed, the cause of ctx if ctx ends first, or an error of the log.
func (s *suspension) awaitEarlierCalls(ctx context.Context, callID string, decided <-chan struct{}) error {
	s.mu.Lock()
	var err error
	select {
	case <-decided: // already closed, so the call need not wait
	default:
		s.inFlight[callID] = true
		err = s.suspendIfBlockedLocked()
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-decided:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// suspendAsRecorded suspends a rerun if all its calls wait and the recording has a suspended event next. Call it after
// an event that changes nothing in s, because in the recording the suspension may follow such an event. It does nothing
// if the run is not a rerun. An error comes from the log.
func (s *suspension) suspendAsRecorded() error {
	if s.run.agent.Repeat == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.suspendIfBlockedLocked()
}

// beginChargeWait records that a call of a rerun waits in recorded.Inputs.Charge, until endChargeWait. If all calls
// then wait, the run is suspended. An error comes from the log.
func (s *suspension) beginChargeWait(callID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaitingCharge[callID] = true
	return s.suspendIfBlockedLocked()
}

// endChargeWait records that the call no longer waits in recorded.Inputs.Charge.
func (s *suspension) endChargeWait(callID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.awaitingCharge, callID)
}

// wakeCalls closes decided, which wakes the calls in awaitEarlierCalls, and marks all calls as not waiting. It does
// both with mu held: if a call that is about to continue still counted as waiting, the run could be suspended while
// that call continues.
func (s *suspension) wakeCalls(decided chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.inFlight {
		s.inFlight[id] = false
	}
	close(decided)
}

// openInterrupts adds questions to s.open, and appends the events of those that the log does not have yet. If all calls
// then wait for answers, it suspends the run, once for all questions. It skips nil elements, and elicitations beyond
// maxElicitations: these are not asked, and their isAsked stays false. An error comes from the log.
func (s *suspension) openInterrupts(ctx context.Context, questions []*interrupt) error {
	if s.run.agent.Repeat == nil {
		return s.openTogether(ctx, questions)
	}
	// In a rerun, each question waits until the recording has it next. The recording also says when the run is
	// suspended.
	for _, question := range questions {
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

// openTogether does the work of openInterrupts, without regard to a recording. It holds mu throughout, so that no other
// goroutine suspends the run between two questions. If the log refuses a question's event, the questions before it stay
// open.
func (s *suspension) openTogether(ctx context.Context, questions []*interrupt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, question := range questions {
		if question == nil || question.Kind == event.KindElicitation && s.elicitationsLocked() == maxElicitations {
			continue
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

// elicitationsLocked returns how many open questions are elicitations. The caller must hold mu.
func (s *suspension) elicitationsLocked() (n int) {
	for _, question := range s.open {
		if question.Kind == event.KindElicitation {
			n++
		}
	}
	return n
}

// recordUnanswered appends a question that no person can answer, and its resolution res, so that readers learn why a
// call was refused. Other calls' events may come between these two events, but not a suspended event, because the call
// that asks does not wait.
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

// appendAndResume appends an event that ends a suspension. If the run is suspended, it then resumes the run.
func (s *suspension) appendAndResume(ctx context.Context, body event.Body) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.run.out.Append(ctx, body); err != nil {
		return err
	}
	s.resumeLocked()
	return nil
}

// resolveInterrupt appends a question's resolution and lets the run continue. It does so even if ctx has ended, because
// every question must be closed. In a child run it also resolves the same question in the parent. If the log refuses
// the event, the question stays open and the error is returned: the run may have just been parked, and must get the
// answer when it continues.
func (s *suspension) resolveInterrupt(ctx context.Context, question *interrupt, res resolution) error {
	if err := s.run.awaitOrder(ctx, question.resolvedEvent(res)); err != nil {
		return err
	}
	if err := s.appendResolution(ctx, question, res); err != nil {
		return err
	}
	input := closedInput
	if res.unanswered == nil {
		input = encodeInput(res.Input, res.by)
	}
	s.run.agent.wakeParent(s.run, question.ID, input)
	return nil
}

// appendResolution appends a question's resolution, removes the question from those open, and ends the suspension, all
// with mu held. If the questions that are still open block all calls, it suspends the run again at once; the new
// suspended event contains only those questions. An error comes from the log.
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

// addOpenLocked adds a question to those open. The first open question ends the disconnect grace period. The caller
// must hold mu.
func (s *suspension) addOpenLocked(question *interrupt) {
	s.open = append(s.open, question)
	if s.openCount.Add(1) == 1 {
		s.run.agent.stopGrace(s.run)
	}
}

// removeOpenLocked removes a question from those open. When none is left, it starts the disconnect grace period. The
// caller must hold mu.
func (s *suspension) removeOpenLocked(question *interrupt) {
	if i := slices.Index(s.open, question); i >= 0 {
		s.open = slices.Delete(s.open, i, i+1)
	}
	if s.openCount.Add(-1) == 0 {
		s.run.agent.awaitReader(s.run)
	}
}

// suspendIfBlockedLocked suspends the run if every call in flight waits. If the run can be parked, it also relinquishes
// the run with errParked. Call it after each change that can make every call wait: a call ends or begins to wait for an
// earlier call, a question is asked, or one of several questions is answered. If the run is already suspended, it only
// checks again whether the run can be parked. The caller must hold mu. An error comes from the log.
func (s *suspension) suspendIfBlockedLocked() error {
	if !s.isBlockedLocked() {
		return nil
	}
	isSuspended := s.resumed != nil
	if !isSuspended {
		if s.run.hasOtherEventRecorded() {
			return nil
		}
		if err := s.suspendLocked(); err != nil {
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

// hasOtherEventRecorded reports whether the run is a rerun whose recording has another event next than a suspended
// event.
func (r *run) hasOtherEventRecorded() bool {
	if r.agent.Repeat == nil {
		return false
	}
	suspends, isKnown := r.agent.Repeat.Suspends(r.ID)
	return isKnown && !suspends
}

// suspendLocked pauses the run's clock and appends a suspended event with the open questions. If the log refuses the
// event, it resumes the run and returns the error. The caller must hold mu.
func (s *suspension) suspendLocked() error {
	all := make([]event.Interrupt, len(s.open))
	for i, question := range s.open {
		all[i] = question.Interrupt
	}
	// Pause the clock first: the run is not charged for the time that the log takes, and the clock could not append a
	// budget event after the suspended event.
	s.pauseLocked()
	err := s.run.out.Append(context.WithoutCancel(s.turnCtx), event.Suspended{Interrupts: all})
	if err != nil {
		s.resumeLocked()
	}
	return err
}

// isBlockedLocked reports whether questions are open and every call in flight waits. If the turn's context has ended,
// it returns false, because the questions are about to be withdrawn. The caller must hold mu.
func (s *suspension) isBlockedLocked() bool {
	if len(s.inFlight) == 0 || len(s.open) == 0 || s.turnCtx.Err() != nil {
		return false
	}
	asking := make(map[string]bool, len(s.open)) // by id: calls that wait for the answer to an open question
	for _, question := range s.open {
		asking[question.CallID] = true
	}
	for id, waitsForOther := range s.inFlight {
		if !waitsForOther && !asking[id] && !s.awaitingCharge[id] {
			return false
		}
	}
	return true
}

// canParkLocked reports whether a suspended run needs no process: its log is durable, no server keeps a request open
// for an answer, the interrupt hook has replied about every question, and no answer or expiry is due. The caller must
// hold mu.
func (s *suspension) canParkLocked() bool {
	if s.run.job == nil || !s.run.agent.Durable {
		return false
	}
	for _, question := range s.open {
		isDue := len(question.answer) > 0 || question.timeLeft(s.run.agent.Log.Now()) <= 0
		if question.HeldOpen || question.notifying || isDue {
			return false
		}
	}
	return true
}

// endNotification records that the interrupt hook has replied about a question, or will not reply. If the run is
// suspended and was only waiting for this reply, it is parked.
func (s *suspension) endNotification(question *interrupt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	question.notifying = false
	if s.resumed != nil {
		_ = s.suspendIfBlockedLocked() // no error: the run is suspended already, so nothing is appended
	}
}

// earliestExpiry returns when the first open question expires, or the zero time if none is open.
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

// beginChildWait records that a call in flight waits for the child run with this id, until endChildWait.
func (s *suspension) beginChildWait(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaitedChildren[id] = true
}

// endChildWait records that the call no longer waits for the child run with this id.
func (s *suspension) endChildWait(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.awaitedChildren, id)
}

// awaitedInputs returns the ids of the inputs that the run waits for: the open questions, and the child runs in
// progress. When a child run ends, it stores an input under its own id in the parent (wakeParent).
func (s *suspension) awaitedInputs() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := maps.Clone(s.awaitedChildren)
	for _, question := range s.open {
		ids[question.ID] = true
	}
	return ids
}

// restore marks the run as suspended and pauses its clock, if another process suspended it. No time may be charged to
// the run while this process prepares to wait for the open questions again. The suspension ends when one of them is
// resolved or another question is asked.
func (s *suspension) restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run.out.Suspended() {
		s.pauseLocked()
	}
}

// pauseLocked marks the run as suspended and pauses its clock. It appends no event. The caller must hold mu.
func (s *suspension) pauseLocked() {
	s.run.clock.Pause()
	s.resumed = make(chan struct{})
	s.isSuspended.Store(true)
}

// appendOutcome appends a call's outcome, even if ctx has ended. It blocks while the run is suspended, because the
// outcome may not follow the suspended event; the call then counts as waiting, and the run may be parked. This happens
// after a takeover, if a rule or hook here refuses a call that still waited for an earlier call in the other process.
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

// resumeLocked ends the suspension and resumes the clock. It does nothing if the run is not suspended. The caller must
// hold mu, and must have appended the event that ends the suspension.
func (s *suspension) resumeLocked() {
	if s.resumed != nil {
		close(s.resumed)
		s.resumed = nil
		s.isSuspended.Store(false)
		s.run.clock.Resume()
	}
}

// resumeSignal returns a channel that is closed when the current suspension ends. If the run is not suspended, the
// channel is already closed.
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

// awaitCharge blocks, in a rerun, until the recording's next charge is that of the call. If child is "", this is the
// charge for the call itself, and otherwise the charge for what that child run has used. A blocked call counts as
// waiting, so that the run can be suspended. For other runs, awaitCharge returns nil at once. An error comes from the
// log.
func (r *run) awaitCharge(callID, child string) error {
	if r.agent.Repeat == nil {
		return nil
	}
	if err := r.suspension.beginChargeWait(callID); err != nil {
		return err
	}
	ctx, stop := r.contextUntilRelinquished()
	defer stop()
	r.agent.Repeat.Charge(ctx, r.ID, callID, child)
	r.suspension.endChargeWait(callID)
	return nil
}
