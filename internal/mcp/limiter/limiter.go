// Package limiter bounds the calls in flight to one server, and finds out how many the server can
// take.
//
//	l := limiter.New(0) // adapts between Min and Max; limiter.New(5) is always 5
//	t := l.Enqueue(caller, tool)
//	defer t.End(limiter.Unknown) // also when the caller leaves the queue; only the first End counts
//	select {
//	case <-t.Admitted():
//	case <-ctx.Done():
//		return
//	}
//	t.End(call())
//
// Callers take turns: of each caller that waits, one call is admitted, then one of the next. The calls
// of one caller are admitted in the order in which they came. So a caller with a thousand calls delays
// itself and not the others.
//
// An adaptive limit begins at Min. It is a variant of additive increase, multiplicative decrease (AIMD)
// that looks at latency:
//
//   - The limiter knows the latency of each tool with at most Min calls in flight. Its ratio is how much
//     longer calls take now.
//   - Up to a ratio of target (1.5), the server has capacity left. The limit becomes limit × target /
//     ratio, if calls wait: half as much again while the latency does not increase at all.
//   - From tooSlow (2) on, the server only makes its calls wait, and the limit decreases by the same
//     formula. In between it stays.
//   - A timeout, or a server that says that it is busy, halves the limit.
//   - After a decrease, the limit does not grow for holdTime.
//
// A limit that nobody needs stays as it is: without waiting calls nothing is known about a higher one.
// Latency with few calls in flight is measured again whenever that few are, so a server that has become
// slower for another reason is not limited forever: its limit falls to Min, where its new latency
// is learned.
//
// Everything here may be used concurrently; nothing starts a goroutine.
package limiter

import (
	"slices"
	"sync"
	"time"
)

const (
	// Min and Max are the bounds of an adaptive limit.
	Min = 10
	Max = 256

	target, tooSlow = 1.5, 2.0 // ratios of latencies
	// holdTime is how long an adaptive limit does not grow after it has decreased.
	holdTime = 10 * time.Second
	// rounds is how many calls must have ended for a decision, for each of the limit. That is enough for
	// latencies that vary as much as their mean, of tools that differ by a factor of 100.
	rounds = 4
	// maxTools bounds the tools whose latency is known. Calls of further ones do not count.
	maxTools = 1024
	// weight is that of each new call in a tool's latency, once there were 1/weight of them.
	weight = 0.02
)

// Outcome says what a call tells about its server's load.
type Outcome int

const (
	Unknown  Outcome = iota // nothing: it failed for another reason, or it waited for a person
	Answered                // the time that it took counts
	Overload                // the server did not answer in time, or said that it is busy
)

// Limiter bounds the calls in flight to one server. Make it with New.
type Limiter struct {
	adaptive bool

	mu       sync.Mutex // protects what follows, and every Ticket
	limit    int
	inFlight int
	lines    []*line          // of the callers that wait; the first one's turn is next
	byCaller map[string]*line // the same

	tools     map[string]*latency
	round     int // increases when the limit changes; the latencies of calls from before do not count
	decreased int // the round that the latest decrease began
	sample    sample
	held      time.Time // the limit does not grow before
}

// line has the waiting calls of one caller.
type line struct {
	caller  string
	tickets []*Ticket
}

// latency is the mean latency of a tool's calls with at most Min calls in flight.
type latency struct {
	calls int
	mean  float64 // seconds
}

// sample has the calls that ended in this round: their number, how long they took in all, and how long
// they would have taken with at most Min calls in flight, in seconds.
type sample struct {
	calls       int
	took, usual float64
}

// New returns a Limiter whose limit is fixed, or adaptive if fixed is 0.
func New(fixed int) *Limiter {
	l := &Limiter{limit: fixed, byCaller: map[string]*line{}}
	if fixed == 0 {
		l.adaptive = true
		l.limit = Min
		l.tools = map[string]*latency{}
	}
	return l
}

// Limit returns the present limit.
func (l *Limiter) Limit() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit
}

// Ticket is one call, in the queue or in flight. End it.
type Ticket struct {
	limiter      *Limiter
	caller, tool string
	admitted     chan struct{}

	began   time.Time // zero in the queue
	round   int       // in which it was admitted
	few     bool      // at most Min calls were in flight then
	unclear bool      // its latency does not count
	ended   bool
}

// Enqueue returns the ticket of a call, which may be admitted at once.
func (l *Limiter) Enqueue(caller, tool string) *Ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	ticket := &Ticket{limiter: l, caller: caller, tool: tool, admitted: make(chan struct{})}
	if l.inFlight < l.limit && len(l.lines) == 0 {
		l.admitLocked(ticket)
		return ticket
	}
	q := l.byCaller[caller]
	if q == nil {
		q = &line{caller: caller}
		l.byCaller[caller] = q
		l.lines = append(l.lines, q)
	}
	q.tickets = append(q.tickets, ticket)
	return ticket
}

// Admitted returns a channel that is closed when the call may begin.
func (t *Ticket) Admitted() <-chan struct{} { return t.admitted }

// Exclude makes the latency of the call not count, because a person is asked during the call.
func (t *Ticket) Exclude() {
	t.limiter.mu.Lock()
	defer t.limiter.mu.Unlock()
	t.unclear = true
}

// End says that the call has ended, or leaves the queue if it has not begun. Only the first End of a
// ticket counts.
func (t *Ticket) End(outcome Outcome) {
	limiter := t.limiter
	limiter.mu.Lock()
	defer limiter.mu.Unlock()
	switch {
	case t.ended:
		return
	case t.began.IsZero():
		t.ended = true
		limiter.removeLocked(t)
		return
	}
	t.ended = true
	limiter.inFlight--
	if limiter.adaptive {
		limiter.learnLocked(t, outcome, time.Now())
	}
	for limiter.inFlight < limiter.limit && len(limiter.lines) > 0 {
		limiter.admitLocked(limiter.nextLocked())
	}
}

// admitLocked lets the call of a ticket begin, and notes what learnLocked needs to judge its latency.
func (l *Limiter) admitLocked(t *Ticket) {
	l.inFlight++
	t.began = time.Now()
	t.round = l.round
	t.few = l.inFlight <= Min
	close(t.admitted)
}

// nextLocked removes the first call of the caller whose turn it is. The caller goes to the end.
func (l *Limiter) nextLocked() *Ticket {
	q := l.lines[0]
	l.lines[0] = nil
	l.lines = l.lines[1:]
	ticket := q.tickets[0]
	q.tickets[0] = nil
	q.tickets = q.tickets[1:]
	if len(q.tickets) > 0 {
		l.lines = append(l.lines, q)
	} else {
		delete(l.byCaller, q.caller)
	}
	return ticket
}

// removeLocked removes a call from the queue.
func (l *Limiter) removeLocked(t *Ticket) {
	q := l.byCaller[t.caller]
	i := slices.Index(q.tickets, t)
	q.tickets = slices.Delete(q.tickets, i, i+1)
	if len(q.tickets) == 0 {
		delete(l.byCaller, t.caller)
		i = slices.Index(l.lines, q)
		l.lines = slices.Delete(l.lines, i, i+1)
	}
}

// learnLocked counts a call that has ended, and changes the limit if enough is known.
func (l *Limiter) learnLocked(ticket *Ticket, outcome Outcome, now time.Time) {
	switch {
	case outcome == Overload:
		// One decrease is enough for all calls that were in flight before it.
		if ticket.round >= l.decreased {
			l.setLimitLocked(l.limit/2, now)
		}
		return
	case outcome == Unknown || ticket.unclear:
		return
	}

	took := max(now.Sub(ticket.began), time.Microsecond).Seconds()
	usual := l.tools[ticket.tool]
	if ticket.few {
		if usual == nil && len(l.tools) < maxTools {
			usual = &latency{}
			l.tools[ticket.tool] = usual
		}
		if usual != nil {
			usual.calls++
			usual.mean += (took - usual.mean) * max(weight, 1/float64(usual.calls))
		}
	}
	if usual == nil || ticket.round != l.round {
		return
	}
	l.sample.calls++
	l.sample.took += took
	l.sample.usual += usual.mean
	if l.sample.calls < rounds*l.limit {
		return
	}
	ratio := l.sample.took / l.sample.usual
	grows := ratio <= target && len(l.lines) > 0 && !now.Before(l.held)
	l.sample = sample{}
	if grows || ratio >= tooSlow {
		l.setLimitLocked(int(float64(l.limit)*target/max(ratio, 1)), now)
	}
}

// setLimitLocked changes an adaptive limit.
func (l *Limiter) setLimitLocked(limit int, now time.Time) {
	limit = min(max(limit, Min), Max)
	if limit == l.limit {
		return
	}
	l.round++
	if limit < l.limit {
		l.decreased, l.held = l.round, now.Add(holdTime)
	}
	l.limit, l.sample = limit, sample{}
}
