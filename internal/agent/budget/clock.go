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

// maxReserve bounds the time that is reserved for the last turn, in which the model sums up.
const maxReserve = 15 * time.Second

// maxSeconds bounds the limit of a run to a century, which a time.Duration can represent.
const maxSeconds = 100 * 365 * 86400

// Clock measures and limits the time of one run. The time ends in two steps, so that a run
// which has used it up can still answer with what it has found: the context of tools ends before the context of the
// run, by a fifth of the limit and at most 15 s, in which the model can sum up. While the run waits
// for a person, the clock is paused. Without a limit, both contexts end only with their parent or with Stop.
type Clock struct {
	ctx   context.Context         // the context of the run; ends with ErrTimeUsed
	tools context.Context         // the context of tools, within ctx; ends with ErrToolTimeUsed. Raise replaces it
	end   context.CancelCauseFunc // ends both
	guard func(f func())          // see Start

	mu         sync.Mutex    // guards the fields below; held while the function of a milestone runs
	milestones []milestone   // those not reached yet, in order
	used       time.Duration // time used up to since, without pauses
	reported   int           // the level in percent that an earlier process has reported of this limit; 0 for none
	since      time.Time     // when the clock was started or resumed last
	paused     int           // number of Pause calls without a Resume; the clock runs while it is 0
	timer      *time.Timer   // fires at the next milestone; nil before the first one is planned
	stopped    bool
	manual     bool // time passes only with Advance
}

// milestone is an amount of used time, and a function to call once the run has used it. The function is called with
// Clock.mu held.
type milestone struct {
	at      time.Duration
	reached func()
}

// Restore sets the time that the run has used in other processes, and the level in percent of the last budget event
// about it. Call it before Start.
func (c *Clock) Restore(used time.Duration, reported int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used, c.reported = used, reported
}

// SetManual lets the time pass only with Advance. Call it before Start.
func (c *Clock) SetManual() { c.manual = true }

// Advance sets the used time of a manual clock to used, if that is more, and calls the milestones that are reached. If
// the clock is not started yet, Start calls them.
func (c *Clock) Advance(used time.Duration) {
	c.mu.Lock()
	c.used = max(c.used, used)
	guard := c.guard
	c.mu.Unlock()
	if guard != nil {
		guard(c.reachMilestones)
	}
}

// sinceLocked returns the time since the clock was started or resumed last, which c.used does not include; 0 for a
// manual clock.
func (c *Clock) sinceLocked() time.Duration {
	if c.manual {
		return 0
	}
	return time.Since(c.since)
}

// Start starts the clock and returns the context of the run, which ends when the limit of seconds is used up; 0 means
// no limit. Call Start once, and Stop when the run has ended. Budget events about the time are appended to out. Timers
// call guard with a function to execute; guard has to recover a panic in it and end the run.
func (c *Clock) Start(ctx context.Context, seconds float64, out *event.Writer, guard func(f func())) context.Context {
	c.mu.Lock()
	c.guard = guard
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

// ToolContext returns the context that ends when the time for tools is over. Raise replaces the context, so ToolContext
// must not be called while Raise is.
func (c *Clock) ToolContext() context.Context { return c.tools }

// Raise replaces the run's limit and the context of tools. The elapsed time still counts. Call it while no tool call is
// in flight: the call would have the old context, which no longer ends with the time for tools.
func (c *Clock) Raise(seconds float64, out *event.Writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reported, c.milestones = 0, nil
	c.setLimitLocked(seconds, out)
}

// Elapsed returns the time that the run has used, in all processes and without pauses. It is meaningless for a run
// without a limit of seconds.
func (c *Clock) Elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused > 0 {
		return c.used
	}
	return c.used + c.sinceLocked()
}

// setLimitLocked makes seconds the limit of the run's time, and makes a new context of tools. It adds the milestones: a
// budget event at 80 % of the limit, the end of the context of tools a fifth of the limit before it but at most
// maxReserve, and at the limit another budget event and the end of the run. Budget events that c.reported includes are
// left out. It starts the timer.
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
		c.milestones = append(c.milestones, milestone{at: near, reached: func() { report(near) }})
	}
	endOfTools := milestone{at: max(near, limit-maxReserve), reached: func() { endTools(ErrToolTimeUsed) }}
	endOfRun := milestone{at: limit, reached: func() {
		if c.reported < 100 {
			report(limit)
		}
		c.end(ErrTimeUsed)
	}}
	c.milestones = append(c.milestones, endOfTools, endOfRun)
	c.startTimerLocked()
}

// Pause stops the clock while the run waits for a person. The clock continues after as many calls of Resume as there
// were of Pause.
func (c *Clock) Pause() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused++
	if c.paused == 1 {
		c.used += c.sinceLocked()
		c.stopTimerLocked()
	}
}

// Resume ends one Pause.
func (c *Clock) Resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused--
	if c.paused == 0 {
		c.since = time.Now()
		c.startTimerLocked()
	}
}

// Stop ends the clock and its contexts. After it has returned, no budget event about the time is appended. It waits for
// one that is being appended.
func (c *Clock) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	c.stopTimerLocked()
	c.end(nil)
}

// reachMilestones calls, with c.mu held, the functions of the milestones that the used time has reached. Then it starts
// the timer for the next one. While the clock is paused or stopped it does nothing.
func (c *Clock) reachMilestones() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped || c.paused > 0 {
		return // the timer fired before Pause or Stop could stop it
	}
	for now := c.used + c.sinceLocked(); len(c.milestones) > 0 && c.milestones[0].at <= now; {
		due := c.milestones[0]
		c.milestones = c.milestones[1:]
		due.reached()
	}
	c.startTimerLocked()
}

// startTimerLocked starts the timer for the next milestone, in place of a running one. It starts none if the clock is
// stopped or manual, or if no milestones are left.
func (c *Clock) startTimerLocked() {
	c.stopTimerLocked()
	if len(c.milestones) > 0 && !c.stopped && !c.manual {
		wait := c.milestones[0].at - c.used - c.sinceLocked()
		c.timer = time.AfterFunc(wait, func() { c.guard(c.reachMilestones) })
	}
}

// stopTimerLocked stops the timer, if there is one. Its function may already be running.
func (c *Clock) stopTimerLocked() {
	if c.timer != nil {
		c.timer.Stop()
	}
}
