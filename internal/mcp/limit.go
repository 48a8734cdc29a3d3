package mcp

import (
	"sync"
	"time"
)

// limit is the time that an exchange has. It stands still while a person is asked.
type limit struct {
	mu    sync.Mutex // protects what follows
	timer *time.Timer
	end   time.Time     // when the timer goes off; zero while held
	left  time.Duration // while held
}

// start calls over at deadline, on a goroutine of its own unless that is past.
func (l *limit) start(deadline time.Time, over func()) {
	left := time.Until(deadline)
	if left <= 0 {
		over()
	}
	l.timer, l.end = time.AfterFunc(left, over), deadline
}

// hold stops the time until resume. Whoever holds it resumes it, once.
func (l *limit) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer.Stop() {
		l.left, l.end = time.Until(l.end), time.Time{}
	}
}

// resume lets the time go on from where it was held, unless it was over by then.
func (l *limit) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end.IsZero() {
		l.end = time.Now().Add(l.left)
		l.timer.Reset(l.left)
	}
}

// stop ends it for good.
func (l *limit) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
	l.end = time.Now() // a resume that comes late does nothing
}
