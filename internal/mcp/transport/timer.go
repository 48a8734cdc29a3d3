package transport

import (
	"sync"
	"sync/atomic"
	"time"
)

// idleTimer calls expire at a deadline, or earlier if nothing came from the server for the idle timeout. It can be
// paused while a user is asked something.
type idleTimer struct {
	expire func()
	// lastActivity is when something last came from the server, in ns since started. Recording a message only stores
	// this value; check compares the times when the timer fires.
	lastActivity atomic.Int64
	started      time.Time

	mu          sync.Mutex // protects the fields below
	timer       *time.Timer
	end         time.Time     // the deadline; each pause moves it
	idleTimeout time.Duration // 0: no idle timeout
	pauses      int           // calls of PauseTimer without a ResumeTimer yet
	pausedAt    time.Time     // when the first of them was made
	done        bool          // stop or expire was called
}

// start starts the timer. At end it calls expire on another goroutine; if end has passed, it calls expire at once.
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

// Deadline returns when the timer expires at the latest. Each pause moves it.
func (t *idleTimer) Deadline() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.end
}

// SetIdleTimeout makes the timer also expire when nothing has come from the server for d, counted from now.
func (t *idleTimer) SetIdleTimeout(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idleTimeout = d
	t.noteActivity()
	t.resetLocked(time.Now())
}

// noteActivity restarts the idle timeout. Call it when something came from the server.
func (t *idleTimer) noteActivity() { t.lastActivity.Store(int64(time.Since(t.started))) }

// dueLocked returns when the timer expires if nothing more comes from the server. t.mu must be held.
func (t *idleTimer) dueLocked() time.Time {
	idleEnd := t.started.Add(time.Duration(t.lastActivity.Load()) + t.idleTimeout)
	if t.idleTimeout > 0 && idleEnd.Before(t.end) {
		return idleEnd
	}
	return t.end
}

// resetLocked makes the timer fire when it is due, unless it is paused or done. t.mu must be held.
func (t *idleTimer) resetLocked(now time.Time) {
	if !t.done && t.pauses == 0 {
		t.timer.Reset(max(t.dueLocked().Sub(now), 0))
	}
}

// check runs when the timer fires. It calls expire if the timer is due.
func (t *idleTimer) check() {
	if t.finishIfDue() {
		t.expire()
	}
}

// finishIfDue marks the timer as done and returns true if it is due. If something came from the server since the timer
// was set, it sets the timer again. If the timer is paused or done, it does nothing.
func (t *idleTimer) finishIfDue() (isDue bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.done || t.pauses > 0 {
		return false
	}
	if now.Before(t.dueLocked()) {
		t.resetLocked(now)
		return false
	}
	t.done = true
	return true
}

// PauseTimer stops the timer until ResumeTimer was called as often as PauseTimer.
func (t *idleTimer) PauseTimer() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pauses++
	if t.pauses == 1 {
		t.timer.Stop()
		t.pausedAt = time.Now()
	}
}

// ResumeTimer ends one pause. After the last one, it continues the timer and moves the deadline by the length of the
// pause. If the timer is done, it does not fire again.
func (t *idleTimer) ResumeTimer() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pauses--
	if t.pauses > 0 {
		return
	}
	now := time.Now()
	t.end = t.end.Add(now.Sub(t.pausedAt))
	t.noteActivity() // the server gets the whole idle timeout again
	t.resetLocked(now)
}

// stop stops the timer for good. expire may already be running.
func (t *idleTimer) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer.Stop()
	t.done = true // so that ResumeTimer does not start it again
}
