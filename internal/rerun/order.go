package rerun

import (
	"context"
	"errors"
	"slices"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/agent/recorded"
	"answerd/internal/agent/replay"
	"answerd/internal/event"
)

// The calls of a turn run concurrently, so the order of their events depends on how long each call takes. A repetition
// takes that order from the recording. Before the agent appends an event of a call, it claims the recorded event that
// the new one repeats, and waits until the new run has all events that were recorded before that one.

// errLeftOpen means that the recorded call has no outcome of its own, because the end of the run closed it.
var errLeftOpen = errors.New("the recorded call was closed by the end of its run")

// recordedInputs returns the functions with which agents take from the recording what they cannot decide by themselves.
func (s *session) recordedInputs() *recorded.Inputs {
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

// awaitOrder implements recorded.Inputs.Order. It waits until the run has all events that were recorded before the
// event that body repeats. It does not stop waiting when ctx ends, because events are appended after a cancellation
// too. It stops when untilTakeover ends, because another process then continues the run. If it returns errLeftOpen, the
// event must not be appended now, because the end of the run will append it. If no recorded event is left that body
// could repeat, it calls awaitUnrecorded.
func (s *session) awaitOrder(ctx, untilTakeover context.Context, _ string, body event.Body) error {
	state := s.runOf(ctx)
	if state == nil {
		return nil
	}
	if start, ok := body.(event.StepStart); ok {
		state.awaitStep(untilTakeover, start)
		return nil
	}
	match := state.claim(event.Event{Body: body})
	if match == nil {
		return state.awaitUnrecorded(ctx, body)
	}
	if _, resolved := replay.InterruptOf(*match); resolved != "" {
		state.awaitParentQuestion(untilTakeover, resolved)
	}
	toolError, _ := match.Body.(event.ToolError)
	closedByEndOfRun := toolError.Payload == event.OpenAtEnd
	if closedByEndOfRun && ctx.Err() != nil && !isClosed(state.watch.unordered) {
		// The run appends this event at its end, after it has waited for all calls. Waiting here would never end.
		return errLeftOpen
	}
	state.await(untilTakeover, match.Seq-1)
	return nil
}

// awaitUnrecorded handles an event that was not recorded. If it is about a child run, the recorded run ended before it,
// so awaitUnrecorded waits until ctx ends, whose cause it returns, or until the recorded order is given up. For any
// other event, which is a difference, it returns nil at once.
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

// awaitStep waits until the run may start the step in start. If the time limit's event was recorded right before this
// step, the step must not start before the new run has that event too.
func (r *runState) awaitStep(untilTakeover context.Context, start event.StepStart) {
	i := slices.IndexFunc(r.rec.events, func(e event.Event) bool {
		recordedStart, ok := e.Body.(event.StepStart)
		return ok && recordedStart.Step == start.Step
	})
	if i <= 0 {
		return
	}
	before := r.rec.events[i-1]
	if b, ok := before.Body.(event.Budget); ok && b.Limit == timeLimit {
		r.await(untilTakeover, before.Seq)
	}
}

// childOf returns the id of the child run whose progress or question b is about, or "" if b is not about a child run.
func childOf(b event.Body) string {
	if p, ok := b.(event.ToolProgress); ok {
		return p.ChildRunID
	}
	asked, _ := replay.InterruptOf(event.Event{Body: b})
	return asked.ChildRunID
}

// claim returns the recorded event that the new event e repeats, or nil if there is none. It returns each recorded
// event only once. If both events ask a question, claim stores the pair of their ids in r.interrupts and r.recordedID.
func (r *runState) claim(e event.Event) *event.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	candidates := r.rec.asked // questions about limits, which belong to no call
	if id := e.CallID(); id != "" {
		if r.rec.calls[id] == nil {
			return nil
		}
		candidates = r.rec.calls[id].events
	}
	match := r.findUnclaimedLocked(e, candidates)
	if match == nil {
		return nil
	}
	r.claimed[match.Seq] = true
	if question, _ := replay.InterruptOf(e); question.ID != "" {
		recordedQuestion, _ := replay.InterruptOf(*match)
		r.recordedID[question.ID] = recordedQuestion.ID
		r.interrupts[recordedQuestion.ID] = question.ID
	}
	return match
}

// findUnclaimedLocked returns the first of the recorded candidates that is not claimed and that e may repeat, or nil. A
// server may ask several questions at once, so among these it prefers the one with the same text. r.mu must be held.
func (r *runState) findUnclaimedLocked(e event.Event, candidates []event.Event) (first *event.Event) {
	question, _ := replay.InterruptOf(e)
	for i := range candidates {
		candidate := &candidates[i]
		if r.claimed[candidate.Seq] || !r.mayRepeatLocked(e, *candidate) {
			continue
		}
		recordedQuestion, _ := replay.InterruptOf(*candidate)
		if question.Message == recordedQuestion.Message { // both are "" if e asks no question
			return candidate
		}
		if first == nil {
			first = candidate
		}
	}
	return first
}

// mayRepeatLocked reports whether the new event e can repeat candidate, a recorded event of the same call, or one of no
// call like e. Two events match if both end the call, or if neither does and they have the same type. If e resolves a
// question, candidate must resolve the same question. If e asks a child run's question, candidate must ask the same
// question of that child. r.mu must be held.
func (r *runState) mayRepeatLocked(e, candidate event.Event) bool {
	_, endsCall := e.EndsCall()
	_, candidateEndsCall := candidate.EndsCall()
	if endsCall != candidateEndsCall {
		return false
	}
	if !endsCall && e.Body.Type() != candidate.Body.Type() {
		return false
	}
	question, resolvedID := replay.InterruptOf(e)
	recordedQuestion, recordedResolvedID := replay.InterruptOf(candidate)
	if resolvedID != "" && r.recordedID[resolvedID] != recordedResolvedID {
		return false
	}
	if question.ChildRunID == "" || len(r.rec.children) == 0 {
		return true
	}
	child := r.runs[question.ChildRunID] // the parent's event has the same question id as the child's
	return child != nil && child.recordedID[question.ID] == recordedQuestion.ID
}

// awaitParentQuestion waits until the run's parent has asked its own readers the question with this id, if the recorded
// parent did so. recordedID is the question's id in the recording. The wait also ends with untilTakeover.
// awaitParentQuestion must be called before the question is resolved, because a parent does not pass on a question that
// is already resolved.
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

// awaitCharge implements recorded.Inputs.Charge. It waits for the position in the recording at which the charge had an
// effect. For a call that the budget refused, that is right before the call's end. For a child run's usage, it is right
// before the event of the limit that the usage reached, or else right before the end of the child's call.
func (s *session) awaitCharge(untilTakeover context.Context, run, callID, child string) {
	state, call := s.endedCall(run, callID)
	if call == nil {
		return
	}
	failure, _ := call.end.Body.(event.ToolError)
	refusedByBudget := strings.HasPrefix(failure.Payload, recorded.BudgetUsedUp)
	switch {
	case child == "" && !refusedByBudget:
		return // the charge had no effect
	case child != "" && call.charge != 0:
		state.awaitSent(untilTakeover, call.charge)
		state.await(untilTakeover, call.charge-1)
	default:
		state.await(untilTakeover, call.end.Seq-1)
	}
}

// endedCall returns the recorded call with this id and the state of the new run that repeats it. It returns nil for
// both if the run is not known, or if the recording has no such call or not its end.
func (s *session) endedCall(run, callID string) (*runState, *recordedCall) {
	state := s.byID(run)
	if state == nil {
		return nil, nil
	}
	call := state.rec.calls[callID]
	if call == nil || call.end == nil {
		return nil, nil
	}
	return state, call
}

// suspends implements recorded.Inputs.Suspends. It reports whether the next recorded event is suspended. ok is false if
// no recorded event is left, or if the recorded order was given up. suspends must not wait, because the agent holds the
// lock of the run's suspension. If suspends is false, the agent asks again after each event (see suspension.recheck).
func (s *session) suspends(run string) (suspends, ok bool) {
	state := s.byID(run)
	if state == nil || isClosed(s.watch.unordered) {
		return false, false
	}
	next := state.position(s.ctx) // the index of the recorded event that comes next
	if next >= int64(len(state.rec.events)) {
		return false, false
	}
	_, suspends = state.rec.events[next].Body.(event.Suspended)
	return suspends, true
}

// childBudget implements recorded.Inputs.ChildBudget. It returns the budget and the tool choice in the recorded child
// run's request. The last result is false if that child run was not recorded.
func (s *session) childBudget(run, callID string) (agent.Budget, agent.ToolChoice, bool) {
	r := s.byID(run)
	if r == nil || r.rec.children[callID] == nil {
		return agent.Budget{}, "", false
	}
	request := r.rec.children[callID].doc.Request
	return agent.Budget(request.Budget), request.ToolChoice, true
}
