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

// repetition returns what makes the runs repeat the recording.
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

// awaitOrder implements recorded.Inputs.Order: it waits until the run has the events that were recorded before the one
// that body repeats. An event about a child that was not recorded waits until the order of events no longer matters,
// because the recorded run ended before it.
func (s *session) awaitOrder(ctx, kept context.Context, _ string, body event.Body) error {
	state := s.runOf(ctx)
	if state == nil {
		return nil
	}
	if start, ok := body.(event.StepStart); ok {
		state.awaitStep(kept, start)
		return nil
	}
	recorded := state.claim(event.Event{Body: body})
	if recorded == nil {
		return state.awaitUnrecorded(ctx, body)
	}
	if _, resolved := replay.InterruptOf(*recorded); resolved != "" {
		state.awaitRelayed(kept, resolved)
	}
	if wasOpenAtEnd(recorded) && ctx.Err() != nil && !isClosed(state.watch.unordered) {
		return errLeftOpen // the end of the run, which closes the call, waits for all calls
	}
	state.await(kept, recorded.Seq-1)
	return nil
}

// awaitUnrecorded waits before an event that was not recorded: if it is about a child, until the order of events
// no longer matters.
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

// awaitStep waits until a step may start. Only the run's time may come before it.
func (r *runState) awaitStep(kept context.Context, start event.StepStart) {
	for i, e := range r.rec.events {
		if b, ok := e.Body.(event.StepStart); !ok || b.Step != start.Step || i == 0 {
			continue
		}
		if b, ok := r.rec.events[i-1].Body.(event.Budget); ok && b.Limit == "seconds" {
			r.await(kept, e.Seq-1)
		}
		return
	}
}

// childOf returns the child run that an event tells of, whose events decide whether it comes; "" for none.
func childOf(b event.Body) string {
	if p, ok := b.(event.ToolProgress); ok {
		return p.ChildRunID
	}
	asked, _ := replay.InterruptOf(event.Event{Body: b})
	return asked.ChildRunID
}

// claim returns the recorded event that a new one repeats, nil if there is none. Each is returned once. The first
// recorded event of the same kind and call is taken, but a question with the same text comes before it: a server
// may have asked several at the same time. For a question, claim notes which new id stands for which recorded one.
func (r *runState) claim(e event.Event) *event.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	asked, resolved := replay.InterruptOf(e)
	_, ends := e.EndsCall()

	list := r.rec.asked
	if id := e.CallID(); id != "" {
		if r.rec.calls[id] == nil {
			return nil
		}
		list = r.rec.calls[id].events
	}

	var found *event.Event
	for i := range list {
		was := &list[i]
		if r.claimed[was.Seq] {
			continue
		}
		wasAsked, wasResolved := replay.InterruptOf(*was)
		_, ended := was.EndsCall()
		isSameKind := ends == ended && (ends || was.Body.Type() == e.Body.Type())
		resolvesOther := resolved != "" && r.recordedID[resolved] != wasResolved
		if !isSameKind || resolvesOther {
			continue
		}
		if asked.ChildRunID != "" && len(r.rec.children) > 0 { // the ids of both runs are the same
			if child := r.runs[asked.ChildRunID]; child == nil || child.recordedID[asked.ID] != wasAsked.ID {
				continue
			}
		}
		if found == nil {
			found = was
		}
		if asked.Message == wasAsked.Message {
			found = was
			break
		}
	}
	if found == nil {
		return nil
	}
	r.claimed[found.Seq] = true
	if asked.ID != "" {
		was, _ := replay.InterruptOf(*found)
		r.recordedID[asked.ID], r.interrupts[was.ID] = was.ID, asked.ID
	}
	return found
}

// awaitRelayed waits until the parent of a run has asked a question of the run, if it did so in the recording. If
// the question was resolved before, it would not be asked any more.
func (r *runState) awaitRelayed(kept context.Context, recordedID string) {
	if r.parent == nil {
		return
	}
	for i := range r.parent.rec.events {
		e := &r.parent.rec.events[i]
		if asked, _ := replay.InterruptOf(*e); asked.ID == recordedID {
			r.parent.await(kept, e.Seq)
			return
		}
	}
}

// awaitCharge implements recorded.Inputs.Charge.
func (s *session) awaitCharge(kept context.Context, run, callID, child string) {
	state := s.byID(run)
	if state == nil || state.rec.calls[callID] == nil || state.rec.calls[callID].end == nil {
		return
	}
	call := state.rec.calls[callID]
	failed, isError := call.end.Body.(event.ToolError)
	switch {
	case child == "" && isError && strings.HasPrefix(failed.Payload, recorded.BudgetUsedUp):
		state.await(kept, call.end.Seq-1)
	case child != "" && call.charge != 0:
		state.awaitSent(kept, call.charge)
		state.await(kept, call.charge-1)
	case child != "":
		state.await(kept, call.end.Seq-1)
	}
}

// suspends implements recorded.Inputs.Suspends. It is called with the lock of the run's suspension held, so it must
// not wait. If it says no, the agent asks again when more has happened (suspension.recheck).
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

// childBudget implements recorded.Inputs.ChildBudget.
func (s *session) childBudget(run, callID string) (agent.Budget, agent.ToolChoice, bool) {
	r := s.byID(run)
	if r == nil || r.rec.children[callID] == nil {
		return agent.Budget{}, "", false
	}
	recorded := r.rec.children[callID].doc.Request
	return agent.Budget(recorded.Budget), recorded.ToolChoice, true
}
