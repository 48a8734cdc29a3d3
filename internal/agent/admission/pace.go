package admission

import "time"

const (
	// paceWindow is how long departures are counted together. Longer than most runs, or
	// runs that began together and end together would be taken for a fast pace.
	paceWindow = 5 * time.Second
	// paceLull is how long there must have been room for the pace before it to be of no
	// interest: it was that of the demand.
	paceLull = time.Second
)

// pace is how fast places become free while all are taken: the departures of this window
// and the one before.
type pace struct {
	begun        time.Time // this window
	now, before  int
	hasBefore    bool
	room         time.Time // when the last place became free that nobody took
	measuredOnce bool
}

// full says that the last place has been taken.
func (p *pace) full(now time.Time) {
	if !p.measuredOnce || !p.room.IsZero() && now.Sub(p.room) > paceLull {
		*p = pace{begun: now, measuredOnce: true}
	}
	p.room = time.Time{}
}

// left counts a departure; full is whether all places were taken before it.
func (p *pace) left(now time.Time, full bool) {
	if full {
		p.room = now
	}
	p.turn(now)
	p.now++
}

func (p *pace) turn(now time.Time) {
	if since := now.Sub(p.begun); since >= 2*paceWindow {
		p.begun, p.before, p.now, p.hasBefore = now, 0, 0, true
	} else if since >= paceWindow {
		p.begun, p.before, p.now, p.hasBefore = p.begun.Add(paceWindow), p.now, 0, true
	}
}

// interval returns the time from one departure to the next. Nothing is known when all places
// have just been taken: then it is short, and grows until somebody leaves.
func (p *pace) interval(now time.Time) time.Duration {
	p.turn(now)
	span := now.Sub(p.begun)
	if p.hasBefore {
		span += paceWindow
	}
	return span / time.Duration(max(p.now+p.before, 1))
}
