// Package admission decides which runs may start: it limits how many runs
// are active, how many of them belong to one caller, and how fast one caller starts them.
//
//	gate := admission.New(admission.Limits{Max: 512, PerCaller: 50, Rate: admission.Rate{N: 10, Per: time.Second}})
//	slot, err := gate.Acquire(ctx, caller, int64(len(question))) // waits for at most ten seconds
//	if refused, ok := errors.AsType[*admission.Refusal](err); ok {
//		// refused.Reason, and refused.RetryAfter for the Retry-After header
//	}
//	defer slot.Release()
//
// A request waits only if a slot is expected to become free in time, by the rate at which runs ended recently;
// otherwise it is refused at once. Waiting callers are served in turn, one request of each, so that a caller with a
// thousand requests delays only itself.
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
	// maxWait is how long a request waits for a slot.
	maxWait = 10 * time.Second
	// minQueue bounds the requests that wait if it is more than twice Limits.Max, which is the bound otherwise: more
	// would not get a slot in time, even if runs took only a few seconds.
	minQueue = 100
	// maxFairWait is the longest estimated wait of a caller that has its share of the slots, while there are other
	// callers. It is less than maxWait, because requests of other callers may join the queue and be served first.
	maxFairWait = maxWait / 3
	// maxCallers bounds the callers in memory: those with runs, and those that used some of their rate.
	maxCallers = 1 << 16
	// memoryWait is the RetryAfter of a request that is refused for lack of memory.
	memoryWait = 2 * time.Second
)

// Reasons for a Refusal.
var (
	ErrFull    = errors.New("too many runs at a time")                    // Limits.Max, or too many callers
	ErrMemory  = errors.New("memory is short")                            // Limits.MemoryShort or Limits.Memory
	ErrTooMany = errors.New("too many runs of one caller at a time")      // Limits.PerCaller
	ErrTooFast = errors.New("one caller starts runs faster than allowed") // Limits.Rate
	ErrClosed  = errors.New("no further runs are admitted")               // after Close; never in a Refusal
)

// Refusal says that a caller got no slot. It wraps one of the errors above.
type Refusal struct {
	Reason error
	// RetryAfter is when another try makes sense, 1 s to 60 s, in whole seconds.
	RetryAfter time.Duration
}

func (r *Refusal) Error() string { return r.Reason.Error() }
func (r *Refusal) Unwrap() error { return r.Reason }

// ToolsUnavailableError refuses a question that needs tools of servers that cannot be connected at
// present. No model was asked.
type ToolsUnavailableError struct {
	Servers []string // their names; at least one
}

func (e *ToolsUnavailableError) Error() string {
	return "no MCP server with the tools of the question is available: " + strings.Join(e.Servers, ", ")
}

// Limits bounds the active runs. Only Max is required.
type Limits struct {
	Max       int  // active runs of all callers
	PerCaller int  // active and waiting runs of one caller; 0 means any number
	Rate      Rate // starts of one caller; the zero value means any rate
	// MemoryShort reports whether the memory of the process is short; then every request is refused. nil means never.
	// It is called for every request.
	MemoryShort func() bool
	// Memory is the memory that runs may hold together; nil means any amount.
	Memory *Memory
}

// Rate is a limit of N starts per period Per, as a token bucket: N starts may come at once.
type Rate struct {
	N   int
	Per time.Duration
}

// Gate hands out slots. Make it with New.
type Gate struct {
	Limits
	freed chan struct{} // gets an element when a slot was released; capacity 1

	mu        sync.Mutex              // guards the fields below and those of every Slot
	active    int                     // slots that are taken
	closed    bool                    // Close was called
	callers   map[string]*callerState // with a run, a waiter or spent tokens; idle ones until they are forgotten
	lastSweep time.Time               // when forgetAllIdleLocked last looked at all callers
	queue     queue
	pace      departureRate
}

// New returns a Gate whose slots are all free.
func New(limits Limits) *Gate {
	return &Gate{Limits: limits, freed: make(chan struct{}, 1), callers: make(map[string]*callerState)}
}

// Slot is the right to execute one run or call. The holder must call Release or Discard; further calls do nothing.
type Slot struct {
	Memory *Reservation // memory of the run, which Release and Discard release too

	gate       *Gate
	caller     string
	spentToken bool // the slot has cost the caller a token of Limits.Rate
	freed      bool
}

// Acquire takes a slot for the caller with that name, at once or after a wait of at most ten seconds. requestBytes is
// the memory that the request of the run holds. Acquire returns a *Refusal if the limits do not allow the run, if no
// slot becomes free in time, or if ctx ends during the wait, and ErrClosed after Close.
func (g *Gate) Acquire(ctx context.Context, name string, requestBytes int64) (*Slot, error) {
	processIsShort := g.MemoryShort != nil && g.MemoryShort()
	memoryIsShort := processIsShort || !g.Memory.hasRoom(requestBytes)
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

// newSlot returns the Slot for a slot that has been counted for the caller, and reserves its memory. If other runs have
// taken the memory since Acquire checked it, newSlot frees the slot and returns a *Refusal.
func (g *Gate) newSlot(name string, requestBytes int64) (*Slot, error) {
	slot := &Slot{gate: g, caller: name, spentToken: true}
	enough := false
	slot.Memory, enough = g.Memory.reserve(requestBytes, false)
	if !enough {
		slot.Discard()
		return nil, newRefusal(ErrMemory, memoryWait)
	}
	return slot, nil
}

// admitOrQueueLocked counts a slot for the caller and returns nil, or puts the request into the queue and returns its
// waiter. Both spend a token. It returns an error if the request is refused.
func (g *Gate) admitOrQueueLocked(name string, memoryIsShort bool, now time.Time) (*waiter, error) {
	if g.closed {
		return nil, ErrClosed
	}
	caller := g.callerLocked(name, now)
	switch {
	case caller == nil:
		return nil, g.fullRefusalLocked(now, 1)
	case caller.tokens < 1:
		return nil, newRefusal(ErrTooFast, time.Duration((1-caller.tokens)*float64(g.Rate.Per)/float64(g.Rate.N)))
	case g.PerCaller > 0 && caller.active+caller.waiting >= g.PerCaller:
		// The caller can come again when one of its own runs ends. These are a part of all active runs, so that takes
		// longer than until any run ends.
		runsPerOwnRun := float64(g.active) / float64(max(caller.active, 1))
		return nil, newRefusal(ErrTooMany, time.Duration(float64(g.pace.meanInterval(now))*runsPerOwnRun))
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
	caller.waiting++
	g.spendTokenLocked(caller)
	return w, nil
}

// makeQueueSpaceLocked returns nil if the queue can take one more request of the caller, and otherwise the refusal of
// that request. It refuses a request that would wait too long. A full queue refuses the newest request of the caller
// with the most waiters: either the new request, or one in the queue, whose waiter then gets the refusal.
func (g *Gate) makeQueueSpaceLocked(name string, caller *callerState, now time.Time) error {
	position := g.queue.positionOf(name, caller.waiting+1)
	longestWait := maxWait
	if len(g.callers) > 1 && (caller.active+caller.waiting)*len(g.callers) >= g.Max {
		longestWait = maxFairWait // the caller has its share of the slots
	}
	if time.Duration(position)*g.pace.meanInterval(now) >= longestWait {
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

// AcquireOverLimit takes a slot regardless of the limits and even after Close, for a run that was admitted by another
// process and must continue, or that is the child of an admitted run. requestBytes is the memory that its request
// holds. The caller has not started the run, so it does not cost a token of the caller's rate.
func (g *Gate) AcquireOverLimit(name string, requestBytes int64) *Slot {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	c := g.callerLocked(name, now)
	if c == nil {
		c = g.addCallerLocked(name, now)
	}
	g.countActiveLocked(c, now)
	reserved, _ := g.Memory.reserve(requestBytes, true)
	return &Slot{Memory: reserved, gate: g, caller: name}
}

// HasFreeSlot reports whether there is a slot, and memory, for a run that another process has admitted. A run that is
// taken over does not wait in the queue, and each slot that becomes free goes to the queue first. So while requests
// wait, one slot above Max counts as free.
func (g *Gate) HasFreeSlot() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	limit := g.Max
	if g.queue.count > 0 {
		limit++
	}
	return g.active < limit && g.Memory.hasRoom(0)
}

// Freed returns a channel that gets an element when a slot was released, after which HasFreeSlot may report true. Of
// several receivers, only one gets it.
func (g *Gate) Freed() <-chan struct{} { return g.freed }

// Close makes Acquire return ErrClosed from now on, also for the requests in the queue. Taken slots stay valid.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for w := g.queue.popNext(); w != nil; w = g.queue.popNext() {
		w.done <- ErrClosed
	}
}

// Release frees the slot after its run has ended, and gives it to the next request in the queue. A nil slot may be
// released too.
func (s *Slot) Release() { s.freeOnce(true) }

// Discard frees the slot of a run that did not begin, as Release does, and gives the caller the token of its rate back.
func (s *Slot) Discard() { s.freeOnce(false) }

// freeOnce frees the slot, unless that has been done. began is false if the slot's run did not begin.
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
		c.active--
		if s.spentToken && !began {
			gate.returnTokenLocked(c)
		}
		gate.forgetIdleLocked(s.caller, c, now)
	}
	gate.serveQueueLocked(now)
	select {
	case gate.freed <- struct{}{}:
	default: // an earlier element has not been received yet
	}
}

// serveQueueLocked gives free slots to the next waiters in the queue.
func (g *Gate) serveQueueLocked(now time.Time) {
	for g.active < g.Max {
		w := g.queue.popNext()
		if w == nil {
			return
		}
		c := g.callers[w.name]
		c.waiting--
		g.countActiveLocked(c, now)
		w.done <- nil
	}
}

// leaveQueue ends the wait of a waiter. It returns the outcome if the waiter has one already, which is nil if a slot
// was counted for it. Otherwise it removes the waiter from the queue and returns a *Refusal.
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

// removeWaiterLocked removes a waiter, which must be in the queue, and gives its token back to the caller.
func (g *Gate) removeWaiterLocked(w *waiter) {
	g.queue.removeWaiter(w)
	c := g.callers[w.name]
	c.waiting--
	g.returnTokenLocked(c)
	g.forgetIdleLocked(w.name, c, time.Now())
}

// fullRefusalLocked returns the refusal for a request at that position of the queue, counted from 1. RetryAfter is the
// time until a slot is expected to be free for that position.
func (g *Gate) fullRefusalLocked(now time.Time, position int) error {
	return newRefusal(ErrFull, time.Duration(position)*g.pace.meanInterval(now))
}

// newRefusal returns a *Refusal with wait rounded up to whole seconds, within 1 s to 60 s.
func newRefusal(reason error, wait time.Duration) error {
	seconds := min(max(math.Ceil(wait.Seconds()), 1), 60)
	return &Refusal{reason, time.Duration(seconds) * time.Second}
}
