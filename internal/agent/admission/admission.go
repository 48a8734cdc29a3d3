// Package admission decides which runs may start. It limits how many runs are active, how many of them belong to one
// caller, and how fast each caller starts them.
//
//	gate := admission.New(admission.Limits{Max: 512, PerCaller: 50, Rate: admission.Rate{N: 10, Per: time.Second}})
//	slot, err := gate.Acquire(ctx, caller, int64(len(question))) // waits for at most ten seconds
//	if refused, ok := errors.AsType[*admission.Refusal](err); ok {
//		// refused.Reason, and refused.RetryAfter for the Retry-After header
//	}
//	defer slot.Release()
//
// A request waits for a slot only if it can expect one in time, judging by how fast runs have ended recently. Otherwise
// it is refused at once. Waiting callers take turns, so that a caller with a thousand requests delays only itself.
//
// Everything in this package may be used concurrently. It starts no goroutines.
package admission

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"time"
)

const (
	// maxWait is how long a request may wait for a slot.
	maxWait = 10 * time.Second
	// minQueue is how many requests may wait even if Limits.Max is small. The limit is otherwise twice Limits.Max:
	// further requests would not get a slot in time, even if runs took only a few seconds.
	minQueue = 100
	// maxFairWait is the longest expected wait for a caller that already has its share of the slots, while there are
	// other callers. It is shorter than maxWait, because requests of other callers may still be served first.
	maxFairWait = maxWait / 3
	// maxCallers is how many callers are kept in memory: those with runs, and those that have used part of their rate.
	maxCallers = 1 << 16
	// memoryWait is the RetryAfter of a request that is refused for lack of memory.
	memoryWait = 2 * time.Second
)

// Reasons for a Refusal. The comments name the limits that cause them.
var (
	ErrFull    = errors.New("too many runs at a time")                    // Limits.Max, or too many callers
	ErrMemory  = errors.New("memory is short")                            // Limits.MemoryShort or Limits.Memory
	ErrTooMany = errors.New("too many runs of one caller at a time")      // Limits.PerCaller
	ErrTooFast = errors.New("one caller starts runs faster than allowed") // Limits.Rate
	ErrClosed  = errors.New("no further runs are admitted")               // after Close; never in a Refusal
)

// Refusal is the error for a caller that got no slot. It wraps one of the errors above.
type Refusal struct {
	Reason error
	// RetryAfter is how long to wait before the next try, from 1 s to 60 s, in whole seconds.
	RetryAfter time.Duration
}

func (r *Refusal) Error() string { return r.Reason.Error() }
func (r *Refusal) Unwrap() error { return r.Reason }

// ToolsUnavailableError refuses a question that needs tools of unreachable servers. The model was not asked.
type ToolsUnavailableError struct {
	Servers []string // their names; at least one
}

func (e *ToolsUnavailableError) Error() string {
	return "no MCP server with the tools of the question is available: " + strings.Join(e.Servers, ", ")
}

// Limits limits the active runs. Only Max is required.
type Limits struct {
	Max       int  // active runs of all callers together
	PerCaller int  // active and waiting runs of one caller; 0 means no limit
	Rate      Rate // how fast one caller may start runs; the zero value means no limit
	// MemoryShort reports whether the process is short of memory. While it returns true, every request is refused; a
	// nil MemoryShort refuses none. It is called for every request.
	MemoryShort func() bool
	// Memory is what all runs together may hold; nil means no limit.
	Memory *Memory
}

// Rate allows N starts per period Per. It is a token bucket, so N starts may come at once.
type Rate struct {
	N   int
	Per time.Duration
}

// Gate hands out slots. Create it with New.
type Gate struct {
	Limits
	freed chan struct{} // gets an element when a slot is released; capacity 1

	mu        sync.Mutex              // guards the fields below and those of every Slot
	active    int                     // how many slots are taken
	busy      int                     // how many callers have a slot or a waiter
	closed    bool                    // Close was called
	callers   map[string]*callerState // callers with a run, a waiter or spent tokens, and idle ones not forgotten yet
	lastSweep time.Time               // when forgetAllIdleLocked last checked all callers
	queue     queue
	pace      departureRate
}

// New returns a Gate whose slots are all free.
func New(limits Limits) *Gate {
	return &Gate{Limits: limits, freed: make(chan struct{}, 1), callers: make(map[string]*callerState)}
}

// Slot is the right to execute one run or direct call. Call Release or Discard; only the first call counts.
type Slot struct {
	Memory *Reservation // the run's memory, which Release and Discard also release

	gate       *Gate
	caller     string
	spentToken bool // the slot cost the caller a token of Limits.Rate
	freed      bool
}

// Acquire takes a slot for the caller called name, at once or after waiting at most ten seconds. requestBytes is the
// memory that the run's request holds. The error is a *Refusal if the limits do not allow the run, if no slot becomes
// free in time, or if ctx ends during the wait. After Close it is ErrClosed.
func (g *Gate) Acquire(ctx context.Context, name string, requestBytes int64) (*Slot, error) {
	processIsShort := g.MemoryShort != nil && g.MemoryShort()
	memoryIsShort := processIsShort || !g.Memory.fits(requestBytes)
	g.mu.Lock()
	w, err := g.admitOrQueueLocked(name, memoryIsShort, time.Now())
	if c := g.callers[name]; err != nil && c != nil {
		g.forgetIdleLocked(name, c, time.Now())
	}
	g.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if w == nil {
		return g.newSlot(name, requestBytes)
	}
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case err = <-w.done:
	case <-timer.C:
		err = g.leaveQueue(w)
	case <-ctx.Done():
		err = g.leaveQueue(w)
	}
	if err != nil {
		return nil, err
	}
	return g.newSlot(name, requestBytes)
}

// newSlot returns a Slot that was already counted for the caller, and reserves the run's memory. If other runs have
// taken the memory since Acquire checked it, newSlot frees the slot and returns a *Refusal.
func (g *Gate) newSlot(name string, requestBytes int64) (*Slot, error) {
	slot := &Slot{gate: g, caller: name, spentToken: true}
	memory, enough := g.Memory.reserve(requestBytes)
	if !enough {
		slot.Discard()
		return nil, newRefusal(ErrMemory, memoryWait)
	}
	slot.Memory = memory
	return slot, nil
}

// admitOrQueueLocked counts a slot for the caller and returns nil, or adds the request to the queue and returns its
// waiter. Both spend a token. If the request is refused, it returns an error and spends none. g.mu must be held.
func (g *Gate) admitOrQueueLocked(name string, memoryIsShort bool, now time.Time) (*waiter, error) {
	if g.closed {
		return nil, ErrClosed
	}
	caller := g.callerLocked(name, now)
	switch {
	case caller == nil:
		return nil, g.fullRefusalLocked(now, 1)
	case caller.tokens < 1:
		untilToken := (1 - caller.tokens) * float64(g.Rate.Per) / float64(g.Rate.N)
		return nil, newRefusal(ErrTooFast, time.Duration(untilToken))
	case g.PerCaller > 0 && caller.active+caller.waiting >= g.PerCaller:
		// The caller can try again when one of its own runs ends. That takes longer than until any run ends.
		runsPerOwnRun := float64(g.active) / float64(max(caller.active, 1))
		untilOwnRunEnds := float64(g.pace.meanInterval(now)) * runsPerOwnRun
		return nil, newRefusal(ErrTooMany, time.Duration(untilOwnRunEnds))
	case memoryIsShort:
		return nil, newRefusal(ErrMemory, memoryWait)
	case g.active < g.Max && g.queue.count == 0:
		g.spendTokenLocked(caller)
		g.countActiveLocked(caller, now)
		return nil, nil
	}

	if err := g.makeQueueSpaceLocked(name, caller, now); err != nil {
		return nil, err
	}
	w := &waiter{name: name, done: make(chan error, 1)}
	g.queue.pushWaiter(w)
	g.countRequestsLocked(caller, 0, 1)
	g.spendTokenLocked(caller)
	return w, nil
}

// makeQueueSpaceLocked returns nil if the caller may add one more request to the queue, and otherwise the refusal of
// that request. It refuses a request that would wait too long. If the queue is full, it refuses the newest request of
// the caller with the most waiters, which is this one or one in the queue. g.mu must be held.
func (g *Gate) makeQueueSpaceLocked(name string, caller *callerState, now time.Time) error {
	position := g.queue.positionOf(name, caller.waiting+1)
	longestWait := maxWait
	hasItsShare := (caller.active+caller.waiting)*g.busy >= g.Max
	if hasItsShare && g.busy > 1 {
		longestWait = maxFairWait
	}
	expectedWait := time.Duration(position) * g.pace.meanInterval(now)
	if expectedWait >= longestWait {
		return g.fullRefusalLocked(now, position)
	}
	if g.queue.count < max(minQueue, 2*g.Max) {
		return nil
	}
	longestQueue := g.queue.longestQueue()
	if longestQueue == nil || len(longestQueue.waiters) <= caller.waiting+1 {
		return g.fullRefusalLocked(now, position)
	}
	newest := longestQueue.waiters[len(longestQueue.waiters)-1]
	g.removeWaiterLocked(newest)
	newest.done <- g.fullRefusalLocked(now, position)
	return nil
}

// AcquireOverLimit takes a slot regardless of the limits and even after Close. It is for a run that another process has
// admitted and that must continue, and for a child of an admitted run. requestBytes is the memory that the run's
// request holds. It does not cost a token, because the caller did not start this run.
func (g *Gate) AcquireOverLimit(name string, requestBytes int64) *Slot {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	caller := g.callerLocked(name, now)
	if caller == nil { // maxCallers are in memory
		caller = g.addCallerLocked(name, now)
	}
	g.countActiveLocked(caller, now)
	return &Slot{Memory: g.Memory.reserveOverLimit(requestBytes), gate: g, caller: name}
}

// HasFreeSlot reports whether there is a slot, and memory, for a run to be taken over from another process. Such a run
// does not wait in the queue, but each slot that becomes free goes to the queue first. So while requests wait, one slot
// above Max counts as free; otherwise runs could never be taken over.
func (g *Gate) HasFreeSlot() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	limit := g.Max
	if g.queue.count > 0 {
		limit++
	}
	return g.active < limit && g.Memory.fits(0)
}

// Freed returns a channel that gets an element when a slot is released, because HasFreeSlot may then return true. If
// several goroutines receive, only one gets the element.
func (g *Gate) Freed() <-chan struct{} { return g.freed }

// Close makes Acquire return ErrClosed from now on, even to requests in the queue. Slots that are taken stay valid.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for w := g.queue.popNext(); w != nil; w = g.queue.popNext() {
		w.done <- ErrClosed
	}
}

// Release frees the slot after its run has ended, and gives it to the next request in the queue. s may be nil.
func (s *Slot) Release() { s.freeOnce(true) }

// Discard frees the slot of a run that did not begin. Unlike Release, it returns the token that the slot cost.
func (s *Slot) Discard() { s.freeOnce(false) }

// freeOnce frees the slot, unless it is already free. began says whether the slot's run began.
func (s *Slot) freeOnce(began bool) {
	if s == nil {
		return
	}
	gate := s.gate
	gate.mu.Lock()
	defer gate.mu.Unlock()
	if s.freed {
		return
	}
	s.freed = true
	s.Memory.Release()
	now := time.Now()
	gate.pace.countDeparture(now, gate.active >= gate.Max)
	gate.active--
	if c := gate.callers[s.caller]; c != nil {
		gate.countRequestsLocked(c, -1, 0)
		if s.spentToken && !began {
			gate.returnTokenLocked(c)
		}
		gate.forgetIdleLocked(s.caller, c, now)
	}
	gate.serveQueueLocked(now)
	select {
	case gate.freed <- struct{}{}:
	default: // the channel still has an earlier element
	}
}

// serveQueueLocked gives the free slots to the next waiters in the queue. g.mu must be held.
func (g *Gate) serveQueueLocked(now time.Time) {
	for g.active < g.Max {
		w := g.queue.popNext()
		if w == nil {
			return
		}
		c := g.callers[w.name]
		g.countRequestsLocked(c, 0, -1)
		g.countActiveLocked(c, now)
		w.done <- nil
	}
}

// leaveQueue ends a request's wait. If the waiter already has its outcome, leaveQueue returns that; nil means that a
// slot was counted for it. Otherwise it removes the waiter from the queue and returns a *Refusal.
func (g *Gate) leaveQueue(w *waiter) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	default:
	}
	g.removeWaiterLocked(w)
	return g.fullRefusalLocked(time.Now(), g.queue.count+1)
}

// removeWaiterLocked removes w, which must be in the queue, and gives its caller the token back. g.mu must be held.
func (g *Gate) removeWaiterLocked(w *waiter) {
	g.queue.removeWaiter(w)
	c := g.callers[w.name]
	g.countRequestsLocked(c, 0, -1)
	g.returnTokenLocked(c)
	g.forgetIdleLocked(w.name, c, time.Now())
}

// fullRefusalLocked returns the refusal for a request at this position of the queue, counted from 1. RetryAfter is how
// long it is expected to take until a slot is free for that position. g.mu must be held.
func (g *Gate) fullRefusalLocked(now time.Time, position int) error {
	return newRefusal(ErrFull, time.Duration(position)*g.pace.meanInterval(now))
}

// newRefusal returns a *Refusal whose RetryAfter is wait, rounded up to whole seconds, but from 1 s to 60 s.
func newRefusal(reason error, wait time.Duration) error {
	seconds := min(max(math.Ceil(wait.Seconds()), 1), 60)
	return &Refusal{reason, time.Duration(seconds) * time.Second}
}
