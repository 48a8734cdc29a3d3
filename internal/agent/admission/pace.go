package admission

import "time"

const (
	// paceWindow is the time in which departures are counted together. It is longer than most
	// runs: runs that began and end together would otherwise look like a fast rate. It is not shorter
	// than maxWait, so that who waited in vain is refused at once the next time.
	paceWindow = maxWait
	// paceStart is how long slots must have been taken until a rate is known. The first runs that end of
	// those that began together say nothing about the others.
	paceStart = paceWindow / 2
	// paceLull is the idle time after which the measured rate is discarded: with free slots it
	// reflects the demand, not how fast runs end.
	paceLull = time.Second
)

// departureRate measures how fast slots become free while all are taken, in this window and the one
// before.
type departureRate struct {
	begun        time.Time // this window
	now, before  int
	hasBefore    bool
	freeSince    time.Time // when the last slot became free that was not taken at once
	measuredOnce bool
}

// markFull notes that the last free slot was taken.
func (p *departureRate) markFull(now time.Time) {
	hadLull := !p.freeSince.IsZero() && now.Sub(p.freeSince) > paceLull
	if !p.measuredOnce || hadLull {
		*p = departureRate{begun: now, measuredOnce: true}
	}
	p.freeSince = time.Time{}
}

// countDeparture counts a released slot; full says whether all slots were taken before.
func (p *departureRate) countDeparture(now time.Time, full bool) {
	if full {
		p.freeSince = now
	}
	p.rotateWindow(now)
	p.now++
}

// rotateWindow begins the next window if the present one is over, and keeps the count of the window before.
func (p *departureRate) rotateWindow(now time.Time) {
	if since := now.Sub(p.begun); since >= 2*paceWindow {
		p.begun = now
		p.before = 0
		p.now = 0
		p.hasBefore = true
	} else if since >= paceWindow {
		p.begun, p.before, p.now, p.hasBefore = p.begun.Add(paceWindow), p.now, 0, true
	}
}

// meanInterval returns the mean time between departures. Right after all slots were taken nothing
// is known: for paceStart it is 0, so that requests wait.
func (p *departureRate) meanInterval(now time.Time) time.Duration {
	p.rotateWindow(now)
	span := now.Sub(p.begun)
	if p.hasBefore {
		span += paceWindow
	} else if span < paceStart {
		return 0
	}
	return span / time.Duration(max(p.now+p.before, 1))
}
