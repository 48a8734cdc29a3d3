package transport

import (
	"sync"
	"sync/atomic"
	"time"
)

// idleTimer calls a function at a deadline, or earlier if nothing came from the server for the idle timeout. Its time
// can be paused, while a person is asked.
type idleTimer struct {
	expire func()
	// lastActivity is when the server was last heard from, in ns since started. To record a message is only a
	// store, because check compares the times when the timer fires.
	lastActivity atomic.Int64
	started      time.Time

	mu          sync.Mutex // protects what follows
	timer       *time.Timer
	end         time.Time     // the deadline; each pause moves it
	idleTimeout time.Duration // 0: there is no idle timeout
	pausedAt    time.Time     // zero while the time is not paused
	done        bool          // expire was called, or stop
}

// start starts the timer. It calls expire at end on another goroutine, or at once if end is past.
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

// deadline returns when the timer expires at the latest. Pauses move it.
func (t *idleTimer) deadline() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.end
}

// setIdle sets the idle timeout to d, which counts from now on.
func (t *idleTimer) setIdle(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idleTimeout = d
	t.noteActivity()
	t.resetLocked(time.Now())
}

// noteActivity restarts the idle timeout, because something came from the server.
func (t *idleTimer) noteActivity() { t.lastActivity.Store(int64(time.Since(t.started))) }

// dueLocked returns when the timer expires if nothing more comes from the server.
func (t *idleTimer) dueLocked() time.Time {
	idleEnd := t.started.Add(time.Duration(t.lastActivity.Load()) + t.idleTimeout)
	if t.idleTimeout > 0 && idleEnd.Before(t.end) {
		return idleEnd
	}
	return t.end
}

// resetLocked makes the timer fire when it is due, unless it is paused or done.
func (t *idleTimer) resetLocked(now time.Time) {
	if !t.done && t.pausedAt.IsZero() {
		t.timer.Reset(max(t.dueLocked().Sub(now), 0))
	}
}

// check runs when the timer fires. It calls expire if the timer is due. If something came from the server since the
// timer was set, it sets the timer again. It does nothing if the timer is paused or done.
func (t *idleTimer) check() {
	t.mu.Lock()
	now := time.Now()
	if t.done || !t.pausedAt.IsZero() {
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

// pause stops the time until resume. It must not be called again before resume.
func (t *idleTimer) pause() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer.Stop()
	t.pausedAt = time.Now()
}

// resume lets the time continue after pause, and moves the deadline by the length of the pause. A timer that is done
// does not fire again.
func (t *idleTimer) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.end = t.end.Add(now.Sub(t.pausedAt))
	t.pausedAt = time.Time{}
	t.noteActivity() // the server gets the whole idle timeout again
	t.resetLocked(now)
}

// stop stops the timer for good. expire may be running already.
func (t *idleTimer) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer.Stop()
	t.done = true // so that resume does not start it again
}
