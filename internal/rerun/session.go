package rerun

import (
	"context"
	"fmt"
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
	options Options
	root    *recording
	log     event.Log
	ctx     context.Context // ends with Run
	end     context.CancelFunc
	drivers sync.WaitGroup // everything that observes runs or acts on them, in goroutines of its own

	mu     sync.Mutex // protects what follows
	agents []*agent.Agent
	runs   map[string]*runState // by the id of the new run
	order  []*runState
}

// runState is a run that is run again.
type runState struct {
	*session
	rec *recording
	id  string

	turn       int // answers of the model that were given; the session's mutex protects it
	comparison comparison
	interrupts map[string]string        // the id of a question in the new run, by that in the recording
	actions    []action                 // to come, in order
	sent       map[string]chan struct{} // by call; closed when the call is sent; the session's mutex protects the map
	unordered  chan struct{}            // closed when the recorded order cannot be kept
}

// action is something that came from outside of the run.
type action struct {
	after int64 // the number of events that come before it
	do    func(ctx context.Context)
}

// attach returns the state of a run. It starts to observe a child run when that run first needs something.
func (s *session) attach(e record.Executing) *runState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[e.Run]; r != nil {
		return r
	}
	rec := s.root
	if parent := s.runs[e.Parent]; parent != nil {
		if rec = parent.rec.children[e.Call]; rec == nil {
			rec = &recording{doc: s.root.doc, calls: map[string]*recordedCall{}, children: map[string]*recording{}, inputs: map[string][]byte{}}
		}
	}
	r := &runState{session: s, rec: rec, id: e.Run, interrupts: make(map[string]string), sent: make(map[string]chan struct{}), unordered: make(chan struct{})}
	r.comparison = newComparison(rec)
	r.planActions(e.Parent == "")
	s.runs[e.Run] = r
	s.order = append(s.order, r)
	if e.Parent != "" {
		s.drivers.Go(func() { _, _ = r.drive(r.ctx) }) // its parent, which waits for it, has the error too
	}
	return r
}

// of returns the state of the run that ctx belongs to.
func (s *session) of(ctx context.Context) *runState {
	e, ok := record.RunOf(ctx)
	if !ok {
		return nil
	}
	if r := s.attach(e); r != nil {
		return r
	}
	return nil
}

// byID returns the state of a run, or nil.
func (s *session) byID(id string) *runState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[id]
}

// current returns the agent that executes the runs.
func (s *session) current() *agent.Agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agents[len(s.agents)-1]
}

// close ends the runs that have not ended, and waits for all goroutines.
func (s *session) close() {
	s.drain()
	s.end() // runs of a durable agent are handed over, so that they never end in the log
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
	if s.options.Model != nil {
		return nil
	}
	for _, r := range s.order {
		out = append(out, r.comparison.differences...)
	}
	return out
}

// awaitTurn waits until everything has happened that happened before a call went on, so that calls that are
// made at the same time go on in the recorded order.
func (s *session) awaitTurn(ctx context.Context, run, callID string) {
	r := s.byID(run)
	if r == nil || s.options.Model != nil {
		return
	}
	// Calls that are sent wait there, because they have to be charged in call order first.
	if c := r.rec.calls[callID]; c != nil && len(c.events) > 0 && !isSent(c.events[0]) {
		r.await(ctx, c.events[0].Seq-1)
	}
}

// outOfBudget begins the failure of a call that no budget was left for. The agent makes such a call wait for
// earlier ones itself.
const outOfBudget = "The run's budget is used up"

// childBudget returns what was left for a child run when it was started.
func (s *session) childBudget(run, callID string) (agent.Budget, agent.ToolChoice, bool) {
	r := s.byID(run)
	if r == nil || s.options.Model != nil || r.rec.children[callID] == nil {
		return agent.Budget{}, "", false
	}
	recorded := r.rec.children[callID].doc.Request
	return agent.Budget(recorded.Budget), recorded.ToolChoice, true
}

// isSent reports whether the first event of a call after it was complete comes from its server, or from a
// decision that follows those about earlier calls anyway.
func isSent(e event.Event) bool {
	switch b := e.Body.(type) {
	case event.ApprovalRequired:
		return false
	case event.ToolError:
		return strings.HasPrefix(b.Payload, outOfBudget) || b.Kind != "denied" && b.Kind != "unknown_tool" && b.Kind != "invalid_arguments"
	}
	return true
}

// await waits until the run has n events, or until ctx ends.
func (r *runState) await(ctx context.Context, n int64) {
	for n > 0 && ctx.Err() == nil && !isClosed(r.unordered) {
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
			if more = page.More; more == nil {
				return
			}
		}
		select {
		case <-more:
		case <-r.unordered:
		case <-ctx.Done():
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// drive observes the run to its end, compares its events, and does what came from outside. A run that does nothing
// goes on without the recorded order; one that still does nothing is cancelled, and given up if that does not
// end it. Another model takes its time, which only ctx bounds.
func (r *runState) drive(ctx context.Context) (events []event.Event, _ error) {
	timer := time.NewTimer(r.options.Stall)
	defer timer.Stop()
	cancelled := false
	for {
		page, err := r.log.After(ctx, r.id, int64(len(events)))
		if err != nil {
			return nil, fmt.Errorf("read a run: %w", err)
		}
		for _, e := range page.Events {
			events = append(events, e)
			r.observe(e)
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
		timer.Reset(r.options.Stall)
		select {
		case <-page.More:
		case <-timer.C:
			switch {
			case r.options.Model != nil:
			case !isClosed(r.unordered): // the run has taken another way, so its calls do not wait for each other any more
				close(r.unordered)
			case !cancelled:
				cancelled = true
				r.comparison.stall()
				_ = r.current().Cancel(ctx, r.id) // an error shows as a run that does not end
			default:
				return nil, ErrStalled
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// observe compares an event, and notes which question of the recording it asks.
func (r *runState) observe(e event.Event) {
	if r.options.Model != nil {
		return
	}
	recorded := r.comparison.add(e, r.renamed)
	if recorded == nil {
		return
	}
	if asked, _ := replay.InterruptOf(e); asked.ID != "" {
		if before, _ := replay.InterruptOf(*recorded); before.ID != "" {
			r.interrupts[before.ID] = asked.ID
		}
	}
}

// renamed returns text with the ids of the recorded runs in place of the new ones.
func (r *runState) renamed(text string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.order {
		text = strings.ReplaceAll(text, o.id, o.rec.doc.Run.ID)
	}
	return text
}

// timeForTools begins the failure of a call that ended because the run's time for tools was used up.
const timeForTools = "The run's time for tools is used up"

// planActions lists what came from outside, in order.
func (r *runState) planActions(root bool) {
	if r.options.Model != nil {
		return
	}
	limit := r.rec.doc.Request.Budget.Seconds
	for i, e := range r.rec.events {
		plan := func(after int64, do func(ctx context.Context)) {
			r.actions = append(r.actions, action{max(after, 1), do})
		}
		_, resolved := replay.InterruptOf(e)
		switch b := e.Body.(type) {
		case event.Budget:
			if b.Limit == "seconds" {
				limit = b.Max
				plan(e.Seq-1, func(ctx context.Context) { r.advance(ctx, e.Seq, b.Used) })
			}
		case event.ToolError:
			if strings.HasPrefix(b.Payload, timeForTools) {
				at := max(limit*4/5, limit-15)
				plan(e.Seq-1, func(ctx context.Context) { r.advance(ctx, e.Seq, at) })
			}
		case event.StepReset:
			if root {
				plan(r.rec.firstCloser(i)-1, func(context.Context) { r.takeOver() })
			}
		case event.Cancelled:
			if root {
				first := r.rec.firstCloser(i)
				plan(first-1, func(ctx context.Context) {
					r.awaitSent(ctx, first)
					_ = r.current().Cancel(ctx, r.id) // an error shows as a stalled run
				})
			}
		case event.RunError:
			if root && isShutdown(b) {
				plan(r.rec.firstCloser(i)-1, func(context.Context) { r.drivers.Go(r.drain) })
			}
		}
		if resolved == "" || !root {
			continue
		}
		if data := r.rec.inputs[resolved]; data != nil {
			plan(e.Seq-1, func(ctx context.Context) { _ = r.log.AddInput(ctx, r.id, r.interrupts[resolved], data) }) // likewise
		} else if isExpired(e) {
			plan(e.Seq-1, func(ctx context.Context) {
				_ = r.log.AddInput(ctx, r.id, r.interrupts[resolved], []byte(`{"closed":true}`))
			})
		}
	}
	slices.SortStableFunc(r.actions, func(a, b action) int { return int(a.after - b.after) })
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
	r.current().AdvanceClock(r.id, time.Duration(seconds*float64(time.Second)))
}

// awaitSent waits until the calls are sent that were in flight at the event with the number seq. Once the run is
// cancelled or its time is used up, they would be refused. It waits no longer than a run may do nothing.
func (r *runState) awaitSent(ctx context.Context, seq int64) {
	if _, suspended := r.rec.events[max(seq-2, 0)].Body.(event.Suspended); suspended {
		return // every call waited for a person, or for an earlier call
	}
	ctx, stop := context.WithTimeout(ctx, r.options.Stall)
	defer stop()
	for id, c := range r.rec.calls {
		if !r.rec.inFlight(c, seq) || !isSent(c.events[0]) || c.server == "" || r.rec.awaitsEarlier(c, seq) {
			continue
		}
		select {
		case <-r.sentSignal(id):
		case <-ctx.Done():
			return
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

// takeOver lets another agent continue the runs, as another process did.
func (r *runState) takeOver() {
	over, stop := context.WithCancel(context.Background())
	stop()
	r.current().Drain(over)
	next, err := r.newAgent()
	if err != nil {
		return // the run stalls, which is reported
	}
	r.mu.Lock()
	r.agents = append(r.agents, next)
	r.mu.Unlock()
}
