package budget

import (
	"context"
	"errors"
	"sync"
	"time"

	"answerd/internal/event"
)

// Causes of the contexts that the clock ends.
var (
	ErrTimeUsed     = errors.New("the run's seconds are used up")
	ErrToolTimeUsed = errors.New("the run's time for tools is used up") // ends only the run's calls
)

// maxReserve limits the time that is reserved for the last turn, in which the model summarizes.
const maxReserve = 15 * time.Second

// maxSeconds limits a run's time to a century, which fits into a time.Duration.
const maxSeconds = 100 * 365 * 86400

// Clock measures and limits the time of one run. The time ends in two steps, so that a run that has used it up can
// still answer with what it has found: the context of tools ends a fifth of the limit, but at most 15 s, before the
// context of the run. In between, the model can summarize. The clock is paused while the run waits for a person.
// Without a limit, both contexts end only with their parent or with Stop.
type Clock struct {
	ctx   context.Context         // the run's context; ends with ErrTimeUsed
	tools context.Context         // the context of tools, a child of ctx; ends with ErrToolTimeUsed; replaced by Raise
	end   context.CancelCauseFunc // ends both
	guard func(f func())          // see Start

	mu         sync.Mutex    // guards the fields below; held while a milestone's function runs
	milestones []milestone   // those not reached yet, earliest first
	used       time.Duration // how much time was used up to resumedAt, without pauses
	reported   int           // the percentage of this limit that an earlier process reported last; 0 for none
	resumedAt  time.Time     // when the clock was last started or resumed
	paused     int           // how many Pause calls have no Resume yet; the clock runs while this is 0
	timer      *time.Timer   // fires at the next milestone; nil before the first one is planned
	stopped    bool
	manual     bool // time passes only through Advance
}

// milestone is a function to call once the run has used the time at. It is called with Clock.mu held.
type milestone struct {
	at      time.Duration
	reached func()
}

// Restore sets how much time the run used in earlier processes, and the percentage in the last budget event about that.
// Call it before Start.
func (c *Clock) Restore(used time.Duration, reported int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used, c.reported = used, reported
}

// SetManual makes time pass only through Advance. Call it before Start.
func (c *Clock) SetManual() { c.manual = true }

// Advance sets a manual clock's used time to used, unless that is less, and calls the milestones that are now reached.
// If the clock has not been started, Start calls them.
func (c *Clock) Advance(used time.Duration) {
	c.mu.Lock()
	c.used = max(c.used, used)
	guard := c.guard
	c.mu.Unlock()
	if guard != nil {
		guard(c.reachMilestones)
	}
}

// sinceResumeLocked returns the time since the clock was last started or resumed, which c.used does not include yet.
// For a manual clock it returns 0. c.mu must be held.
func (c *Clock) sinceResumeLocked() time.Duration {
	if c.manual {
		return 0
	}
	return time.Since(c.resumedAt)
}

// Start starts the clock and returns the run's context, which ends with ctx or once the run has used the given seconds;
// 0 means no limit. Start must be called once, and Stop after the run has ended. The clock appends its budget events to
// out. It passes each function that a timer executes to guard, which must recover from a panic and then end the run.
func (c *Clock) Start(ctx context.Context, seconds float64, out *event.Writer, guard func(f func())) context.Context {
	c.mu.Lock()
	c.guard = guard
	c.ctx, c.end = context.WithCancelCause(ctx)
	c.tools = c.ctx // without a limit, tools have as much time as the run
	if seconds > 0 {
		c.resumedAt = time.Now()
		c.setLimitLocked(seconds, out)
	}
	c.mu.Unlock()
	if c.manual { // Advance may already have passed some milestones, and a manual clock has no timer
		guard(c.reachMilestones)
	}
	return c.ctx
}

// ToolContext returns the context that ends when the time for tools is used up. Raise replaces that context, so do not
// call ToolContext and Raise concurrently.
func (c *Clock) ToolContext() context.Context { return c.tools }

// Raise replaces the run's limit and the context of tools. The elapsed time still counts. No tool call may be in
// flight, because it would use the old context, which no longer ends with the time for tools.
func (c *Clock) Raise(seconds float64, out *event.Writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reported, c.milestones = 0, nil
	c.setLimitLocked(seconds, out)
}

// Elapsed returns how much time the run has used, in all processes and without pauses. It is meaningless for a run
// without a limit of seconds.
func (c *Clock) Elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused > 0 {
		return c.used
	}
	return c.used + c.sinceResumeLocked()
}

// setLimitLocked makes seconds the limit of the run's time, makes a new context of tools, and starts the timer. It adds
// three milestones. The first appends a budget event at 80 % of the limit. The second ends the context of tools, a
// fifth of the limit but at most maxReserve before the limit. The third appends another budget event at the limit and
// ends the run. Budget events that an earlier process appended (c.reported) are left out. c.mu must be held.
func (c *Clock) setLimitLocked(seconds float64, out *event.Writer) {
	var endTools context.CancelCauseFunc
	c.tools, endTools = context.WithCancelCause(c.ctx)
	limit := time.Duration(min(seconds, maxSeconds) * float64(time.Second))
	report := func(used time.Duration) {
		// Ignore the error: a run that has ended needs no report, and if the log fails, the run ends at its next event.
		_ = out.Append(c.ctx, event.Budget{Limit: "seconds", Used: used.Seconds(), Max: limit.Seconds()})
	}
	nearLimit := limit / 5 * 4
	if c.reported < 80 {
		c.milestones = append(c.milestones, milestone{at: nearLimit, reached: func() { report(nearLimit) }})
	}
	endOfTools := milestone{at: max(nearLimit, limit-maxReserve), reached: func() { endTools(ErrToolTimeUsed) }}
	endOfRun := milestone{at: limit, reached: func() {
		if c.reported < 100 {
			report(limit)
		}
		c.end(ErrTimeUsed)
	}}
	c.milestones = append(c.milestones, endOfTools, endOfRun)
	c.startTimerLocked()
}

// Pause stops the clock while the run waits for a person. It continues after as many calls of Resume as of Pause.
func (c *Clock) Pause() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused++
	if c.paused == 1 {
		c.used += c.sinceResumeLocked()
		c.stopTimerLocked()
	}
}

// Resume ends one Pause.
func (c *Clock) Resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused--
	if c.paused == 0 {
		c.resumedAt = time.Now()
		c.startTimerLocked()
	}
}

// Stop ends the clock and its contexts. It waits for a budget event being appended. None is appended afterwards.
func (c *Clock) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	c.stopTimerLocked()
	c.end(nil)
}

// reachMilestones calls the functions of the milestones that the used time has reached, with c.mu held, and starts the
// timer for the next one. It does nothing while the clock is paused or stopped.
func (c *Clock) reachMilestones() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped || c.paused > 0 {
		return // the timer fired before Pause or Stop could stop it
	}
	used := c.used + c.sinceResumeLocked()
	for len(c.milestones) > 0 && c.milestones[0].at <= used {
		due := c.milestones[0]
		c.milestones = c.milestones[1:]
		due.reached()
	}
	c.startTimerLocked()
}

// startTimerLocked starts the timer for the next milestone, and stops the timer before it. It starts none if the clock
// is stopped or manual, or if no milestones are left. c.mu must be held.
func (c *Clock) startTimerLocked() {
	c.stopTimerLocked()
	if len(c.milestones) > 0 && !c.stopped && !c.manual {
		wait := c.milestones[0].at - c.used - c.sinceResumeLocked()
		c.timer = time.AfterFunc(wait, func() { c.guard(c.reachMilestones) })
	}
}

// stopTimerLocked stops the timer, if any. The timer's function may already be running. c.mu must be held.
func (c *Clock) stopTimerLocked() {
	if c.timer != nil {
		c.timer.Stop()
	}
}
