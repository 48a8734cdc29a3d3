package agent

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"answerd/internal/event"
)

// maxElicitations is how many questions of servers may be open in a run at a time. Each is
// up to 72 KiB, and every suspended event has all of them. Approvals are bounded by the
// calls of a turn.
const maxElicitations = 16

// waits is what a run waits for. It knows which calls of the turn go on and which
// questions are open; when each of those calls has one, nothing happens any more until a
// person answers, and the run is suspended.
type waits struct {
	run *run

	asking atomic.Int32 // how many are open, for who has no time to wait for mu
	still  atomic.Bool  // the run is suspended, for the same

	// mu protects what follows. It is held across the appends of questions, answers and
	// suspended, so that they come in the order of what they say.
	mu        sync.Mutex
	turn      context.Context // that of the calls
	calls     map[string]bool // that go on, by id; true are those that wait for others
	open      []*interrupt    // in the order in which they were asked
	suspended chan struct{}   // closed when the run goes on; nil while it does
}

// begin takes the calls of a turn, all of them before the first asks anything. When turn
// ends they are given up.
func (w *waits) begin(turn context.Context, calls []*call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turn, w.calls = turn, make(map[string]bool, len(calls))
	for _, c := range calls {
		w.calls[c.CallID] = false
	}
}

// end takes one of them away; those that are left may all be waiting.
func (w *waits) end(callID string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.calls, callID)
	return w.suspendLocked()
}

// behind waits for move to close moved, on behalf of a call that goes on only when one
// before it does. The error is ctx's, or the log's.
func (w *waits) behind(ctx context.Context, callID string, moved <-chan struct{}) error {
	w.mu.Lock()
	var err error
	select {
	case <-moved:
	default:
		w.calls[callID] = true
		err = w.suspendLocked()
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-moved:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// move closes moved. In the same moment nobody waits behind another any more: who only
// seems to wait would make the run seem suspended.
func (w *waits) move(moved chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.calls {
		w.calls[id] = false
	}
	close(moved)
}

// ask puts a question to the owner of the run. errTooMany, or the log's error.
func (w *waits) ask(ctx context.Context, i *interrupt) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	elicitations := 0
	for _, o := range w.open {
		if o.Kind == event.KindElicitation {
			elicitations++
		}
	}
	if i.Kind == event.KindElicitation && elicitations == maxElicitations {
		return errTooMany
	}
	w.addLocked(i)
	// The turn may be over meanwhile; then this is answered at once, and not an error.
	if err := w.run.out.Append(context.WithoutCancel(ctx), i.Body()); err != nil {
		w.forgetLocked(i)
		return err
	}
	w.wakeLocked()
	return w.suspendLocked()
}

// pass puts a question in the log with an answer that is known: nobody is there.
func (w *waits) pass(ctx context.Context, i *interrupt, v verdict) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	if err := w.run.out.Append(ctx, i.Body()); err != nil {
		return err
	}
	return w.run.out.Append(ctx, i.resolution(v))
}

// resolve puts the answer in the log, and the run goes on. Whatever became of ctx: what
// was opened is closed. What the log does not take is not answered: the run may have been
// parked in this very moment, and has to hear of its answer when it goes on.
func (w *waits) resolve(ctx context.Context, i *interrupt, v verdict) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.run.out.Append(context.WithoutCancel(ctx), i.resolution(v)); err != nil {
		return err
	}
	w.forgetLocked(i)
	w.wakeLocked()
	return w.suspendLocked()
}

// attach waits for the answer to a question that is in the log already, and open.
func (w *waits) attach(i *interrupt) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addLocked(i)
	return w.suspendLocked()
}

func (w *waits) addLocked(i *interrupt) {
	w.open = append(w.open, i)
	if w.asking.Add(1) == 1 {
		w.run.agent.linger(w.run)
	}
}

// forgetLocked closes the question.
func (w *waits) forgetLocked(i *interrupt) {
	for at, o := range w.open {
		if o == i {
			w.open = append(w.open[:at], w.open[at+1:]...)
			break
		}
	}
	if w.asking.Add(-1) == 0 {
		w.run.agent.expectReader(w.run)
	}
}

// suspendLocked says that the run waits, where nothing else goes on in it.
func (w *waits) suspendLocked() error {
	if w.suspended != nil || len(w.calls) == 0 || len(w.open) == 0 || w.turn.Err() != nil {
		return nil
	}
	waiting := make(map[string]bool, len(w.open))
	all := make([]event.Interrupt, len(w.open))
	for n, i := range w.open {
		waiting[i.CallID], all[n] = true, i.Interrupt
	}
	for id, behind := range w.calls {
		if !behind && !waiting[id] {
			return nil
		}
	}
	w.run.clock.hold()
	if !w.run.out.Suspended() { // as it is when the run was taken over while it waited
		if err := w.run.out.Append(context.WithoutCancel(w.turn), event.Suspended{Interrupts: all}); err != nil {
			w.run.clock.resume()
			return err
		}
	}
	w.suspended = make(chan struct{})
	w.still.Store(true)
	w.run.agent.settle() // for who waits until nothing goes on
	if w.parksLocked() {
		w.run.leave(errParked)
	}
	return nil
}

// parksLocked reports whether a run that waits needs no process meanwhile: all of it is
// in the log, and nothing is to be done now.
func (w *waits) parksLocked() bool {
	if w.run.job == nil || !w.run.agent.Durable {
		return false
	}
	for _, i := range w.open {
		if i.HeldOpen || len(i.answer) > 0 || i.left() <= 0 {
			return false
		}
	}
	return true
}

// until is when the first of the open questions expires; zero if there is none.
func (w *waits) until() (first time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range w.open {
		if t := time.UnixMilli(i.ExpiresAt); first.IsZero() || t.Before(first) {
			first = t
		}
	}
	return first
}

// openIDs are the ids of the open questions.
func (w *waits) openIDs() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make(map[string]bool, len(w.open))
	for _, i := range w.open {
		ids[i.ID] = true
	}
	return ids
}

// wakeLocked notes that an event came which ends the suspension.
func (w *waits) wakeLocked() {
	if w.suspended != nil {
		close(w.suspended)
		w.suspended = nil
		w.still.Store(false)
		w.run.clock.resume()
	}
}

// resumed is closed when the run goes on.
func (w *waits) resumed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.suspended != nil {
		return w.suspended
	}
	goes := make(chan struct{})
	close(goes)
	return goes
}
