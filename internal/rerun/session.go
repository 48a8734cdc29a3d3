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

// session runs the run of one document again, with its children.
type session struct {
	otherModel bool // Options.Model is asked: events are not compared, and driveRun performs no actions
	root       *recording
	log        event.Log
	ctx        context.Context // ends with Run
	end        context.CancelCauseFunc
	drivers    sync.WaitGroup               // the goroutines that observe runs or act on them
	watch      *watch                       // ends all waits for the recorded order when no run appends events any more
	newAgent   func() (*agent.Agent, error) // makes the agent that continues the runs after a takeover

	mu       sync.Mutex           // protects what follows
	attached chan struct{}        // closed and replaced when a run is added to runs
	agents   []*agent.Agent       // one for each process that executed the recorded run; the last one executes
	runs     map[string]*runState // by the id of the new run
	order    []*runState          // the same, as they were attached: a parent before its children
}

// runState is the state of one new run: the first run of the session or a child.
type runState struct {
	*session
	rec *recording // of the run that this one repeats
	id  string     // of the new run

	parent     *runState  // nil for the first run
	comparison comparison // used by driveRun alone; may be read when all goroutines of session.drivers have ended
	actions    []action   // those that driveRun has not performed yet, in order; used by driveRun alone

	// The session's mutex protects what follows.
	turn       int                      // how many answers of the model the run has been given
	refused    int                      // the number, from 1, of the last answer before which the conversation was refused; 0 if none
	claimed    map[int64]bool           // the numbers of recorded events that an event of the new run repeats
	interrupts map[string]string        // ids of questions in the new run, by those in the recording
	recordedID map[string]string        // ids of questions in the recording, by those in the new run
	sent       map[string]chan struct{} // by call id; closed when the call is sent
	childOf    map[string]*runState     // the child runs so far, by the id of their call
	repeated   map[string]int           // by call id: how many of the call's events were repeated before it was sent again
}

// action is something that came from outside of a run: an answer, a cancellation, a takeover, or time that passed.
type action struct {
	after int64 // performed when the run has at least this number of events
	do    func(ctx context.Context)
}

// attach returns the state of a run, and creates it when the run first needs one. With the state of a child run it
// starts the goroutine that drives the child (driveRun); the caller does that for the first run. A child that the
// recording does not have gets an empty recording, so that all of its events are differences. Goroutines that wait for
// the run to be attached are woken by s.attached.
func (s *session) attach(executing record.Executing) *runState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[executing.Run]; r != nil {
		return r
	}
	rec, parent := s.root, s.runs[executing.Parent]
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

// newRunState returns the state of a new run with that id, which repeats rec. parent is nil for the first run.
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

// runOf returns the state of the run that ctx belongs to; nil if it belongs to none.
func (s *session) runOf(ctx context.Context) *runState {
	e, ok := record.RunOf(ctx)
	if !ok {
		return nil
	}
	return s.attach(e)
}

// byID returns the state of a run, or nil.
func (s *session) byID(id string) *runState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[id]
}

// currentAgent returns the agent that executes the runs.
func (s *session) currentAgent() *agent.Agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agents[len(s.agents)-1]
}

// close ends the runs that have not ended, and waits for all goroutines.
func (s *session) close() {
	s.watch.giveUp()
	s.drain()
	s.end(nil) // runs of a durable agent are handed over, so that they never end in the log
	s.drivers.Wait()
}

// drain stops all agents without time for their runs to end, and waits for them.
func (s *session) drain() {
	s.mu.Lock()
	agents := slices.Clone(s.agents)
	s.mu.Unlock()
	for _, a := range agents {
		drainNow(a)
	}
}

// drainNow stops an agent at once. Its runs are handed over if it is durable; otherwise they end with an error.
func drainNow(a *agent.Agent) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	a.Drain(ended)
}

// differences returns the differences of all runs, those of a parent before those of its children.
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

// await waits until the run has at least n events. It also returns if that cannot be waited for any more: the run has
// ended, ctx has ended, the log fails, or the recorded order was given up (watch.unordered).
func (r *runState) await(ctx context.Context, n int64) {
	for n > 0 && ctx.Err() == nil && !isClosed(r.watch.unordered) {
		run, err := r.log.Run(ctx, r.id)
		if err != nil || run.Last.Seq >= n || run.Last.Terminal() {
			return
		}
		page, err := r.log.After(ctx, r.id, run.Last.Seq)
		if err != nil {
			return
		}
		if len(page.Events) > 0 {
			continue // the run has got events since it was read
		}
		select {
		case <-page.More: // not nil: the run had not ended, and there is no event after its last one
		case <-r.watch.unordered:
		case <-ctx.Done():
		}
	}
}

// isClosed reports whether a channel that carries no values is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// driveRun reads the events of the run to its end, compares them with the recording, and performs the actions. It
// returns all events. An action is performed in this goroutine as soon as the events before it have been read, so it
// must not wait for later events of the run. The error is that of the log, or the cause with which ctx ended.
func (r *runState) driveRun(ctx context.Context) (events []event.Event, _ error) {
	stuck := r.watch.stuck
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
				_ = r.currentAgent().Cancel(ctx, r.id) // an error shows as a run that does not end
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// performActions performs the actions that are due when the run has a number of events, and removes them from
// r.actions.
func (r *runState) performActions(ctx context.Context, eventCount int64) {
	for len(r.actions) > 0 && r.actions[0].after <= eventCount {
		next := r.actions[0]
		r.actions = r.actions[1:]
		next.do(ctx)
	}
}

// compareEvent compares an event with the recording.
func (r *runState) compareEvent(e event.Event) {
	if r.otherModel {
		return
	}
	r.mu.Lock()
	recordedID := maps.Clone(r.recordedID)
	r.mu.Unlock()
	r.comparison.add(e, recordedID, r.withRecordedIDs)
}

// withRecordedIDs returns text with the ids of the recorded runs in place of the new ones.
func (r *runState) withRecordedIDs(text string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.order {
		text = strings.ReplaceAll(text, o.id, o.rec.doc.Run.ID)
	}
	return text
}

// timeForTools begins the failure of a call that ended because the run's time for tools was used up
// (internal/agent/call.go).
const timeForTools = "The run's time for tools is used up"

// planActions sets r.actions from the recording. Only the time of a child run is planned: all other actions reached the
// recorded child through its parent, and the new parent passes them on in the same way.
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
	slices.SortStableFunc(r.actions, func(a, b action) int { return int(a.after - b.after) })
}

// plan adds an action for when the run has the recorded events before the one with the number seq.
func (r *runState) plan(seq int64, do func(ctx context.Context)) {
	r.actions = append(r.actions, action{max(seq-1, 1), do})
}

// planTime plans that the time of the run passes: before the event of the time limit, and before calls end because the
// time for tools was used up.
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

// planEnd plans the takeover, the cancellation or the end of the process that the event at index i shows. A run first
// closes what is open, so the action belongs before the first of the closing events.
func (r *runState) planEnd(i int) {
	switch body := r.rec.events[i].Body.(type) {
	case event.StepReset:
		r.plan(r.rec.firstClosingEvent(i), func(context.Context) { r.takeOver() })
	case event.Cancelled:
		first := r.rec.firstCancelled()
		r.plan(first, func(ctx context.Context) {
			r.awaitSent(ctx, first)
			_ = r.currentAgent().Cancel(ctx, r.id) // an error shows as a stalled run
		})
	case event.RunError:
		if isShutdown(body) {
			r.plan(r.rec.firstClosingEvent(i), func(context.Context) { r.drivers.Go(r.drain) })
		}
	}
}

// planAnswer plans the answer of a person, or the end of the time for an answer, if e resolves a question because of
// it.
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

// answer adds the recorded answer of a person to the log, as input for the new question that repeats the question
// recordedID. If the log refuses it, the run waits for the answer and is reported as stalled.
func (r *runState) answer(ctx context.Context, recordedID string, data []byte) {
	r.mu.Lock()
	id := r.interrupts[recordedID]
	r.mu.Unlock()
	_ = r.log.AddInput(ctx, r.id, id, data)
}

// isExpired reports whether e closed a question because the time for an answer had passed.
func isExpired(e event.Event) bool {
	switch b := e.Body.(type) {
	case event.ApprovalResolved:
		return b.Reason == agent.ErrExpired.Error()
	case event.BudgetResolved:
		return b.Reason == agent.ErrExpired.Error()
	}
	return false
}

// isShutdown reports whether a run ended because its process did.
func isShutdown(b event.RunError) bool { return b.Code == "server_shutdown" }

// advance sets the clock of the run to a number of seconds, from which the event with the number seq follows.
func (r *runState) advance(ctx context.Context, seq int64, seconds float64) {
	r.awaitSent(ctx, seq)
	r.currentAgent().AdvanceClock(r.id, time.Duration(seconds*float64(time.Second)))
}

// awaitSent waits until the new run has sent all calls that were in flight at the recorded event with the number seq.
// It is used before the run is cancelled or its time is used up: from then on the agent would refuse to send them.
// awaitSent gives up when the runs are idle, because the recording does not show every reason why a call was not sent.
func (r *runState) awaitSent(ctx context.Context, seq int64) {
	r.awaitChildren(ctx, seq)
	before := r.rec.events[max(seq-2, 0)] // the event with the number seq is at index seq-1
	if _, suspended := before.Body.(event.Suspended); suspended {
		return // The recorded run was suspended: every call waited for a person or for an earlier call.
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

// awaitChildren delays the cancellation of the run until its children have got as far as the recorded ones had. It
// waits only for children whose call was in flight at the event with the number seq and which the recording shows as
// cancelled.
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

// awaitChild waits until a call has started its child run, and returns the state of the child. It returns nil if ctx
// ends or the recorded order is given up before.
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

// sentSignal returns the channel that tools.Call closes when the call is sent.
func (r *runState) sentSignal(callID string) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sent[callID] == nil {
		r.sent[callID] = make(chan struct{})
	}
	return r.sent[callID]
}

// takeOver lets a new agent continue the runs, as another process did in the recording. The current agent hands its
// runs over through the log, because newAgent makes durable agents if the recording has a takeover. Whether the
// recorded process was stopped or had died makes no difference to the events.
func (r *runState) takeOver() {
	drainNow(r.currentAgent())
	r.unclaim(context.Background())
	next, err := r.newAgent()
	if err != nil {
		return // Without an agent the run does not continue, and is reported as stalled.
	}
	r.mu.Lock()
	r.agents = append(r.agents, next)
	r.mu.Unlock()
}

// unclaim allows claim to return those recorded events again whose repetition the stopped agent had claimed but not
// appended: the next agent will append them.
func (s *session) unclaim(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.order {
		n := r.position(ctx)
		for seq := range r.claimed {
			if seq > n {
				delete(r.claimed, seq)
			}
		}
	}
}

// position returns how many events the run has, or 0 if the log cannot be read.
func (r *runState) position(ctx context.Context) int64 {
	run, err := r.log.Run(ctx, r.id)
	if err != nil {
		return 0
	}
	return run.Last.Seq
}
