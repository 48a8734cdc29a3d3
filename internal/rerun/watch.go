package rerun

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// watch notices when no run of a session does anything any more. A run that has taken another way than the
// recorded one may wait for an event that does not come.
type watch struct {
	events    atomic.Int64  // of all runs so far
	unordered chan struct{} // closed when the recorded order cannot be kept, or need not be
	giveUp    func()        // closes it, once
	stuck     chan struct{} // closed when the runs do nothing without the recorded order either

	mu   sync.Mutex    // protects the field below
	idle chan struct{} // closed and made anew when nothing has happened for a fraction of the time
}

func newWatch() *watch {
	w := &watch{unordered: make(chan struct{}), stuck: make(chan struct{}), idle: make(chan struct{})}
	w.giveUp = sync.OnceFunc(func() { close(w.unordered) })
	return w
}

// idleSignal returns a channel that is closed when nothing has happened for a fraction of the time.
func (w *watch) idleSignal() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idle
}

// ticks is into how many parts the time is divided in which nothing happens. Each is waited for on its own, so
// that a machine that stands still for a while does not look like runs that do.
const ticks = 20

// run watches until ctx ends. When nothing has happened for the time stall, the runs continue without the recorded
// order; after as long again the first run is cancelled, and after as long again it is given up with ErrStalled.
func (w *watch) run(ctx context.Context, stall time.Duration, end context.CancelCauseFunc) {
	ticker := time.NewTicker(stall / ticks)
	defer ticker.Stop()
	seen, quiet := int64(0), 0
	steps := []func(){w.giveUp, func() { close(w.stuck) }, func() { end(ErrStalled) }}
	for len(steps) > 0 {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if n := w.events.Load(); n != seen {
			seen, quiet = n, 0
			continue
		}
		quiet++
		if quiet == ticks/4 {
			w.mu.Lock()
			close(w.idle)
			w.idle = make(chan struct{})
			w.mu.Unlock()
		}
		if quiet == ticks {
			steps[0]()
			steps, quiet = steps[1:], 0
		}
	}
}

// ErrStalled means that a run did nothing any more, and did not end when it was cancelled.
var ErrStalled = errors.New("the run does not go on, and does not end")
