package transport

import (
	"sync"
	"sync/atomic"
	"time"
)

// idleTimer ends a request at its deadline, and when the server was silent for too long. Both
// stand still while a person is asked.
type idleTimer struct {
	expire func()
	// lastActivity is when the server was last heard from, in ns since started. A message costs no
	// more than to store it: the timer compares when it fires.
	lastActivity atomic.Int64
	started      time.Time

	mu     sync.Mutex // protects what follows
	timer  *time.Timer
	end    time.Time
	idle   time.Duration // longest silence; 0: any
	paused time.Time     // since when the time stands still; zero: it runs
	done   bool
}

// start calls expire at end, on a goroutine of its own unless end is past.
func (t *idleTimer) start(end time.Time, expire func()) {
	t.expire = expire
	t.end = end
	t.started = time.Now()
	remaining := end.Sub(t.started)
	if remaining <= 0 {
		expire()
		t.done = true
	}
	t.timer = time.AfterFunc(remaining, t.check)
}

// deadline returns when the time is over at the latest.
func (t *idleTimer) deadline() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.end
}

// setIdle makes a silence of d end the time, too.
func (t *idleTimer) setIdle(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle = d
	t.noteActivity()
	t.resetLocked(time.Now())
}

// noteActivity notes that the server was heard from.
func (t *idleTimer) noteActivity() { t.lastActivity.Store(int64(time.Since(t.started))) }

// dueLocked returns when the time is over if the server stays silent.
func (t *idleTimer) dueLocked() time.Time {
	silent := t.started.Add(time.Duration(t.lastActivity.Load()) + t.idle)
	if t.idle > 0 && silent.Before(t.end) {
		return silent
	}
	return t.end
}

func (t *idleTimer) resetLocked(now time.Time) {
	if !t.done && t.paused.IsZero() {
		t.timer.Reset(max(t.dueLocked().Sub(now), 0))
	}
}

// check runs when the timer fires. It ends the request, or sets the timer again if the server has
// sent something meanwhile.
func (t *idleTimer) check() {
	t.mu.Lock()
	now := time.Now()
	if t.done || !t.paused.IsZero() {
		t.mu.Unlock()
		return
	}
	if now.Before(t.dueLocked()) {
		t.resetLocked(now)
		t.mu.Unlock()
		return
	}
	t.done = true
	t.mu.Unlock()
	t.expire()
}

// pause stops the time until resume, which is called once for each pause.
func (t *idleTimer) pause() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer.Stop()
	t.paused = time.Now()
}

// resume lets the time continue from where it was paused, unless it was over by then.
func (t *idleTimer) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.end = t.end.Add(now.Sub(t.paused))
	t.paused = time.Time{}
	// The server has its full idle time again from here on.
	t.noteActivity()
	t.resetLocked(now)
}

// stop ends the timer without calling expire.
func (t *idleTimer) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer.Stop()
	t.done = true // a later resume does nothing
}
