// Package admission decides who may come in when not everybody can: how many runs go on
// at a time, how many of them are one caller's, and how fast one caller starts them.
//
//	gate := admission.New(admission.Limits{Max: 512, PerCaller: 50, Rate: admission.Rate{N: 10, Per: time.Second}})
//	slot, err := gate.Acquire(ctx, caller) // waits for at most a second
//	defer slot.Release()
//
// Whoever is refused learns it at once: a caller waits only where, by the pace at which
// places became free of late, one will in time. Those who wait are served in turn, one
// caller after the other, so that somebody with a thousand requests waits for himself
// and not in front of the others.
//
// A refusal is an *Refusal. Everything here may be used concurrently; nothing starts a
// goroutine.
package admission

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"
)

const (
	// maxWaiting bounds those who wait for a place, and maxWait how long one does.
	maxWaiting = 100
	maxWait    = time.Second
	// hopeful is the longest wait that is begun by somebody who has his share of the
	// places. Less than maxWait: his turn can come later than it was reckoned, when others
	// join.
	hopeful = maxWait / 3
	// maxCallers bounds the callers that are remembered: those with runs, and those who
	// used up some of their rate.
	maxCallers = 1 << 16
)

// Why a caller is refused.
var (
	ErrFull    = errors.New("too many runs at a time")                    // of all callers
	ErrMemory  = errors.New("memory is short")                            // of the process
	ErrTooMany = errors.New("too many runs of one caller at a time")      // of this one
	ErrTooFast = errors.New("one caller starts runs faster than allowed") // this one
	ErrClosed  = errors.New("nobody is let in any more")
)

// Refusal is a caller who was not let in. It wraps one of the errors above.
type Refusal struct {
	Reason error
	// RetryAfter is when another try makes sense, 1 s to 60 s, in whole seconds.
	RetryAfter time.Duration
}

func (r *Refusal) Error() string { return r.Reason.Error() }
func (r *Refusal) Unwrap() error { return r.Reason }

// Limits are who may come in. Only Max is required.
type Limits struct {
	Max       int  // at a time, of all callers
	PerCaller int  // at a time, of one; 0 means any number
	Rate      Rate // of one caller; the zero value means any
	// Short reports whether memory is short, which keeps everybody out. nil means never.
	// It is called often.
	MemoryShort func() bool
}

// Rate is N in any period of Per, which may come all at once.
type Rate struct {
	N   int
	Per time.Duration
}

// Gate counts who is in. Make it with New.
type Gate struct {
	Limits
	freed chan struct{} // of capacity 1: somebody has left

	mu      sync.Mutex // guards what follows and every Place
	in      int
	closed  bool
	callers map[string]*caller
	swept   time.Time // when callers was last looked through
	queue   queue
	pace    pace
}

// New returns a gate with nobody in.
func New(l Limits) *Gate {
	return &Gate{Limits: l, freed: make(chan struct{}, 1), callers: make(map[string]*caller)}
}

// Slot is being in. Its Leave must be called; once is enough.
type Slot struct {
	gate   *Gate
	caller string
	left   bool
}

// Acquire lets a caller in, at once or after a wait of at most a second. When ctx ends
// first, that is a refusal too: whoever asked is gone.
func (g *Gate) Acquire(ctx context.Context, name string) (*Slot, error) {
	short := g.MemoryShort != nil && g.MemoryShort()
	g.mu.Lock()
	w, err := g.enterLocked(name, short, time.Now())
	if c := g.callers[name]; err != nil && c != nil {
		g.forgetLocked(name, c, time.Now())
	}
	g.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if w == nil {
		return &Slot{gate: g, caller: name}, nil
	}
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case err = <-w.done:
	case <-timer.C:
		err = g.giveUp(w)
	case <-ctx.Done():
		err = g.giveUp(w)
	}
	if err != nil {
		return nil, err
	}
	return &Slot{gate: g, caller: name}, nil
}

// enterLocked counts a caller in, or returns him as one who waits.
func (g *Gate) enterLocked(name string, short bool, now time.Time) (*waiter, error) {
	if g.closed {
		return nil, ErrClosed
	}
	c := g.callerLocked(name, now)
	switch {
	case c == nil:
		return nil, g.fullLocked(now, 1)
	case c.tokens < 1:
		return nil, refusal(ErrTooFast, time.Duration((1-c.tokens)*float64(g.Rate.Per)/float64(g.Rate.N)))
	case g.PerCaller > 0 && c.in+c.waiting >= g.PerCaller:
		// Of all who are in, some are his.
		return nil, refusal(ErrTooMany, time.Duration(float64(g.pace.interval(now))*float64(g.in)/float64(max(c.in, 1))))
	case short:
		return nil, refusal(ErrMemory, 2*time.Second)
	case g.in < g.Max && g.queue.n == 0:
		g.countLocked(c, now)
		return nil, nil
	}
	position, longest := g.queue.position(name, c.waiting+1), maxWait
	if (c.in+c.waiting)*len(g.callers) >= g.Max {
		longest = hopeful
	}
	if time.Duration(position)*g.pace.interval(now) >= longest {
		return nil, g.fullLocked(now, position)
	}
	if g.queue.n >= maxWaiting {
		crowd := g.queue.longest()
		if crowd == nil || len(crowd.waiters) <= c.waiting+1 {
			return nil, g.fullLocked(now, position)
		}
		last := crowd.waiters[len(crowd.waiters)-1]
		g.dropLocked(last)
		last.done <- g.fullLocked(now, position)
	}
	w := &waiter{name: name, done: make(chan error, 1)}
	g.queue.push(w)
	c.waiting++
	g.spendLocked(c)
	return w, nil
}

// AcquireOverLimit counts in what has to go on whatever the limits say, and was in elsewhere before.
func (g *Gate) AcquireOverLimit(name string) *Slot {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	c := g.callerLocked(name, now)
	if c == nil {
		c = g.addLocked(name, now)
	}
	g.countLocked(c, now)
	return &Slot{gate: g, caller: name}
}

// HasFreeSlot reports whether there is room for somebody to be taken. He does not stand in the
// queue: while others do, one above Max is room as well, or his turn would never come.
func (g *Gate) HasFreeSlot() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.in < g.Max || g.queue.n > 0 && g.in == g.Max
}

// Freed says, when it can be received from, that there may be room.
func (g *Gate) Freed() <-chan struct{} { return g.freed }

// Close refuses everybody from now on, and those who wait.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for w := g.queue.pop(); w != nil; w = g.queue.pop() {
		w.done <- ErrClosed
	}
}

// Release makes the place free, for the next in the queue if there is one. No place, nil,
// can be left too.
func (p *Slot) Release() {
	if p == nil {
		return
	}
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.left {
		return
	}
	p.left = true
	now := time.Now()
	g.pace.left(now, g.in >= g.Max)
	g.in--
	if c := g.callers[p.caller]; c != nil {
		c.in--
		g.forgetLocked(p.caller, c, now)
	}
	for g.in < g.Max {
		w := g.queue.pop()
		if w == nil {
			break
		}
		c := g.callers[w.name]
		c.waiting--
		g.enteredLocked(c, now)
		w.done <- nil
	}
	select {
	case g.freed <- struct{}{}:
	default:
	}
}

// giveUp takes w out of the queue; nil if its turn came meanwhile.
func (g *Gate) giveUp(w *waiter) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	default:
	}
	g.dropLocked(w)
	return g.fullLocked(time.Now(), g.queue.n+1)
}

// dropLocked takes w out of the queue, and gives back what he paid for it.
func (g *Gate) dropLocked(w *waiter) {
	g.queue.remove(w)
	c := g.callers[w.name]
	c.waiting--
	if g.Rate.N > 0 {
		c.tokens++
	}
	g.forgetLocked(w.name, c, time.Now())
}

// fullLocked refuses who would be that far behind in the queue.
func (g *Gate) fullLocked(now time.Time, position int) error {
	return refusal(ErrFull, time.Duration(position)*g.pace.interval(now))
}

func refusal(reason error, wait time.Duration) error {
	seconds := min(max(math.Ceil(wait.Seconds()), 1), 60)
	return &Refusal{reason, time.Duration(seconds) * time.Second}
}
