// Package admission decides who may start a run when not everybody can: it limits how many runs
// are active, how many of them belong to one caller, and how fast one caller starts them.
//
//	gate := admission.New(admission.Limits{Max: 512, PerCaller: 50, Rate: admission.Rate{N: 10, Per: time.Second}})
//	slot, err := gate.Acquire(ctx, caller, int64(len(question))) // waits for at most ten seconds
//	if refused, ok := errors.AsType[*admission.Refusal](err); ok {
//		// refused.Reason, and refused.RetryAfter for the Retry-After header
//	}
//	defer slot.Release()
//
// A caller waits only if a slot will become free in time, by the rate of recent departures; else
// it is refused at once. Waiting callers are served in turn, one request of each, so that a caller
// with a thousand requests delays itself and not the others.
//
// Everything here may be used concurrently; nothing starts a goroutine.
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
	// maxWait is how long a request waits for a slot. At most twice Limits.Max requests wait, and at
	// least minQueue: more would not get one in time even if runs took a few seconds only.
	maxWait  = 10 * time.Second
	minQueue = 100
	// maxFairWait is the longest estimated wait of a caller that has its share of the slots, while
	// there are other callers. It is less than maxWait, since others may join the queue and come first.
	maxFairWait = maxWait / 3
	// maxCallers bounds the callers in memory: those with runs, and those that used some of
	// their rate.
	maxCallers = 1 << 16
	// memoryWait is when a request that is refused for lack of memory should come again.
	memoryWait = 2 * time.Second
)

// Reasons for a Refusal.
var (
	ErrFull    = errors.New("too many runs at a time")                    // of all callers
	ErrMemory  = errors.New("memory is short")                            // of the process
	ErrTooMany = errors.New("too many runs of one caller at a time")      // of this one
	ErrTooFast = errors.New("one caller starts runs faster than allowed") // this one
	ErrClosed  = errors.New("no further runs are admitted")
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
	Max       int  // at a time, of all callers
	PerCaller int  // at a time, of one; 0 means any number
	Rate      Rate // of one caller; the zero value means any
	// MemoryShort reports whether memory is short; then everybody is refused. nil means never.
	// It is called for every request.
	MemoryShort func() bool
	// Memory is the memory that runs may hold; nil means any amount.
	Memory *Memory
}

// Rate is N in any period of Per, which may come all at once.
type Rate struct {
	N   int
	Per time.Duration
}

// Gate hands out slots. Make it with New.
type Gate struct {
	Limits
	freed chan struct{} // of capacity 1: a slot was released

	mu      sync.Mutex // protects what follows and every Slot
	active  int
	closed  bool
	callers map[string]*callerState
	swept   time.Time // when callers was last looked through
	queue   queue
	pace    departureRate
}

// New returns a Gate whose slots are all free.
func New(l Limits) *Gate {
	return &Gate{Limits: l, freed: make(chan struct{}, 1), callers: make(map[string]*callerState)}
}

// Slot is the right to execute one run or call. Release it; once is enough.
type Slot struct {
	Memory *Reservation // of the run; Release releases it too

	gate   *Gate
	caller string
	token  bool // one of the caller's tokens was spent for it
	left   bool
}

// Acquire takes a slot for the caller with that name, at once or after a wait of at most ten seconds. It
// reserves requestBytes of memory, which the request of the run holds. It returns a *Refusal if there is no slot
// or ctx ends first, and ErrClosed after Close.
func (g *Gate) Acquire(ctx context.Context, name string, requestBytes int64) (*Slot, error) {
	processIsShort := g.MemoryShort != nil && g.MemoryShort()
	short := processIsShort || !g.Memory.hasRoom(requestBytes)
	g.mu.Lock()
	w, err := g.admitOrQueueLocked(name, short, time.Now())
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

// newSlot returns a slot that was taken, with its memory. Others may have taken the memory since it
// was looked at; then the slot is free again.
func (g *Gate) newSlot(name string, requestBytes int64) (*Slot, error) {
	p := &Slot{gate: g, caller: name, token: true}
	enough := false
	p.Memory, enough = g.Memory.reserve(requestBytes, false)
	if !enough {
		p.Discard()
		return nil, newRefusal(ErrMemory, memoryWait)
	}
	return p, nil
}

// admitOrQueueLocked takes a slot and returns nil, or puts the request into the queue and returns
// its waiter.
func (g *Gate) admitOrQueueLocked(name string, short bool, now time.Time) (*waiter, error) {
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
		// Of all active runs, some are this caller's: it waits until one of those ends.
		return nil, newRefusal(ErrTooMany, time.Duration(float64(g.pace.meanInterval(now))*float64(g.active)/float64(max(caller.active, 1))))
	case short:
		return nil, newRefusal(ErrMemory, memoryWait)
	case g.active < g.Max && g.queue.n == 0:
		g.spendTokenLocked(caller)
		g.countActiveLocked(caller, now)
		return nil, nil
	}

	position, longest := g.queue.positionOf(name, caller.waiting+1), maxWait
	if len(g.callers) > 1 && (caller.active+caller.waiting)*len(g.callers) >= g.Max {
		longest = maxFairWait
	}
	if time.Duration(position)*g.pace.meanInterval(now) >= longest {
		return nil, g.fullRefusalLocked(now, position)
	}
	if g.queue.n >= max(minQueue, 2*g.Max) {
		crowd := g.queue.longestQueue()
		if crowd == nil || len(crowd.waiters) <= caller.waiting+1 {
			return nil, g.fullRefusalLocked(now, position)
		}
		last := crowd.waiters[len(crowd.waiters)-1]
		g.removeWaiterLocked(last)
		last.done <- g.fullRefusalLocked(now, position)
	}

	w := &waiter{name: name, done: make(chan error, 1)}
	g.queue.pushWaiter(w)
	caller.waiting++
	g.spendTokenLocked(caller)
	return w, nil
}

// AcquireOverLimit takes a slot whatever the limits say, for a run that was admitted by another
// process and must continue, or that is the child of an admitted run. Its request holds requestBytes of memory.
// The caller has not started it, so it does not count for the rate.
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

// HasFreeSlot reports whether AcquireOverLimit would be fair. It does not queue: while others do,
// one slot above Max counts as free, or its turn would never come.
func (g *Gate) HasFreeSlot() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	limit := g.Max
	if g.queue.n > 0 {
		limit++
	}
	return g.active < limit && g.Memory.hasRoom(0)
}

// Freed returns a channel that can be received from when HasFreeSlot may have changed.
func (g *Gate) Freed() <-chan struct{} { return g.freed }

// Close refuses every request from now on, also those in the queue.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for w := g.queue.popNext(); w != nil; w = g.queue.popNext() {
		w.done <- ErrClosed
	}
}

// Release frees the slot, for the next in the queue if there is one. A nil slot may be released
// too.
func (p *Slot) Release() { p.freeOnce(true) }

// Discard is Release for a slot whose run did not begin. It does not count as one of its caller's starts.
func (p *Slot) Discard() { p.freeOnce(false) }

// freeOnce frees the slot, once, and gives it to the next in the queue. A run that has not begun gives its
// caller's token back, because it does not count for the caller's rate.
func (p *Slot) freeOnce(began bool) {
	if p == nil {
		return
	}
	gate := p.gate
	gate.mu.Lock()
	defer gate.mu.Unlock()
	if p.left {
		return
	}
	p.left = true
	p.Memory.Release()
	now := time.Now()
	gate.pace.countDeparture(now, gate.active >= gate.Max)
	gate.active--

	if c := gate.callers[p.caller]; c != nil {
		c.active--
		spentInVain := p.token && !began
		if spentInVain && gate.Rate.N > 0 {
			c.tokens++
		}
		gate.forgetIdleLocked(p.caller, c, now)
	}

	for gate.active < gate.Max {
		w := gate.queue.popNext()
		if w == nil {
			break
		}
		c := gate.callers[w.name]
		c.waiting--
		gate.countActiveLocked(c, now)
		w.done <- nil
	}

	select {
	case gate.freed <- struct{}{}:
	default:
	}
}

// leaveQueue removes a waiter from the queue and returns its refusal; nil if its turn came meanwhile.
func (g *Gate) leaveQueue(w *waiter) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	default:
	}
	g.removeWaiterLocked(w)
	return g.fullRefusalLocked(time.Now(), g.queue.n+1)
}

// removeWaiterLocked removes a waiter from the queue and returns its token to the caller.
func (g *Gate) removeWaiterLocked(w *waiter) {
	g.queue.removeWaiter(w)
	c := g.callers[w.name]
	c.waiting--
	if g.Rate.N > 0 {
		c.tokens++
	}
	g.forgetIdleLocked(w.name, c, time.Now())
}

// fullRefusalLocked returns the refusal for a request that would wait at that position of the queue.
func (g *Gate) fullRefusalLocked(now time.Time, position int) error {
	return newRefusal(ErrFull, time.Duration(position)*g.pace.meanInterval(now))
}

func newRefusal(reason error, wait time.Duration) error {
	seconds := min(max(math.Ceil(wait.Seconds()), 1), 60)
	return &Refusal{reason, time.Duration(seconds) * time.Second}
}
