package admission

import "time"

const (
	// paceWindow is the time over which departures are counted. It is longer than most runs, because runs that began
	// and end together would otherwise look like a fast rate. It is at least maxWait, so that a caller who has just
	// waited without getting a slot is refused at once.
	paceWindow = maxWait
	// paceStart is how long all slots must have been taken before a rate is known. When runs began together, the first
	// ones to end say nothing about the rest.
	paceStart = paceWindow / 2
	// paceLull is how long a slot must be free before the measured rate is discarded: while slots are free, departures
	// reflect the demand and not how fast runs can end.
	paceLull = time.Second
)

// departureRate measures how fast slots become free while all slots are taken. It counts in the current window of
// length paceWindow and in the previous one. The zero value has measured nothing. Callers must hold Gate.mu.
type departureRate struct {
	windowStart   time.Time // when the current window began
	count         int       // departures in the current window
	previousCount int       // departures in the previous window
	hasPrevious   bool      // at least one window has passed since the measurement began
	freeSince     time.Time // since when a slot is free; zero if all slots are taken
	started       bool      // markFull was called
}

// markFull records that the last free slot was taken. It restarts the measurement the first time, and after a slot was
// free for longer than paceLull.
func (p *departureRate) markFull(now time.Time) {
	hadLull := !p.freeSince.IsZero() && now.Sub(p.freeSince) > paceLull
	if !p.started || hadLull {
		*p = departureRate{windowStart: now, started: true}
	}
	p.freeSince = time.Time{}
}

// countDeparture counts a released slot. wasFull says whether all slots were taken before the release.
func (p *departureRate) countDeparture(now time.Time, wasFull bool) {
	if wasFull {
		p.freeSince = now
	}
	p.rotateWindow(now)
	p.count++
}

// rotateWindow begins a new window if the current one is over. If the following one is over too, because nothing was
// counted for long, both counts become 0.
func (p *departureRate) rotateWindow(now time.Time) {
	elapsed := now.Sub(p.windowStart)
	if elapsed < paceWindow {
		return
	}
	p.hasPrevious = true
	if elapsed < 2*paceWindow {
		p.windowStart = p.windowStart.Add(paceWindow)
		p.previousCount = p.count
	} else {
		p.windowStart = now
		p.previousCount = 0
	}
	p.count = 0
}

// meanInterval returns the mean time between departures in the current and the previous window. During the first
// paceStart of a measurement the rate is unknown, and it returns 0, so that requests wait instead of being refused.
func (p *departureRate) meanInterval(now time.Time) time.Duration {
	p.rotateWindow(now)
	span := now.Sub(p.windowStart)
	if p.hasPrevious {
		span += paceWindow
	} else if span < paceStart {
		return 0
	}
	return span / time.Duration(max(p.count+p.previousCount, 1))
}
