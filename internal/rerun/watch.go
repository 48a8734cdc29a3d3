package rerun

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// watch notices when the runs of a session append no events any more. A run that differs from the recorded one may
// wait for an event that will never come.
type watch struct {
	events    atomic.Int64  // how many events all runs have appended so far
	unordered chan struct{} // closed when the recorded order is given up: await and its like return at once from then on
	giveUp    func()        // closes unordered; may be called several times
	stuck     chan struct{} // closed when the runs append nothing although the recorded order was given up

	mu   sync.Mutex    // protects the field below
	idle chan struct{} // closed and replaced when no event has come for a quarter of the time stall
}

func newWatch() *watch {
	w := &watch{unordered: make(chan struct{}), stuck: make(chan struct{}), idle: make(chan struct{})}
	w.giveUp = sync.OnceFunc(func() { close(w.unordered) })
	return w
}

// idleSignal returns a channel that is closed when no event has come for a quarter of the time stall (see run).
func (w *watch) idleSignal() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idle
}

// ticks is how many intervals the time stall has. Intervals are counted, and not the time, so that a pause of the
// whole machine, during which no run can append anything, counts as one interval.
const ticks = 20

// run watches until ctx ends. After the time stall without an event it gives up the recorded order, after another
// stall it closes stuck, on which driveRun cancels the first run, and after a third it calls end with ErrStalled.
func (w *watch) run(ctx context.Context, stall time.Duration, end context.CancelCauseFunc) {
	ticker := time.NewTicker(stall / ticks)
	defer ticker.Stop()
	seen := int64(0)   // how many events the runs had at the last tick
	quietTicks := 0    // how many ticks have come without an event
	steps := []func(){ // one after each time stall
		w.giveUp,
		func() { close(w.stuck) },
		func() { end(ErrStalled) },
	}
	for len(steps) > 0 {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if n := w.events.Load(); n != seen {
			seen, quietTicks = n, 0
			continue
		}
		quietTicks++
		if quietTicks == ticks/4 {
			w.mu.Lock()
			close(w.idle)
			w.idle = make(chan struct{})
			w.mu.Unlock()
		}
		if quietTicks == ticks {
			steps[0]()
			steps, quietTicks = steps[1:], 0
		}
	}
}

// ErrStalled means that a run did nothing any more, and did not end when it was cancelled.
var ErrStalled = errors.New("the run does not go on, and does not end")
