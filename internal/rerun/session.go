package rerun

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/record"
	"answerd/internal/agent/replay"
	"answerd/internal/event"
)

// session executes the run in one document again, together with its child runs.
type session struct {
	otherModel bool // Options.Model is set: events are not compared, and driveRun performs no actions
	root       *recording
	log        event.Log
	ctx        context.Context // ends when Run returns, or earlier
	cancel     context.CancelCauseFunc
	drivers    sync.WaitGroup               // goroutines that observe runs or act on them
	watch      *watch                       // ends all waits for the recorded order if no run appends events any more
	newAgent   func() (*agent.Agent, error) // makes the first agent, and one after each takeover

	mu       sync.Mutex           // protects the fields below
	attached chan struct{}        // closed and replaced when a run is added to runs
	agents   []*agent.Agent       // one per process that executed the recorded run; the last one is active
	runs     map[string]*runState // by the new run's id
	order    []*runState          // the same in the order of attach, so that a parent precedes its children
}

// runState is the state of one new run: the session's first run or a child run.
type runState struct {
	*session
	rec *recording // the recording of the run that this one repeats
	id  string     // the new run's id

	parent     *runState  // nil for the first run
	comparison comparison // used only by driveRun until all goroutines in session.drivers have ended
	actions    []action   // actions still to be performed, in order; used only by driveRun

	// The session's mutex protects the fields below.
	turnsTaken int                      // number of recorded answers that takeTurn has returned
	refused    bool                     // takeTurn has refused the conversation in the next turn
	claimed    map[int64]bool           // numbers of the recorded events that claim has returned
	interrupts map[string]string        // from a recorded question id to the new one
	recordedID map[string]string        // from a new question id to the recorded one
	sent       map[string]chan struct{} // by call id; the channel is closed when the call is sent
	childOf    map[string]*runState     // child runs so far, by the id of the call that started them
	repeated   map[string]int           // by call id: number of the call's events that were repeated before it was sent again
}

// action is an influence from outside of a run: an answer, a cancellation, a takeover, or time that passes.
type action struct {
	after int64 // do is called once the run has at least this number of events
	do    func(ctx context.Context)
}

// attach returns the state of a run, after creating it at the first call for that run. For a new child run, it starts
// the goroutine that drives it (see driveRun). For the first run, that is up to Run. A child run that was not recorded
// gets an empty recording, so that all its events are differences. attach wakes goroutines in awaitChild.
func (s *session) attach(executing record.Executing) *runState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[executing.Run]; r != nil {
		return r
	}
	parent := s.runs[executing.Parent] // nil for the first run
	rec := s.root
	if parent != nil {
		rec = cmp.Or(parent.rec.children[executing.Call], newEmptyRecording(s.root.doc))
	}
	state := s.newRunState(executing.Run, rec, parent)
	isChild := executing.Parent != ""
	state.planActions(isChild)
	s.runs[executing.Run] = state
	s.order = append(s.order, state)
	if parent != nil {
		parent.childOf[executing.Call] = state
	}
	close(s.attached)
	s.attached = make(chan struct{})
	if isChild {
		s.drivers.Go(func() { _, _ = state.driveRun(state.ctx) }) // an error also ends the parent, which waits for the child
	}
	return state
}

// newRunState returns the state of the new run called id, which repeats rec. parent is nil for the first run.
func (s *session) newRunState(id string, rec *recording, parent *runState) *runState {
	return &runState{
		session:    s,
		rec:        rec,
		id:         id,
		parent:     parent,
		comparison: newComparison(rec.doc.Run.ID, rec.events),
		childOf:    make(map[string]*runState),
		claimed:    make(map[int64]bool),
		interrupts: make(map[string]string),
		recordedID: make(map[string]string),
		sent:       make(map[string]chan struct{}),
		repeated:   make(map[string]int),
	}
}

// runOf returns the state of the run that ctx belongs to, or nil if ctx belongs to none.
func (s *session) runOf(ctx context.Context) *runState {
	if executing, ok := record.RunOf(ctx); ok {
		return s.attach(executing)
	}
	return nil
}

// byID returns the state of the new run called id, or nil if it is not known.
func (s *session) byID(id string) *runState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[id]
}

// currentAgent returns the agent that currently executes the runs.
func (s *session) currentAgent() *agent.Agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agents[len(s.agents)-1]
}

// close ends all runs that have not ended, and waits for all goroutines.
func (s *session) close() {
	s.watch.giveUp()
	s.drain()
	s.cancel(nil) // needed because a durable agent hands its runs over, so that the log never has their end
	s.drivers.Wait()
}

// drain stops all agents at once, and waits for them.
func (s *session) drain() {
	s.mu.Lock()
	agents := slices.Clone(s.agents)
	s.mu.Unlock()
	for _, a := range agents {
		drainNow(a)
	}
}

// drainNow stops an agent without giving its runs time to end. If the agent is durable, it hands its runs over.
// Otherwise they end with an error.
func drainNow(a *agent.Agent) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	a.Drain(ended)
}

// differences returns the differences of all runs, a parent's before its children's, or nil if another model was asked.
func (s *session) differences() (out []Difference) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.otherModel {
		return nil
	}
	for _, r := range s.order {
		out = append(out, r.comparison.differences...)
	}
	return out
}

// await waits until the run has at least eventCount events. It also returns when waiting is pointless: the run or ctx
// has ended, the log fails, or the recorded order was given up (watch.unordered).
func (r *runState) await(ctx context.Context, eventCount int64) {
	for eventCount > 0 && ctx.Err() == nil && !isClosed(r.watch.unordered) {
		run, err := r.log.Run(ctx, r.id)
		if err != nil || run.Last.Seq >= eventCount || run.Last.Terminal() {
			return
		}
		page, err := r.log.After(ctx, r.id, run.Last.Seq)
		if err != nil {
			return
		}
		if len(page.Events) > 0 {
			continue // the run got events after r.log.Run
		}
		select {
		case <-page.More: // not nil, because the run has not ended and all its events were read
		case <-r.watch.unordered:
		case <-ctx.Done():
		}
	}
}

// isClosed reports whether c is closed. c must be a channel on which nothing is sent.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// driveRun reads the run's events until it ends, compares them with the recording, and performs the actions. It returns
// all events. It performs an action in this goroutine as soon as it has read the events before it, so an action must
// not wait for later events of the run. The error is that of the log, or the cause with which ctx ended.
func (r *runState) driveRun(ctx context.Context) (events []event.Event, _ error) {
	stuck := r.watch.stuck // nil once it was handled
	for {
		page, err := r.log.After(ctx, r.id, int64(len(events)))
		if err != nil {
			return nil, fmt.Errorf("read a run: %w", err)
		}
		for _, e := range page.Events {
			events = append(events, e)
			r.watch.events.Add(1)
			r.compareEvent(e)
		}
		if page.Ended {
			r.comparison.finish()
			return events, nil
		}
		r.performActions(ctx, int64(len(events)))
		if page.More == nil { // the log has more events than fit into a page
			continue
		}
		select {
		case <-page.More:
		case <-stuck:
			stuck = nil
			if r.parent == nil {
				r.comparison.stall()
				_ = r.currentAgent().Cancel(ctx, r.id) // if it fails, the run does not end and watch reports ErrStalled
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// performActions performs the actions that are due once the run has eventCount events, and removes them from r.actions.
func (r *runState) performActions(ctx context.Context, eventCount int64) {
	for len(r.actions) > 0 && r.actions[0].after <= eventCount {
		next := r.actions[0]
		r.actions = r.actions[1:]
		next.do(ctx)
	}
}

// compareEvent compares a new event with the recording, unless another model was asked.
func (r *runState) compareEvent(e event.Event) {
	if r.otherModel {
		return
	}
	r.mu.Lock()
	recordedID := maps.Clone(r.recordedID)
	r.mu.Unlock()
	r.comparison.add(e, recordedID, r.withRecordedIDs)
}

// withRecordedIDs replaces the ids of the session's runs in text by the recorded ids.
func (r *runState) withRecordedIDs(text string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, run := range r.order {
		text = strings.ReplaceAll(text, run.id, run.rec.doc.Run.ID)
	}
	return text
}

// timeForTools is the beginning of a call's error message if the run's time for tools was used up
// (internal/agent/call.go).
const timeForTools = "The run's time for tools is used up"

// planActions sets r.actions from the recording. For a child run, it plans only the passing of time. All other actions
// reached the recorded child through its parent, and the new parent passes them on in the same way.
func (r *runState) planActions(isChild bool) {
	if r.otherModel {
		return
	}
	r.planTime()
	if !isChild {
		for i := range r.rec.events {
			r.planEnd(i)
			r.planAnswer(r.rec.events[i])
		}
	}
	slices.SortStableFunc(r.actions, func(a, b action) int { return cmp.Compare(a.after, b.after) })
}

// plan adds an action that is performed once the run has the events recorded before event seq, and at least one event.
func (r *runState) plan(seq int64, do func(ctx context.Context)) {
	r.actions = append(r.actions, action{after: max(seq-1, 1), do: do})
}

// planTime plans how the run's time passes: before the time limit's event, and before the end of each call for which
// the time for tools was used up.
func (r *runState) planTime() {
	limit := r.rec.doc.Request.Budget.Seconds
	for _, e := range r.rec.events {
		switch body := e.Body.(type) {
		case event.Budget:
			if body.Limit == timeLimit {
				limit = body.Max
				r.plan(e.Seq, func(ctx context.Context) { r.advance(ctx, e.Seq, body.Used) })
			}
		case event.ToolError:
			if strings.HasPrefix(body.Payload, timeForTools) {
				toolTime := max(limit*4/5, limit-15) // maxReserve of package budget
				r.plan(e.Seq, func(ctx context.Context) { r.advance(ctx, e.Seq, toolTime) })
			}
		}
	}
}

// planEnd plans the takeover, the cancellation or the end of the process that the event at index i shows, if any. The
// run then first closes everything that is open, so the action must come before the first of these closing events.
func (r *runState) planEnd(i int) {
	switch body := r.rec.events[i].Body.(type) {
	case event.StepReset:
		r.plan(r.rec.firstClosingEvent(i), func(context.Context) { r.takeOver() })
	case event.Cancelled:
		first := r.rec.firstCancelled()
		r.plan(first, func(ctx context.Context) {
			r.awaitSent(ctx, first)
			_ = r.currentAgent().Cancel(ctx, r.id) // if it fails, the run is reported as stalled
		})
	case event.RunError:
		if isShutdown(body) {
			r.plan(r.rec.firstClosingEvent(i), func(context.Context) { r.drivers.Go(r.drain) })
		}
	}
}

// planAnswer plans a person's answer, or the end of the time for an answer, if e resolves a question because of that.
func (r *runState) planAnswer(e event.Event) {
	_, resolved := replay.InterruptOf(e)
	if resolved == "" {
		return
	}
	data := r.rec.inputs[resolved]
	if data == nil && isExpired(e) {
		data = []byte(`{"closed":true}`)
	}
	if data != nil {
		r.plan(e.Seq, func(ctx context.Context) { r.answer(ctx, resolved, data) })
	}
}

// answer adds a person's recorded answer to the log, as input for the new question that repeats the question
// recordedID. If the log rejects it, the run keeps waiting for the answer and is reported as stalled.
func (r *runState) answer(ctx context.Context, recordedID string, data []byte) {
	r.mu.Lock()
	id := r.interrupts[recordedID]
	r.mu.Unlock()
	_ = r.log.AddInput(ctx, r.id, id, data)
}

// isExpired reports whether e closed a question because the time for an answer was over.
func isExpired(e event.Event) bool {
	switch b := e.Body.(type) {
	case event.ApprovalResolved:
		return b.Reason == agent.ErrExpired.Error()
	case event.BudgetResolved:
		return b.Reason == agent.ErrExpired.Error()
	}
	return false
}

// isShutdown reports whether a run ended because its process was shut down.
func isShutdown(b event.RunError) bool { return b.Code == "server_shutdown" }

// advance sets the run's clock to the given number of seconds, which causes event seq. It first waits until the run has
// sent the calls that were in flight then.
func (r *runState) advance(ctx context.Context, seq int64, seconds float64) {
	r.awaitSent(ctx, seq)
	r.currentAgent().AdvanceClock(r.id, time.Duration(seconds*float64(time.Second)))
}

// awaitSent waits until the new run has sent all calls that were in flight at the recorded event seq. It is called
// before the run is cancelled or its time is used up, because the agent would not send them afterwards. It stops
// waiting when the runs are idle, because the recording does not show every reason why a call was not sent.
func (r *runState) awaitSent(ctx context.Context, seq int64) {
	r.awaitChildren(ctx, seq)
	previous := r.rec.events[max(seq-2, 0)] // event seq is at index seq-1
	if _, suspended := previous.Body.(event.Suspended); suspended {
		return // the recorded run was suspended, so every call was waiting for a person or for an earlier call
	}
	idle := r.watch.idleSignal()
	for id, c := range r.rec.calls {
		wasSent := c.server != "" && r.rec.inFlight(c, seq) && isSent(c.events[0])
		if !wasSent || r.rec.awaitsEarlier(c, seq) {
			continue
		}
		select {
		case <-r.sentSignal(id):
		case <-idle:
			return
		case <-ctx.Done():
			return
		}
	}
}

// awaitChildren waits until the run's children have got as far as the recorded ones before the run is cancelled. It
// considers only children whose call was in flight at event seq and that were cancelled in the recording.
func (r *runState) awaitChildren(ctx context.Context, seq int64) {
	for id, rec := range r.rec.children {
		if c := r.rec.calls[id]; c == nil || !r.rec.inFlight(c, seq) {
			continue
		}
		if _, cancelled := rec.terminalEvent().(event.Cancelled); !cancelled {
			continue
		}
		child := r.awaitChild(ctx, id)
		if child == nil {
			return
		}
		first := rec.firstCancelled()
		child.await(ctx, first-1)
		child.awaitSent(ctx, first)
	}
}

// awaitChild waits until a call has started its child run, and returns the child's state. It returns nil if ctx ends or
// the recorded order is given up first.
func (r *runState) awaitChild(ctx context.Context, callID string) *runState {
	for {
		r.mu.Lock()
		child, more := r.childOf[callID], r.attached
		r.mu.Unlock()
		if child != nil {
			return child
		}
		select {
		case <-more:
		case <-r.watch.unordered:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// sentSignal returns a channel that tools.Call closes when the call is sent.
func (r *runState) sentSignal(callID string) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sent[callID] == nil {
		r.sent[callID] = make(chan struct{})
	}
	return r.sent[callID]
}

// takeOver stops the current agent and lets a new one continue the runs, as another process did in the recording. The
// current agent hands its runs over through the log, because newAgent makes durable agents if the recording has a
// takeover. Whether the recorded process was stopped or had crashed does not matter: the events are the same.
func (r *runState) takeOver() {
	drainNow(r.currentAgent())
	r.unclaim(context.Background())
	next, err := r.newAgent()
	if err != nil {
		return // without an agent, the run does not continue and is reported as stalled
	}
	r.mu.Lock()
	r.agents = append(r.agents, next)
	r.mu.Unlock()
}

// unclaim releases the recorded events that the stopped agent had claimed but whose repetition it had not appended, so
// that the next agent can claim and append them.
func (s *session) unclaim(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.order {
		position := r.position(ctx)
		maps.DeleteFunc(r.claimed, func(seq int64, _ bool) bool { return seq > position })
	}
}

// position returns the number of events that the run has, or 0 if the log cannot be read.
func (r *runState) position(ctx context.Context) int64 {
	run, err := r.log.Run(ctx, r.id)
	if err != nil {
		return 0
	}
	return run.Last.Seq
}
