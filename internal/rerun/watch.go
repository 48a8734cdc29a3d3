package rerun

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// watch notices when a session's runs append no events any more. That can happen because a run that differs from the
// recorded one may wait for an event that never comes.
type watch struct {
	events    atomic.Int64  // number of events that all runs have appended so far
	unordered chan struct{} // closed when the recorded order is given up; await and similar methods then return at once
	giveUp    func()        // closes unordered; may be called more than once
	stuck     chan struct{} // closed when the runs append nothing even without the recorded order

	mu   sync.Mutex    // protects the field below
	idle chan struct{} // closed and replaced when no event has come for a quarter of the time stall
}

// newWatch returns a watch that does not watch yet. See run.
func newWatch() *watch {
	w := &watch{unordered: make(chan struct{}), stuck: make(chan struct{}), idle: make(chan struct{})}
	w.giveUp = sync.OnceFunc(func() { close(w.unordered) })
	return w
}

// idleSignal returns a channel that is closed when no event has come for a quarter of the stall time (see run).
func (w *watch) idleSignal() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idle
}

// ticks is the number of intervals in the stall time. The watch counts intervals rather than time, so that a pause of
// the whole machine, during which no run can append anything, counts as one interval.
const ticks = 20

// run watches until ctx ends. After the time stall without an event, it gives up the recorded order. After the same
// time again, it closes stuck, and driveRun cancels the first run. After the third time, it calls end with ErrStalled.
func (w *watch) run(ctx context.Context, stall time.Duration, end context.CancelCauseFunc) {
	ticker := time.NewTicker(stall / ticks)
	defer ticker.Stop()
	seen := int64(0)   // number of events at the last tick
	quietTicks := 0    // number of ticks since the last event or step
	steps := []func(){ // one step after each stall time
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

// ErrStalled means that a run appended no more events, and did not end when it was cancelled.
var ErrStalled = errors.New("the run does not go on, and does not end")
