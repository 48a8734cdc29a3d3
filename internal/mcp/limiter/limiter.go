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
// Callers take turns: one call of each waiting caller is admitted, then one of the next caller. The calls
// of one caller are admitted in the order of Enqueue. So a caller with a thousand calls delays only
// its own calls.
//
// An adaptive limit begins at Min. It is a variant of additive increase, multiplicative decrease (AIMD)
// that looks at latency:
//
//   - The limiter measures the usual latency of each tool: with at most Min calls in flight. The ratio
//     is the present latency of calls divided by the usual latency of their tools.
//   - Up to a ratio of target (1.5), the server has capacity left. If calls wait, the limit becomes
//     limit × target / ratio: it grows by half while the latency does not increase at all.
//   - From a ratio of tooSlow (2) on, more calls in flight only wait longer in the server. The limit
//     decreases by the same formula.
//   - Between target and tooSlow the limit does not change.
//   - A timeout, or a server that says that it is busy, halves the limit.
//   - After a decrease, the limit does not grow for holdTime.
//
// While no call waits, the limit does not grow: nothing shows what a higher limit would do. The usual
// latency is updated whenever at most Min calls are in flight. So a server that became slower for another
// reason is not limited forever: its limit falls to Min, where its new latency is measured.
//
// All functions may be called concurrently, and do not block. The package starts no goroutines.
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

	// target and tooSlow are ratios of present to usual latency: up to target the limit may grow, from
	// tooSlow on it decreases.
	target, tooSlow = 1.5, 2.0
	// holdTime is how long an adaptive limit does not grow after it has decreased.
	holdTime = 10 * time.Second
	// callsPerPermit, multiplied by the limit, is how many calls a sample needs. That is enough for latencies
	// whose deviation is as large as their mean, and for tools whose latencies differ by a factor of 100.
	callsPerPermit = 4
	// maxTools bounds the tools whose usual latency is kept. The latency of calls to further tools is ignored.
	maxTools = 1024
	// weight is the weight of a new call in the moving average of a tool's usual latency. The first 1/weight
	// calls have equal weights.
	weight = 0.02
)

// Outcome says what the end of a call shows about the load of the server.
type Outcome int

const (
	Unknown  Outcome = iota // nothing: the call failed for another reason, waited for a person, or never began
	Answered                // the latency of the call counts
	Overload                // the server did not answer in time, or said that it is busy
)

// Limiter bounds the calls in flight to one server. Make it with New.
type Limiter struct {
	adaptive bool

	mu       sync.Mutex // protects the following fields, and the fields of every Ticket
	limit    int
	inFlight int                     // admitted calls that have not ended
	queues   []*callerQueue          // one for each caller that waits, in the order of their turns
	byCaller map[string]*callerQueue // the elements of queues by caller

	// The following fields are used by an adaptive limit only.

	tools         map[string]*latency // usual latencies
	round         int                 // number of changes of the limit
	decreaseRound int                 // value of round after the latest decrease; 0 before
	sample        sample
	holdUntil     time.Time // the limit does not grow before
}

// callerQueue has the waiting calls of one caller, in the order of Enqueue. It is never empty.
type callerQueue struct {
	caller  string
	tickets []*Ticket
}

// latency is the usual latency of a tool: a moving average over calls with at most Min calls in flight.
type latency struct {
	calls   int // calls measured so far
	seconds float64
}

// sample sums up calls that were admitted and have ended under the present limit, since the limit was last
// evaluated.
type sample struct {
	calls        int
	seconds      float64 // the sum of their latencies
	usualSeconds float64 // the sum of the usual latencies of their tools
}

// New returns a Limiter whose limit is fixed, or adaptive if fixed is 0.
func New(fixed int) *Limiter {
	l := &Limiter{limit: fixed, byCaller: map[string]*callerQueue{}}
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

// Ticket is one call that waits or is in flight. Each Ticket must be ended with End.
type Ticket struct {
	limiter      *Limiter
	caller, tool string
	admitted     chan struct{} // closed by admitLocked

	admittedAt time.Time // zero while the call waits
	round      int       // value of Limiter.round at admission
	lowLoad    bool      // at most Min calls were in flight at admission, including this call
	excluded   bool      // the latency of the call does not count
	ended      bool
}

// Enqueue returns the ticket of a new call of caller. The call is admitted at once if fewer calls than the
// limit are in flight and no call waits.
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

// Exclude makes the limiter ignore the latency of the call. It is for calls during which a person is asked.
func (t *Ticket) Exclude() {
	t.limiter.mu.Lock()
	defer t.limiter.mu.Unlock()
	t.excluded = true
}

// End ends an admitted call, which may change an adaptive limit, and admits calls that wait. If the call
// still waits, End removes it from the queue and ignores outcome. A second End of a ticket does nothing.
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

// admitLocked lets the call of a ticket begin, and records the load under which it begins.
func (l *Limiter) admitLocked(t *Ticket) {
	l.inFlight++
	t.admittedAt = time.Now()
	t.round = l.round
	t.lowLoad = l.inFlight <= Min
	close(t.admitted)
}

// dequeueLocked removes and returns the first call of the caller whose turn it is, and gives that caller the
// last turn. At least one call must wait.
func (l *Limiter) dequeueLocked() *Ticket {
	queue := l.queues[0]
	l.queues[0] = nil // for the garbage collector, as below
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

// removeLocked removes the call of t, which must wait, from the queue of its caller.
func (l *Limiter) removeLocked(t *Ticket) {
	queue := l.byCaller[t.caller]
	i := slices.Index(queue.tickets, t)
	queue.tickets = slices.Delete(queue.tickets, i, i+1)
	if len(queue.tickets) == 0 {
		delete(l.byCaller, t.caller)
		i = slices.Index(l.queues, queue)
		l.queues = slices.Delete(l.queues, i, i+1)
	}
}

// learnLocked updates the usual latency and the sample with a call that has ended at now, and evaluates a
// sample that is complete. Overload halves the limit at once.
func (l *Limiter) learnLocked(ticket *Ticket, outcome Outcome, now time.Time) {
	switch {
	case outcome == Overload:
		// Calls that were admitted before the latest decrease say nothing about the present limit.
		if ticket.round >= l.decreaseRound {
			l.setLimitLocked(l.limit/2, now)
		}
		return
	case outcome == Unknown || ticket.excluded:
		return
	}

	seconds := max(now.Sub(ticket.admittedAt), time.Microsecond).Seconds() // never 0: evaluateLocked divides by latencies
	usual := l.tools[ticket.tool]
	if ticket.lowLoad {
		usual = l.measureLocked(ticket.tool, seconds)
	}
	// Without a usual latency there is nothing to compare with, and a call from before the latest change of
	// the limit says nothing about the present limit.
	if usual == nil || ticket.round != l.round {
		return
	}
	l.sample.calls++
	l.sample.seconds += seconds
	l.sample.usualSeconds += usual.seconds
	if l.sample.calls >= callsPerPermit*l.limit {
		l.evaluateLocked(now)
	}
}

// measureLocked updates the usual latency of tool with a call that took that many seconds under low load, and returns
// it. It returns nil if the latencies of maxTools other tools are kept already.
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

// evaluateLocked changes the limit according to the sample, and begins a new sample.
func (l *Limiter) evaluateLocked(now time.Time) {
	ratio := l.sample.seconds / l.sample.usualSeconds
	l.sample = sample{}
	mayGrow := len(l.queues) > 0 && !now.Before(l.holdUntil)
	if ratio >= tooSlow || ratio <= target && mayGrow {
		l.setLimitLocked(int(float64(l.limit)*target/max(ratio, 1)), now)
	}
}

// setLimitLocked sets an adaptive limit to the given one, bounded by Min and Max. If that is a change, it
// begins a new round and a new sample. A decrease also keeps the limit from growing for holdTime.
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
