package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"answerd/internal/event"
)

// maxReserve bounds the time that is kept for the summing-up turn.
const maxReserve = 15 * time.Second

// clock is the seconds of one run. They end in two steps, so that a run which used
// them up can still say what it has: tools may work until the reserve is reached, a
// fifth of the seconds and 15 s at most; the model may speak to the end. Without a
// limit nothing happens.
type clock struct {
	run   context.Context         // ends with errSeconds when the seconds are over
	tools context.Context         // within run; ends with errToolTime when the reserve is reached
	end   context.CancelCauseFunc // of both

	mu      sync.Mutex // protects what follows; held while a mark is reached
	marks   []mark     // still to come, in order
	used    time.Duration
	since   time.Time   // when used was right; the clock goes on since then
	paused  int         // who waits for a person; the clock stands still unless it is 0
	timer   *time.Timer // to the next mark; nil where there is none
	stopped bool
}

// mark is something that happens once so much time is used.
type mark struct {
	at    time.Duration
	reach func()
}

// startClock starts the clock of a run. It must be stopped.
func startClock(ctx context.Context, seconds float64, out *event.Writer) *clock {
	c := &clock{since: time.Now()}
	c.run, c.end = context.WithCancelCause(ctx)
	if c.tools = c.run; seconds <= 0 {
		return c
	}
	var endTools context.CancelCauseFunc
	c.tools, endTools = context.WithCancelCause(c.run)
	limit := time.Duration(seconds * float64(time.Second))
	tell := func(used time.Duration) {
		err := out.Append(ctx, event.Budget{Limit: "seconds", Used: used.Seconds(), Max: limit.Seconds()})
		if err != nil && !errors.Is(err, event.ErrEnded) {
			c.end(err)
		}
	}
	near := limit / 5 * 4
	c.marks = []mark{
		{near, func() { tell(near) }},
		{max(near, limit-maxReserve), func() { endTools(errToolTime) }},
		{limit, func() { tell(limit); c.end(errSeconds) }},
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armLocked()
	return c
}

// pause stops the clock, for as long as the run waits for a person, until resume is
// called.
func (c *clock) pause() (resume func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused++; c.paused == 1 {
		c.used += time.Since(c.since)
		c.disarmLocked()
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.paused--; c.paused == 0 {
			c.since = time.Now()
			c.armLocked()
		}
	}
}

// stop ends the clock and its contexts. Once it returns, no mark is reached any more.
func (c *clock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	c.disarmLocked()
	c.end(nil)
}

// tick reaches the marks whose time has come.
func (c *clock) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped || c.paused > 0 {
		return // the timer had fired already
	}
	for now := c.used + time.Since(c.since); len(c.marks) > 0 && c.marks[0].at <= now; {
		reached := c.marks[0]
		c.marks = c.marks[1:]
		reached.reach()
	}
	c.armLocked()
}

func (c *clock) armLocked() {
	c.disarmLocked()
	if len(c.marks) > 0 && !c.stopped {
		c.timer = time.AfterFunc(c.marks[0].at-c.used-time.Since(c.since), c.tick)
	}
}

func (c *clock) disarmLocked() {
	if c.timer != nil {
		c.timer.Stop()
	}
}
