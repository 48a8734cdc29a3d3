package budget

import (
	"context"
	"errors"
	"sync"
	"time"

	"answerd/internal/event"
)

// These errors are the causes of contexts that the clock ends.
var (
	ErrTimeUsed     = errors.New("the run's seconds are used up")
	ErrToolTimeUsed = errors.New("the run's time for tools is used up") // of its calls only
)

// maxReserve bounds the time that is kept for the summing-up turn.
const maxReserve = 15 * time.Second

// maxSeconds bounds a limit to what a time.Duration can have: a century does not end a run.
const maxSeconds = 100 * 365 * 86400

// Clock measures and limits the time of one run. The time ends in two steps, so that a run
// which used it up can still say what it has: tools may work until the reserve is reached, which
// is a fifth of the time and at most 15 s; the model may answer to the end. While the run waits
// for a person, the clock is paused. Without a limit it ends nothing.
type Clock struct {
	ctx   context.Context         // of the run; ends with ErrTimeUsed
	tools context.Context         // within ctx; ends with ErrToolTimeUsed. Used by the run's goroutine
	end   context.CancelCauseFunc // ends both
	guard func(f func())          // see Start

	mu         sync.Mutex  // protects what follows; held while a milestone is reached
	milestones []milestone // still to come, in order
	used       time.Duration
	reported   int         // the level in percent that readers know of
	since      time.Time   // when used was right
	paused     int         // pauses without a resume; the clock runs while it is 0
	timer      *time.Timer // fires at the next milestone; nil if there is none
	stopped    bool
	manual     bool // time passes only with Advance
}

// milestone is what happens once so much time is used.
type milestone struct {
	at      time.Duration
	reached func()
}

// Restore sets the time that the run has used in other processes, and the level in percent that
// readers know of. Call it before Start.
func (c *Clock) Restore(used time.Duration, reported int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used, c.reported = used, reported
}

// SetManual lets the time pass only with Advance. Call it before Start.
func (c *Clock) SetManual() { c.manual = true }

// Advance lets a manual clock reach used. If it is not started yet, it reaches used then.
func (c *Clock) Advance(used time.Duration) {
	c.mu.Lock()
	c.used = max(c.used, used)
	guard := c.guard
	c.mu.Unlock()
	if guard != nil {
		guard(c.reachMilestones)
	}
}

// sinceLocked returns the time since the clock was last started.
func (c *Clock) sinceLocked() time.Duration {
	if c.manual {
		return 0
	}
	return time.Since(c.since)
}

// Start starts the clock and returns the context of the run, which ends with the time; call it
// once, and Stop afterwards. A limit of 0 seconds is none. The clock's timers run within guard,
// which has to recover a panic and end the run.
func (c *Clock) Start(ctx context.Context, seconds float64, out *event.Writer, guard func(f func())) context.Context {
	c.mu.Lock()
	c.guard = guard // its timers call it
	c.ctx, c.end = context.WithCancelCause(ctx)
	c.tools = c.ctx
	if seconds > 0 {
		c.since = time.Now()
		c.setLimitLocked(seconds, out)
	}
	c.mu.Unlock()
	if c.manual {
		guard(c.reachMilestones)
	}
	return c.ctx
}

// ToolContext returns the context that ends when the time for tools is over. After Raise it is
// another one.
func (c *Clock) ToolContext() context.Context { return c.tools }

// Raise replaces the run's limit; the elapsed time still counts. Call it while no tool call is
// in flight.
func (c *Clock) Raise(seconds float64, out *event.Writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reported, c.milestones = 0, nil
	c.setLimitLocked(seconds, out)
}

// Elapsed returns the time that the run has used, without pauses.
func (c *Clock) Elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused > 0 {
		return c.used
	}
	return c.used + c.sinceLocked()
}

// setLimitLocked makes the limit of the run's time seconds from now on. It plans what happens on the way: a report
// to out at 80 % and at 100 % of the limit, the end of the time for tools at most maxReserve before the limit, so
// that the model can still answer, and the end of the run at the limit.
func (c *Clock) setLimitLocked(seconds float64, out *event.Writer) {
	var endTools context.CancelCauseFunc
	c.tools, endTools = context.WithCancelCause(c.ctx)
	limit := time.Duration(min(seconds, maxSeconds) * float64(time.Second))
	report := func(used time.Duration) {
		// An error is ignored: a run that has just ended needs no report, and a log that
		// fails ends the run at its own next event.
		_ = out.Append(c.ctx, event.Budget{Limit: "seconds", Used: used.Seconds(), Max: limit.Seconds()})
	}
	near := limit / 5 * 4
	if c.reported < 80 {
		c.milestones = append(c.milestones, milestone{near, func() { report(near) }})
	}
	c.milestones = append(c.milestones, []milestone{
		{max(near, limit-maxReserve), func() { endTools(ErrToolTimeUsed) }},
		{limit, func() {
			if c.reported < 100 {
				report(limit)
			}
			c.end(ErrTimeUsed)
		}},
	}...)
	c.startTimerLocked()
}

// Pause stops the clock while the run waits for a person, until as many calls of Resume.
func (c *Clock) Pause() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused++
	if c.paused == 1 {
		c.used += c.sinceLocked()
		c.stopTimerLocked()
	}
}

// Resume lets the clock continue after Pause.
func (c *Clock) Resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused--
	if c.paused == 0 {
		c.since = time.Now()
		c.startTimerLocked()
	}
}

// Stop ends the clock and its contexts. Once it returns, no milestone is reached any more.
func (c *Clock) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	c.stopTimerLocked()
	c.end(nil)
}

// reachMilestones calls the functions of the milestones that the used time has reached, and starts the timer for the
// next one.
func (c *Clock) reachMilestones() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped || c.paused > 0 {
		return // the timer had fired already
	}
	for now := c.used + c.sinceLocked(); len(c.milestones) > 0 && c.milestones[0].at <= now; {
		due := c.milestones[0]
		c.milestones = c.milestones[1:]
		due.reached()
	}
	c.startTimerLocked()
}

// startTimerLocked starts the timer for the next milestone. A clock that is stopped or manual has none.
func (c *Clock) startTimerLocked() {
	c.stopTimerLocked()
	if len(c.milestones) > 0 && !c.stopped && !c.manual {
		wait := c.milestones[0].at - c.used - c.sinceLocked()
		c.timer = time.AfterFunc(wait, func() { c.guard(c.reachMilestones) })
	}
}

func (c *Clock) stopTimerLocked() {
	if c.timer != nil {
		c.timer.Stop()
	}
}
