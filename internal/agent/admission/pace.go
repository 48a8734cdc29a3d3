package admission

import "time"

const (
	// paceWindow is the time in which departures are counted together. It is longer than most runs: runs that began and
	// end together would otherwise look like a fast rate. It is not shorter than maxWait, so that a request of a caller
	// who has just waited without getting a slot is refused at once.
	paceWindow = maxWait
	// paceStart is how long all slots must have been taken until a rate is known. Of runs that began together, the
	// first ones that end say nothing about the rest.
	paceStart = paceWindow / 2
	// paceLull is the time with a free slot after which the measured rate is discarded: while slots are free,
	// departures reflect the demand and not how fast runs end.
	paceLull = time.Second
)

// departureRate measures how fast slots become free while all slots are taken, in the current window of paceWindow and
// the previous one. The zero value has measured nothing. Its user must hold Gate.mu.
type departureRate struct {
	windowStart   time.Time // of the current window
	count         int       // departures in the current window
	previousCount int       // departures in the previous window
	hasPrevious   bool      // a window has passed since the measurement began
	freeSince     time.Time // since when there is a free slot; zero if all slots are taken
	started       bool      // markFull was called
}

// markFull records that the last free slot was taken. It restarts the measurement if this is the first time, or if a
// slot was free for longer than paceLull.
func (p *departureRate) markFull(now time.Time) {
	hadLull := !p.freeSince.IsZero() && now.Sub(p.freeSince) > paceLull
	if !p.started || hadLull {
		*p = departureRate{windowStart: now, started: true}
	}
	p.freeSince = time.Time{}
}

// countDeparture counts a released slot. wasFull says that all slots were taken before.
func (p *departureRate) countDeparture(now time.Time, wasFull bool) {
	if wasFull {
		p.freeSince = now
	}
	p.rotateWindow(now)
	p.count++
}

// rotateWindow begins the next window if the current one is over. If the next one is over too, because nothing was
// counted for long, both counts are 0.
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

// meanInterval returns the mean time between departures in the current and the previous window. In the first paceStart
// of a measurement the rate is not known: then it returns 0, so that requests wait and are not refused.
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
