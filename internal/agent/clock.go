package agent

import (
	"sync"
	"time"
)

// clock ends a run when its seconds are used up. It stands still while the run waits for
// a person and for nothing else. The zero clock never ends anything.
type clock struct {
	mu    sync.Mutex // protects what follows
	timer *time.Timer
	end   time.Time     // when the timer goes off; zero while held
	left  time.Duration // while held
}

// start calls over after so many seconds; 0 is never.
func (c *clock) start(seconds float64, over func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if seconds > 0 {
		left := time.Duration(seconds * float64(time.Second))
		c.timer, c.end = time.AfterFunc(left, over), time.Now().Add(left)
	}
}

// hold stops the clock until resume.
func (c *clock) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil && c.timer.Stop() {
		c.left, c.end = time.Until(c.end), time.Time{}
	}
}

// resume lets it go on from where it was held.
func (c *clock) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil && c.end.IsZero() {
		c.end = time.Now().Add(c.left)
		c.timer.Reset(c.left)
	}
}

// stop ends it for good.
func (c *clock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}
