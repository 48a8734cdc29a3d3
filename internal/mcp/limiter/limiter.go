// Package limiter limits the calls in flight to one MCP server, and finds out how many the server can handle.
//
//	l := limiter.New(0) // adapts between Min and Max; limiter.New(5) is always 5
//	t := l.Enqueue(caller, tool)
//	defer t.End(limiter.Unknown) // leaves the queue on return; only the first End counts
//	select {
//	case <-t.Admitted():
//	case <-ctx.Done():
//		return
//	}
//	t.End(call())
//
// Waiting callers take turns, with one call per turn, so a caller with a thousand calls delays only its own calls. One
// caller's calls are admitted in the order of Enqueue.
//
// An adaptive limit begins at Min. It is a variant of additive increase, multiplicative decrease (AIMD) that looks at
// latency:
//
//   - The limiter measures each tool's usual latency while at most Min calls are in flight. The ratio is the current
//     latency of calls divided by the usual latency of their tools.
//   - Up to a ratio of target (1.5), the server has capacity left. If calls are waiting, the limit becomes
//     limit × target / ratio. It grows by half if the latency has not increased at all.
//   - From a ratio of tooSlow (2), more calls in flight only wait longer in the server. The limit decreases by the same
//     formula.
//   - Between target and tooSlow, the limit does not change.
//   - If a call times out, or the server says that it is busy, the limit is halved.
//   - After a decrease, the limit does not grow for holdTime.
//
// The limit does not grow while no call waits, because nothing would show the effect of a higher limit. The usual
// latency is updated whenever at most Min calls are in flight. A server that has become slower for another reason is
// therefore not limited forever: its limit falls to Min, where its new latency is measured.
//
// All functions may be called concurrently, and none of them blocks. The package starts no goroutines.
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

	// target and tooSlow are ratios of current to usual latency. Up to target, the limit may grow. From tooSlow, it
	// decreases.
	target, tooSlow = 1.5, 2.0
	// holdTime is how long an adaptive limit may not grow after it has decreased.
	holdTime = 10 * time.Second
	// callsPerPermit times the limit is the number of calls in a complete sample. That is enough for latencies whose
	// deviation is as large as their mean, and for tools whose latencies differ by a factor of 100.
	callsPerPermit = 4
	// maxTools is the maximum number of tools whose usual latency is kept. Calls of further tools are not measured.
	maxTools = 1024
	// weight is a new call's weight in the moving average of a tool's usual latency. The first 1/weight calls have
	// equal weights.
	weight = 0.02
)

// Outcome says what a call that has ended shows about the server's load.
type Outcome int

const (
	Unknown  Outcome = iota // nothing: the call failed for another reason, waited for a person, or never began
	Answered                // the call's latency counts
	Overload                // the server did not answer in time, or said that it is busy
)

// Limiter limits the calls in flight to one server. Create one with New.
type Limiter struct {
	adaptive bool

	mu       sync.Mutex // protects the following fields, and the fields of every Ticket
	limit    int
	inFlight int                     // admitted calls that have not ended
	queues   []*callerQueue          // one for each waiting caller, in the order of their turns
	byCaller map[string]*callerQueue // the same queues, by caller

	// The following fields are used only by an adaptive limit.

	tools         map[string]*latency // usual latencies, by tool
	round         int                 // how many times the limit has changed
	decreaseRound int                 // value of round after the latest decrease; 0 if there was none
	sample        sample
	holdUntil     time.Time // the limit may not grow before this time
}

// callerQueue has the waiting calls of one caller, in the order of Enqueue. It is never empty.
type callerQueue struct {
	caller  string
	tickets []*Ticket
}

// latency is a tool's usual latency: a moving average over calls that began with at most Min calls in flight.
type latency struct {
	calls   int // number of calls measured so far
	seconds float64
}

// sample sums up the calls that were both admitted and ended under the current limit, since it was last evaluated.
type sample struct {
	calls        int
	seconds      float64 // sum of the calls' latencies
	usualSeconds float64 // sum of the usual latencies of the calls' tools
}

// New returns a Limiter with the given fixed limit, or with an adaptive limit if fixed is 0.
func New(fixed int) *Limiter {
	l := &Limiter{limit: fixed, byCaller: map[string]*callerQueue{}}
	if fixed == 0 {
		l.adaptive = true
		l.limit = Min
		l.tools = map[string]*latency{}
	}
	return l
}

// Limit returns the current limit.
func (l *Limiter) Limit() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit
}

// Ticket is one call that is waiting or in flight. Every Ticket must be ended with End.
type Ticket struct {
	limiter      *Limiter
	caller, tool string
	admitted     chan struct{} // closed by admitLocked

	admittedAt time.Time // zero while the call waits
	round      int       // value of Limiter.round at admission
	lowLoad    bool      // at most Min calls were in flight at admission, including this call
	excluded   bool      // the call's latency does not count
	ended      bool
}

// Enqueue returns a ticket for a new call of tool by caller. It admits the call at once if no call is waiting and fewer
// calls are in flight than the limit allows.
func (l *Limiter) Enqueue(caller, tool string) *Ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	ticket := &Ticket{limiter: l, caller: caller, tool: tool, admitted: make(chan struct{})}
	if l.inFlight < l.limit && len(l.queues) == 0 {
		l.admitLocked(ticket)
		return ticket
	}
	queue := l.byCaller[caller]
	if queue == nil {
		queue = &callerQueue{caller: caller}
		l.byCaller[caller] = queue
		l.queues = append(l.queues, queue)
	}
	queue.tickets = append(queue.tickets, ticket)
	return ticket
}

// Admitted returns a channel that is closed when the call may begin.
func (t *Ticket) Admitted() <-chan struct{} { return t.admitted }

// Exclude makes the limiter ignore the call's latency. It is for calls during which a person is asked.
func (t *Ticket) Exclude() {
	t.limiter.mu.Lock()
	defer t.limiter.mu.Unlock()
	t.excluded = true
}

// End ends an admitted call, which may change an adaptive limit, and admits waiting calls. If the call itself is still
// waiting, End removes it from the queue and ignores outcome. Only the first End of a ticket has an effect.
func (t *Ticket) End(outcome Outcome) {
	limiter := t.limiter
	limiter.mu.Lock()
	defer limiter.mu.Unlock()
	if t.ended {
		return
	}
	t.ended = true
	if t.admittedAt.IsZero() {
		limiter.removeLocked(t)
		return
	}
	limiter.inFlight--
	if limiter.adaptive {
		limiter.learnLocked(t, outcome, time.Now())
	}
	for limiter.inFlight < limiter.limit && len(limiter.queues) > 0 {
		limiter.admitLocked(limiter.dequeueLocked())
	}
}

// admitLocked lets the ticket's call begin, and records the load at that time. l.mu must be held.
func (l *Limiter) admitLocked(t *Ticket) {
	l.inFlight++
	t.admittedAt = time.Now()
	t.round = l.round
	t.lowLoad = l.inFlight <= Min
	close(t.admitted)
}

// dequeueLocked removes and returns the first call of the caller whose turn it is. If that caller has more calls, its
// next turn comes after those of all other callers. At least one call must be waiting. l.mu must be held.
func (l *Limiter) dequeueLocked() *Ticket {
	queue := l.queues[0]
	l.queues[0] = nil // let the garbage collector free it, as below
	l.queues = l.queues[1:]
	ticket := queue.tickets[0]
	queue.tickets[0] = nil
	queue.tickets = queue.tickets[1:]
	if len(queue.tickets) > 0 {
		l.queues = append(l.queues, queue)
	} else {
		delete(l.byCaller, queue.caller)
	}
	return ticket
}

// removeLocked removes t, whose call must be waiting, from its caller's queue. l.mu must be held.
func (l *Limiter) removeLocked(t *Ticket) {
	queue := l.byCaller[t.caller]
	queue.tickets = slices.DeleteFunc(queue.tickets, func(other *Ticket) bool { return other == t })
	if len(queue.tickets) == 0 {
		delete(l.byCaller, t.caller)
		l.queues = slices.DeleteFunc(l.queues, func(other *callerQueue) bool { return other == queue })
	}
}

// learnLocked updates the usual latency and the sample with a call that ended at now, and evaluates the sample once it
// is complete. Overload halves the limit at once. l.mu must be held.
func (l *Limiter) learnLocked(ticket *Ticket, outcome Outcome, now time.Time) {
	if outcome == Overload {
		// Calls that were admitted before the latest decrease say nothing about the current limit.
		if ticket.round >= l.decreaseRound {
			l.setLimitLocked(l.limit/2, now)
		}
		return
	}
	if outcome == Unknown || ticket.excluded {
		return
	}
	seconds := max(now.Sub(ticket.admittedAt), time.Microsecond).Seconds() // never 0: evaluateLocked divides by latencies
	usual := l.tools[ticket.tool]
	if ticket.lowLoad {
		usual = l.measureLocked(ticket.tool, seconds)
	}
	isUnderCurrentLimit := ticket.round == l.round // otherwise the call says nothing about the current limit
	if usual == nil || !isUnderCurrentLimit {
		return
	}
	l.sample.calls++
	l.sample.seconds += seconds
	l.sample.usualSeconds += usual.seconds
	if l.sample.calls >= callsPerPermit*l.limit {
		l.evaluateLocked(now)
	}
}

// measureLocked updates and returns the usual latency of tool after a call under low load, which took the given number
// of seconds. It returns nil if the latencies of maxTools other tools are kept already. l.mu must be held.
func (l *Limiter) measureLocked(tool string, seconds float64) *latency {
	usual := l.tools[tool]
	if usual == nil {
		if len(l.tools) == maxTools {
			return nil
		}
		usual = &latency{}
		l.tools[tool] = usual
	}
	usual.calls++
	usual.seconds += (seconds - usual.seconds) * max(weight, 1/float64(usual.calls))
	return usual
}

// evaluateLocked changes the limit according to the sample, and begins a new sample. l.mu must be held.
func (l *Limiter) evaluateLocked(now time.Time) {
	ratio := l.sample.seconds / l.sample.usualSeconds
	l.sample = sample{}
	mustShrink := ratio >= tooSlow
	mayGrow := ratio <= target && len(l.queues) > 0 && !now.Before(l.holdUntil)
	if mustShrink || mayGrow {
		l.setLimitLocked(int(float64(l.limit)*target/max(ratio, 1)), now)
	}
}

// setLimitLocked sets an adaptive limit, but at least to Min and at most to Max. If the limit changes, it begins a new
// round and a new sample. After a decrease, the limit may not grow for holdTime. l.mu must be held.
func (l *Limiter) setLimitLocked(limit int, now time.Time) {
	limit = min(max(limit, Min), Max)
	if limit == l.limit {
		return
	}
	l.round++
	if limit < l.limit {
		l.decreaseRound = l.round
		l.holdUntil = now.Add(holdTime)
	}
	l.limit = limit
	l.sample = sample{}
}
