package rerun

import (
	"context"
	"errors"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/agent/recorded"
	"answerd/internal/agent/replay"
	"answerd/internal/event"
)

// Calls of a turn run at the same time, so the order of their events depends on how long each took. Here that
// order is an input. Before the agent appends an event of a call, the event claims the recorded one that it
// repeats, and waits until the run has as many events as came before that one. An event that was not recorded
// claims nothing and does not wait. After a takeover, the next agent claims again what was claimed and not
// appended (unclaim).

// errLeftOpen means that a call has no outcome of its own in the recording: the end of the run closed it.
var errLeftOpen = errors.New("the recorded call was closed by the end of its run")

// repetition returns the functions by which the agents take from the recordings what they cannot decide themselves.
func (s *session) repetition() *recorded.Inputs {
	return &recorded.Inputs{
		Order:       s.awaitOrder,
		Charge:      s.awaitCharge,
		Suspends:    s.suspends,
		ChildBudget: s.childBudget,
		Decision:    s.decision,
		Ended:       s.endedByHook,
		ManualClock: true,
	}
}

// awaitOrder implements recorded.Inputs.Order: it waits until the run has all events that were recorded before the
// event that body repeats. That wait does not end with ctx, because events are appended after a cancellation too. It
// ends with untilTakeover: then another process continues the run. The error errLeftOpen leaves the event to the end of
// the run. If no recorded event is left that body could repeat, see awaitUnrecorded.
func (s *session) awaitOrder(ctx, untilTakeover context.Context, _ string, body event.Body) error {
	state := s.runOf(ctx)
	if state == nil {
		return nil
	}
	if start, ok := body.(event.StepStart); ok {
		state.awaitStep(untilTakeover, start)
		return nil
	}
	was := state.claim(event.Event{Body: body})
	if was == nil {
		return state.awaitUnrecorded(ctx, body)
	}
	if _, resolved := replay.InterruptOf(*was); resolved != "" {
		state.awaitParentQuestion(untilTakeover, resolved)
	}
	if wasOpenAtEnd(was) && ctx.Err() != nil && !isClosed(state.watch.unordered) {
		// The run appends this event when it ends. It first waits for all calls, so waiting here would never end.
		return errLeftOpen
	}
	state.await(untilTakeover, was.Seq-1)
	return nil
}

// awaitUnrecorded delays an event about a child run that was not recorded: the recorded run ended before it, so it
// waits until the recorded order is given up or ctx ends. For all other events it returns at once: they are
// differences.
func (r *runState) awaitUnrecorded(ctx context.Context, body event.Body) error {
	if childOf(body) == "" || len(r.rec.events) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.watch.unordered:
		return nil
	}
}

// wasOpenAtEnd reports whether a recorded event closed a call that was still open when the run ended.
func wasOpenAtEnd(e *event.Event) bool {
	toolError, ok := e.Body.(event.ToolError)
	return ok && toolError.Payload == event.OpenAtEnd
}

// awaitStep waits until the run may start a step. If the event of the time limit was recorded right before the step,
// the step must not start without it.
func (r *runState) awaitStep(untilTakeover context.Context, start event.StepStart) {
	for i, e := range r.rec.events {
		if b, ok := e.Body.(event.StepStart); !ok || b.Step != start.Step || i == 0 {
			continue
		}
		if b, ok := r.rec.events[i-1].Body.(event.Budget); ok && b.Limit == timeLimit {
			r.await(untilTakeover, e.Seq-1)
		}
		return
	}
}

// childOf returns the id of the child run whose event caused b: its progress or its question. It returns "" if b is not
// about a child run.
func childOf(b event.Body) string {
	if p, ok := b.(event.ToolProgress); ok {
		return p.ChildRunID
	}
	asked, _ := replay.InterruptOf(event.Event{Body: b})
	return asked.ChildRunID
}

// claim returns the recorded event that the new event e repeats, or nil. It returns each recorded event once. For a
// question, claim also records which ids belong together (interrupts and recordedID).
func (r *runState) claim(e event.Event) *event.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	recorded := r.rec.asked // the questions about limits, which belong to no call
	if id := e.CallID(); id != "" {
		if r.rec.calls[id] == nil {
			return nil
		}
		recorded = r.rec.calls[id].events
	}
	was := r.findUnclaimedLocked(e, recorded)
	if was == nil {
		return nil
	}
	r.claimed[was.Seq] = true
	if asked, _ := replay.InterruptOf(e); asked.ID != "" {
		wasAsked, _ := replay.InterruptOf(*was)
		r.recordedID[asked.ID], r.interrupts[wasAsked.ID] = wasAsked.ID, asked.ID
	}
	return was
}

// findUnclaimedLocked returns the first of the recorded events that is not claimed and that e may repeat, or nil. Among
// several questions, which a server may ask at the same time, it prefers the one with the same text. The caller holds
// r.mu.
func (r *runState) findUnclaimedLocked(e event.Event, recorded []event.Event) (first *event.Event) {
	asked, _ := replay.InterruptOf(e)
	for i := range recorded {
		was := &recorded[i]
		if r.claimed[was.Seq] || !r.mayRepeatLocked(e, *was) {
			continue
		}
		if wasAsked, _ := replay.InterruptOf(*was); asked.Message == wasAsked.Message { // both "" if e asks nothing
			return was
		}
		if first == nil {
			first = was
		}
	}
	return first
}

// mayRepeatLocked reports whether the new event e can repeat was, a recorded event of the same call or also of none.
// Either both end the call, or neither does and they have the same type. A resolution must resolve the same question. A
// question that a child run has asked must be the same question of that child. The caller holds r.mu.
func (r *runState) mayRepeatLocked(e, was event.Event) bool {
	_, ends := e.EndsCall()
	_, ended := was.EndsCall()
	hasSameType := e.Body.Type() == was.Body.Type()
	if ends != ended || !ends && !hasSameType {
		return false
	}
	asked, resolved := replay.InterruptOf(e)
	wasAsked, wasResolved := replay.InterruptOf(was)
	if resolved != "" && r.recordedID[resolved] != wasResolved {
		return false
	}
	if asked.ChildRunID == "" || len(r.rec.children) == 0 {
		return true
	}
	child := r.runs[asked.ChildRunID] // The parent's event has the id of the child's question.
	return child != nil && child.recordedID[asked.ID] == wasAsked.ID
}

// awaitParentQuestion waits until the parent of a run has passed on a question of the run to its own readers, if the
// recorded parent did. It is called before the question is resolved: a parent does not pass on a question that has been
// resolved.
func (r *runState) awaitParentQuestion(untilTakeover context.Context, recordedID string) {
	if r.parent == nil {
		return
	}
	for i := range r.parent.rec.events {
		e := &r.parent.rec.events[i]
		if asked, _ := replay.InterruptOf(*e); asked.ID == recordedID {
			r.parent.await(untilTakeover, e.Seq)
			return
		}
	}
}

// awaitCharge implements recorded.Inputs.Charge: it waits for the position in the recording at which the charge had
// its effect. A call that the budget refused is charged right before its end; the use of a child run, right before
// the limit that it reached, or else right before the end of the child's call.
func (s *session) awaitCharge(untilTakeover context.Context, run, callID, child string) {
	state := s.byID(run)
	if state == nil || state.rec.calls[callID] == nil || state.rec.calls[callID].end == nil {
		return
	}
	call := state.rec.calls[callID]
	failed, isError := call.end.Body.(event.ToolError)
	switch {
	case child == "" && isError && strings.HasPrefix(failed.Payload, recorded.BudgetUsedUp):
		state.await(untilTakeover, call.end.Seq-1)
	case child != "" && call.charge != 0:
		state.awaitSent(untilTakeover, call.charge)
		state.await(untilTakeover, call.charge-1)
	case child != "":
		state.await(untilTakeover, call.end.Seq-1)
	}
}

// suspends implements recorded.Inputs.Suspends: it reports whether the next recorded event is suspended. ok is false
// after the end of the recording, or if the recorded order was given up. The caller holds the lock of the run's
// suspension, so suspends must not wait. If the result is false, the agent asks again after each event
// (suspension.recheck).
func (s *session) suspends(run string) (suspends, ok bool) {
	state := s.byID(run)
	if state == nil || isClosed(s.watch.unordered) {
		return false, false
	}
	n := state.position(s.ctx)
	if n >= int64(len(state.rec.events)) {
		return false, false
	}
	_, suspends = state.rec.events[n].Body.(event.Suspended)
	return suspends, true
}

// childBudget implements recorded.Inputs.ChildBudget with the request of the recorded child run.
func (s *session) childBudget(run, callID string) (agent.Budget, agent.ToolChoice, bool) {
	r := s.byID(run)
	if r == nil || r.rec.children[callID] == nil {
		return agent.Budget{}, "", false
	}
	request := r.rec.children[callID].doc.Request
	return agent.Budget(request.Budget), request.ToolChoice, true
}
