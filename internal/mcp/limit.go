package mcp

import (
	"sync"
	"sync/atomic"
	"time"
)

// limit is the time that an exchange has: until its end, and between two signs of life.
// Both stand still while a person is asked.
type limit struct {
	over func()
	// life is when the last sign of life came. A message costs no more than this: the
	// timer finds out when it goes off.
	life atomic.Int64 // in ns since begun
	stir time.Time    // when life began to count

	mu    sync.Mutex // protects what follows
	timer *time.Timer
	end   time.Time     // of it all
	idle  time.Duration // longest silence; 0: any
	held  time.Time     // since when it stands still; zero: it doesn't
	done  bool
}

// start calls over at end, on a goroutine of its own unless that is past.
func (l *limit) start(end time.Time, over func()) {
	l.over, l.end, l.stir = over, end, time.Now()
	left := end.Sub(l.stir)
	if left <= 0 {
		over()
		l.done = true
	}
	l.timer = time.AfterFunc(left, l.look)
}

// between makes a silence of idle the end, too.
func (l *limit) between(idle time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = idle
	l.touch()
	l.armLocked(time.Now())
}

// touch notes a sign of life.
func (l *limit) touch() { l.life.Store(int64(time.Since(l.stir))) }

// dueLocked is when the time is over, as far as is known.
func (l *limit) dueLocked() time.Time {
	if quiet := l.stir.Add(time.Duration(l.life.Load()) + l.idle); l.idle > 0 && quiet.Before(l.end) {
		return quiet
	}
	return l.end
}

func (l *limit) armLocked(now time.Time) {
	if !l.done && l.held.IsZero() {
		l.timer.Reset(max(l.dueLocked().Sub(now), 0))
	}
}

// look is called by the timer.
func (l *limit) look() {
	l.mu.Lock()
	now := time.Now()
	if l.done || !l.held.IsZero() {
		l.mu.Unlock()
		return
	}
	if now.Before(l.dueLocked()) {
		l.armLocked(now)
		l.mu.Unlock()
		return
	}
	l.done = true
	l.mu.Unlock()
	l.over()
}

// hold stops the time until resume. Whoever holds it resumes it, once.
func (l *limit) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
	l.held = time.Now()
}

// resume lets the time go on from where it was held, unless it was over by then.
func (l *limit) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.end = l.end.Add(now.Sub(l.held))
	l.held = time.Time{}
	// To be answered is a sign of life, too: the server has all of its silence again.
	l.touch()
	l.armLocked(now)
}

// stop ends it for good.
func (l *limit) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
	l.done = true // a resume that comes late does nothing
}
