package agent

import (
	"context"
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
	ctx   context.Context         // of the run; ends with errSeconds when the seconds are over
	tools context.Context         // within ctx; ends with errToolTime when the reserve is reached; of who runs the turns
	end   context.CancelCauseFunc // of both

	mu      sync.Mutex // protects what follows; held while a mark is reached
	marks   []mark     // still to come, in order
	used    time.Duration
	told    int         // what readers knew of it before, in percent
	since   time.Time   // when used was right
	held    int         // how often it is held; it stands still unless this is 0
	timer   *time.Timer // to the next mark; nil where there is none
	stopped bool
}

// mark is something that happens once so much time is used.
type mark struct {
	at    time.Duration
	reach func()
}

// remember makes the clock go on from where another one was. told is what readers know of
// it, in percent.
func (c *clock) remember(used time.Duration, told int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used, c.told = used, told
}

// start starts the clock, once; it must be stopped. No seconds are no limit.
func (c *clock) start(ctx context.Context, seconds float64, out *event.Writer) {
	c.ctx, c.end = context.WithCancelCause(ctx)
	if c.tools = c.ctx; seconds <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = time.Now()
	c.limitLocked(seconds, out)
}

// raise gives a run that has a limit another one, from its start. It is called when no
// call goes on.
func (c *clock) raise(seconds float64, out *event.Writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told, c.marks = 0, nil
	c.limitLocked(seconds, out)
}

// elapsed is what the run has used.
func (c *clock) elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held > 0 {
		return c.used
	}
	return c.used + time.Since(c.since)
}

func (c *clock) limitLocked(seconds float64, out *event.Writer) {
	var endTools context.CancelCauseFunc
	c.tools, endTools = context.WithCancelCause(c.ctx)
	limit := time.Duration(seconds * float64(time.Second))
	tell := func(used time.Duration) {
		// A run that has just ended is not told, and a log that fails ends the run at its
		// own next event.
		_ = out.Append(c.ctx, event.Budget{Limit: "seconds", Used: used.Seconds(), Max: limit.Seconds()})
	}
	near := limit / 5 * 4
	if c.told < 80 {
		c.marks = append(c.marks, mark{near, func() { tell(near) }})
	}
	c.marks = append(c.marks, []mark{
		{max(near, limit-maxReserve), func() { endTools(errToolTime) }},
		{limit, func() { tell(limit); c.end(errSeconds) }},
	}...)
	c.armLocked()
}

// hold stops the clock while the run waits for a person, until as many resumes.
func (c *clock) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held++; c.held == 1 {
		c.used += time.Since(c.since)
		c.disarmLocked()
	}
}

// resume lets the clock go on from where it was held.
func (c *clock) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held--; c.held == 0 {
		c.since = time.Now()
		c.armLocked()
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
	var err error
	defer func() {
		if err != nil {
			c.end(err)
		}
	}()
	defer recovered(&err) // the goroutine is a timer's
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped || c.held > 0 {
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
