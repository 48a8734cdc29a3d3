package rerun

import (
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

// session runs one document with its children.
type session struct {
	otherModel bool // another model is asked, so nothing is compared and nothing comes from outside
	root       *recording
	log        event.Log
	ctx        context.Context // ends with Run
	end        context.CancelCauseFunc
	drivers    sync.WaitGroup               // everything that observes runs or acts on them, in goroutines of its own
	watch      *watch                       // ends all waits when nothing happens any more
	newAgent   func() (*agent.Agent, error) // makes the agent that continues the runs after a takeover

	mu       sync.Mutex           // protects what follows
	attached chan struct{}        // closed and made anew when there is one more run
	agents   []*agent.Agent       // one for each process that executed the recorded run; the last one executes
	runs     map[string]*runState // by the id of the new run
	order    []*runState          // the same, as they were attached: a parent before its children
}

// runState is a run that is run again.
type runState struct {
	*session
	rec *recording
	id  string

	parent     *runState  // nil for the first run
	comparison comparison // used by the goroutine of drive alone, and read when all of these have ended
	actions    []action   // to come, in order; likewise

	// The session's mutex protects what follows.
	turn       int                      // answers of the model that were given
	refused    int                      // the number of the answer, from 1, before which the conversation was refused last
	claimed    map[int64]bool           // by the number of a recorded event: a new one repeats it
	interrupts map[string]string        // the id of a question in the new run, by that in the recording
	recordedID map[string]string        // the reverse
	sent       map[string]chan struct{} // by call; closed when the call is sent
	childOf    map[string]*runState     // the child runs so far, by call
	repeated   map[string]int           // by call: the number of its events that need not be repeated, because it is sent again
}

// action is something that came from outside of the run.
type action struct {
	after int64 // the number of events that come before it
	do    func(ctx context.Context)
}

// attach returns the state of a run. It starts to observe a child run when that run first needs something. A child
// that the recording does not have gets an empty recording, so that all of its events are differences.
func (s *session) attach(executing record.Executing) *runState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[executing.Run]; r != nil {
		return r
	}
	rec, parent := s.root, s.runs[executing.Parent]
	if parent != nil {
		rec = parent.rec.children[executing.Call]
		if rec == nil {
			rec = &recording{doc: s.root.doc, calls: map[string]*recordedCall{}, children: map[string]*recording{}, inputs: map[string][]byte{}}
		}
	}
	state := &runState{
		session:    s,
		rec:        rec,
		id:         executing.Run,
		parent:     parent,
		childOf:    make(map[string]*runState),
		claimed:    make(map[int64]bool),
		interrupts: make(map[string]string),
		recordedID: make(map[string]string),
		sent:       make(map[string]chan struct{}),
		repeated:   make(map[string]int),
	}
	state.comparison = newComparison(rec.doc.Run.ID, rec.events)
	state.planActions(executing.Parent == "")
	s.runs[executing.Run] = state
	s.order = append(s.order, state)
	if parent != nil {
		parent.childOf[executing.Call] = state
	}
	close(s.attached)
	s.attached = make(chan struct{})
	if executing.Parent != "" {
		s.drivers.Go(func() { _, _ = state.driveRun(state.ctx) }) // its parent, which waits for it, has the error too
	}
	return state
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

// drain ends the agents.
func (s *session) drain() {
	over, stop := context.WithCancel(context.Background())
	stop()
	s.mu.Lock()
	agents := slices.Clone(s.agents)
	s.mu.Unlock()
	for _, a := range agents {
		a.Drain(over)
	}
}

// differences returns those of all runs, the first run first.
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

// await waits until the run has n events, or until ctx ends.
func (r *runState) await(ctx context.Context, n int64) {
	for n > 0 && ctx.Err() == nil && !isClosed(r.watch.unordered) {
		page, err := r.log.After(ctx, r.id, n-1)
		if err == nil && (len(page.Events) > 0 || page.Ended) {
			return
		}
		more := page.More
		if err != nil { // the run has not reached that position yet: wait for its next event
			run, runErr := r.log.Run(ctx, r.id)
			if runErr != nil || run.Last.Terminal() {
				return
			}
			if page, err = r.log.After(ctx, r.id, run.Last.Seq); err != nil {
				return
			}
			if len(page.Events) > 0 {
				continue
			}
			more = page.More
			if more == nil {
				return
			}
		}
		select {
		case <-more:
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

// driveRun observes the run to its end, compares its events, and does what came from outside. An action is done when
// the events before it have been read, in this goroutine. It must therefore not wait for later events of its run.
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
		for len(r.actions) > 0 && r.actions[0].after <= int64(len(events)) {
			next := r.actions[0]
			r.actions = r.actions[1:]
			next.do(ctx)
		}
		if page.More == nil {
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

// timeForTools begins the failure of a call that ended because the run's time for tools was used up.
const timeForTools = "The run's time for tools is used up"

// planActions lists what came from outside, in order: time that passed, takeovers, cancellations, the end of a
// process, and the answers of people. An event shows each of them, and often only afterwards: a cancellation
// first closes what is open, so its action belongs before the first of the closing events (firstCloser). root
// is false for a child run, for which only its own time is planned: everything else came through its parent,
// which passes it on again.
func (r *runState) planActions(root bool) {
	if r.otherModel {
		return
	}
	limit := r.rec.doc.Request.Budget.Seconds
	for i, e := range r.rec.events {
		plan := func(after int64, do func(ctx context.Context)) {
			r.actions = append(r.actions, action{max(after, 1), do})
		}
		_, resolved := replay.InterruptOf(e)
		switch body := e.Body.(type) {
		case event.Budget:
			if body.Limit == "seconds" {
				limit = body.Max
				plan(e.Seq-1, func(ctx context.Context) { r.advance(ctx, e.Seq, body.Used) })
			}
		case event.ToolError:
			if strings.HasPrefix(body.Payload, timeForTools) {
				at := max(limit*4/5, limit-15)
				plan(e.Seq-1, func(ctx context.Context) { r.advance(ctx, e.Seq, at) })
			}
		case event.StepReset:
			if root {
				plan(r.rec.firstCloser(i)-1, func(context.Context) { r.takeOver() })
			}
		case event.Cancelled:
			if root {
				first := r.rec.firstCancelled()
				plan(first-1, func(ctx context.Context) {
					r.awaitSent(ctx, first)
					_ = r.currentAgent().Cancel(ctx, r.id) // an error shows as a stalled run
				})
			}
		case event.RunError:
			if root && isShutdown(body) {
				plan(r.rec.firstCloser(i)-1, func(context.Context) { r.drivers.Go(r.drain) })
			}
		}
		if resolved == "" || !root {
			continue
		}
		if data := r.rec.inputs[resolved]; data != nil {
			plan(e.Seq-1, func(ctx context.Context) { r.answer(ctx, resolved, data) })
		} else if isExpired(e) {
			plan(e.Seq-1, func(ctx context.Context) { r.answer(ctx, resolved, []byte(`{"closed":true}`)) })
		}
	}
	slices.SortStableFunc(r.actions, func(a, b action) int { return int(a.after - b.after) })
}

// answer stores the answer to a question of the recording. An error shows as a stalled run.
func (r *runState) answer(ctx context.Context, recordedID string, data []byte) {
	r.mu.Lock()
	id := r.interrupts[recordedID]
	r.mu.Unlock()
	_ = r.log.AddInput(ctx, r.id, id, data)
}

// isExpired reports whether a question was closed because nobody answered it in time.
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

// advance lets the time of the run reach that many seconds, before the event with the number seq.
func (r *runState) advance(ctx context.Context, seq int64, seconds float64) {
	r.awaitSent(ctx, seq)
	r.currentAgent().AdvanceClock(r.id, time.Duration(seconds*float64(time.Second)))
}

// awaitSent waits until the calls are sent that were in flight at the event with the number seq. Once the run is
// cancelled or its time is used up, they would be refused.
func (r *runState) awaitSent(ctx context.Context, seq int64) {
	r.awaitChildren(ctx, seq)
	if _, suspended := r.rec.events[max(seq-2, 0)].Body.(event.Suspended); suspended {
		return // every call waited for a person, or for an earlier call
	}
	idle := r.watch.idleSignal()
	for id, c := range r.rec.calls {
		wasSent := c.server != "" && r.rec.inFlight(c, seq) && isSent(c.events[0])
		if !wasSent || r.rec.awaitsEarlier(c, seq) {
			continue
		}
		select {
		case <-r.sentSignal(id):
		case <-idle: // it waited for something that the recording does not show
			return
		case <-ctx.Done():
			return
		}
	}
}

// awaitChildren waits until the child runs whose calls were in flight at the event with the number seq, and that
// were cancelled with it, have come to where they were cancelled.
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

// awaitChild waits until a call has started its child run; nil if ctx ends before.
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

// sentSignal returns the channel that is closed when a call is sent.
func (r *runState) sentSignal(callID string) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sent[callID] == nil {
		r.sent[callID] = make(chan struct{})
	}
	return r.sent[callID]
}

// takeOver lets another agent continue the runs, as another process did. The first agent is drained without time,
// so it hands its runs over: the log of the session is in memory, and the agents are durable if the recording has
// a takeover (newAgent). The recorded process may have died instead; the events do not tell.
func (r *runState) takeOver() {
	over, stop := context.WithCancel(context.Background())
	stop()
	r.currentAgent().Drain(over)
	r.unclaim(context.Background())
	next, err := r.newAgent()
	if err != nil {
		return // the run stalls, which is reported
	}
	r.mu.Lock()
	r.agents = append(r.agents, next)
	r.mu.Unlock()
}

// unclaim makes claim return again what was not appended, because another process continues the runs.
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

// position returns how many events the run has.
func (r *runState) position(ctx context.Context) int64 {
	run, err := r.log.Run(ctx, r.id)
	if err != nil {
		return 0
	}
	return run.Last.Seq
}
