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

// suspension is what a run waits for. It knows which calls of the turn go on and which
// questions are open; when each of those calls has one, nothing happens any more until a
// person answers, and the run is suspended.
type suspension struct {
	run *run

	openCount   atomic.Int32 // how many are open, for who has no time to wait for mu
	isSuspended atomic.Bool  // the run is suspended, for the same

	// mu protects what follows. It is held across the appends of questions, answers and
	// suspended, so that they come in the order of what they say.
	mu       sync.Mutex
	turnCtx  context.Context // that of the calls
	inFlight map[string]bool // that go on, by id; true are those that wait for others
	open     []*interrupt    // in the order in which they were asked
	resumed  chan struct{}   // closed when the run goes on; nil while it does
}

// beginTurn takes the calls of a turn, all of them before the first asks anything. When turn
// ends they are given up.
func (w *suspension) beginTurn(turn context.Context, calls []*call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turnCtx, w.inFlight = turn, make(map[string]bool, len(calls))
	for _, c := range calls {
		w.inFlight[c.CallID] = false
	}
}

// endCall takes one of them away; those that are left may all be waiting.
func (w *suspension) endCall(callID string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.inFlight, callID)
	return w.suspendIfBlockedLocked()
}

// waitTurn waits for move to close moved, on behalf of a call that goes on only when one
// before it does. The error is ctx's, or the log's.
func (w *suspension) waitTurn(ctx context.Context, callID string, moved <-chan struct{}) error {
	w.mu.Lock()
	var err error
	select {
	case <-moved:
	default:
		w.inFlight[callID] = true
		err = w.suspendIfBlockedLocked()
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

// releaseTurn closes moved. In the same moment nobody waits behind another any more: who only
// seems to wait would make the run seem suspended.
func (w *suspension) releaseTurn(moved chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.inFlight {
		w.inFlight[id] = false
	}
	close(moved)
}

// openInterrupt puts a question to the owner of the run. errTooMany, or the log's error.
func (w *suspension) openInterrupt(ctx context.Context, i *interrupt) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	elicitations := 0
	for _, o := range w.open {
		if o.Kind == event.KindElicitation {
			elicitations++
		}
	}
	if i.Kind == event.KindElicitation && elicitations == maxElicitations {
		return errTooManyOpen
	}
	w.addOpenLocked(i)
	// The turn may be over meanwhile; then this is answered at once, and not an error.
	if err := w.run.out.Append(context.WithoutCancel(ctx), i.Body()); err != nil {
		w.removeOpenLocked(i)
		return err
	}
	w.resumeLocked()
	return w.suspendIfBlockedLocked()
}

// recordUnanswered puts a question in the log with an answer that is known: nobody is there.
func (w *suspension) recordUnanswered(ctx context.Context, i *interrupt, v resolution) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	if err := w.run.out.Append(ctx, i.Body()); err != nil {
		return err
	}
	return w.run.out.Append(ctx, i.resolvedEvent(v))
}

// resolveInterrupt puts the answer in the log, and the run goes on. Whatever became of ctx: what
// was opened is closed. What the log does not take is not answered: the run may have been
// parked in this very moment, and has to hear of its answer when it goes on.
func (w *suspension) resolveInterrupt(ctx context.Context, i *interrupt, v resolution) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.run.out.Append(context.WithoutCancel(ctx), i.resolvedEvent(v)); err != nil {
		return err
	}
	w.removeOpenLocked(i)
	w.resumeLocked()
	return w.suspendIfBlockedLocked()
}

// reopenInterrupt waits for the answer to a question that is in the log already, and open.
func (w *suspension) reopenInterrupt(i *interrupt) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addOpenLocked(i)
	return w.suspendIfBlockedLocked()
}

func (w *suspension) addOpenLocked(i *interrupt) {
	w.open = append(w.open, i)
	if w.openCount.Add(1) == 1 {
		w.run.agent.holdGrace(w.run)
	}
}

// removeOpenLocked closes the question.
func (w *suspension) removeOpenLocked(i *interrupt) {
	for at, o := range w.open {
		if o == i {
			w.open = append(w.open[:at], w.open[at+1:]...)
			break
		}
	}
	if w.openCount.Add(-1) == 0 {
		w.run.agent.awaitReader(w.run)
	}
}

// suspendIfBlockedLocked says that the run waits, where nothing else goes on in it.
func (w *suspension) suspendIfBlockedLocked() error {
	if w.resumed != nil || len(w.inFlight) == 0 || len(w.open) == 0 || w.turnCtx.Err() != nil {
		return nil
	}
	waiting := make(map[string]bool, len(w.open))
	all := make([]event.Interrupt, len(w.open))
	for n, i := range w.open {
		waiting[i.CallID], all[n] = true, i.Interrupt
	}
	for id, behind := range w.inFlight {
		if !behind && !waiting[id] {
			return nil
		}
	}
	w.run.clock.Pause()
	if !w.run.out.Suspended() { // as it is when the run was taken over while it waited
		if err := w.run.out.Append(context.WithoutCancel(w.turnCtx), event.Suspended{Interrupts: all}); err != nil {
			w.run.clock.Resume()
			return err
		}
	}
	w.resumed = make(chan struct{})
	w.isSuspended.Store(true)
	w.run.agent.signalIdle() // for who waits until nothing goes on
	if w.canParkLocked() {
		w.run.relinquish(errParked)
	}
	return nil
}

// canParkLocked reports whether a run that waits needs no process meanwhile: all of it is
// in the log, and nothing is to be done now.
func (w *suspension) canParkLocked() bool {
	if w.run.job == nil || !w.run.agent.Durable {
		return false
	}
	for _, i := range w.open {
		if i.HeldOpen || len(i.answer) > 0 || i.timeLeft() <= 0 {
			return false
		}
	}
	return true
}

// earliestExpiry is when the first of the open questions expires; zero if there is none.
func (w *suspension) earliestExpiry() (first time.Time) {
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
func (w *suspension) openIDs() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make(map[string]bool, len(w.open))
	for _, i := range w.open {
		ids[i.ID] = true
	}
	return ids
}

// resumeLocked notes that an event came which ends the suspension.
func (w *suspension) resumeLocked() {
	if w.resumed != nil {
		close(w.resumed)
		w.resumed = nil
		w.isSuspended.Store(false)
		w.run.clock.Resume()
	}
}

// resumeSignal is closed when the run goes on.
func (w *suspension) resumeSignal() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.resumed != nil {
		return w.resumed
	}
	goes := make(chan struct{})
	close(goes)
	return goes
}
