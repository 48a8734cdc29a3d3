package admission

import "slices"

// waiter is one request that waits for a slot.
type waiter struct {
	name string     // of the caller
	done chan error // gets the outcome once: nil for a slot, or the refusal; capacity 1
}

// callerQueue has the waiters of one caller, in the order in which they came.
type callerQueue struct {
	name    string
	waiters []*waiter
}

// queue has all waiters, in one queue per caller. The first caller is served next: one of its waiters gets a slot, and
// the caller moves to the end. There are at most max(minQueue, 2*Limits.Max) waiters, so it costs little to look at all
// of them. Its user must hold Gate.mu.
type queue struct {
	count   int            // waiters of all callers
	callers []*callerQueue // callers with waiters, in the order in which they are served
}

// pushWaiter adds a waiter at the end of its caller's queue. A caller without a queue gets one at the end of q.callers.
func (q *queue) pushWaiter(w *waiter) {
	q.count++
	for _, caller := range q.callers {
		if caller.name == w.name {
			caller.waiters = append(caller.waiters, w)
			return
		}
	}
	q.callers = append(q.callers, &callerQueue{w.name, []*waiter{w}})
}

// popNext removes and returns the waiter to serve next, and moves its caller to the end. It returns nil if the queue is
// empty.
func (q *queue) popNext() *waiter {
	if len(q.callers) == 0 {
		return nil
	}
	q.count--
	caller := q.callers[0]
	q.callers = q.callers[1:]
	next := caller.waiters[0]
	caller.waiters = caller.waiters[1:]
	if len(caller.waiters) > 0 {
		q.callers = append(q.callers, caller)
	}
	return next
}

// removeWaiter removes a waiter, and its caller if the caller has no further waiters. It does nothing if the waiter is
// not in the queue.
func (q *queue) removeWaiter(w *waiter) {
	for callerIndex, caller := range q.callers {
		waiterIndex := slices.Index(caller.waiters, w)
		if waiterIndex < 0 {
			continue
		}
		q.count--
		caller.waiters = slices.Delete(caller.waiters, waiterIndex, waiterIndex+1)
		if len(caller.waiters) == 0 {
			q.callers = slices.Delete(q.callers, callerIndex, callerIndex+1)
		}
		return
	}
}

// positionOf returns the position in which the nth waiter of a caller is served, counted from 1, if no further waiters
// come. Until then each of the other callers is served at most n times, because callers take turns.
func (q *queue) positionOf(name string, nth int) int {
	position := nth
	for _, caller := range q.callers {
		if caller.name != name {
			position += min(len(caller.waiters), nth)
		}
	}
	return position
}

// longestQueue returns the queue of the caller with the most waiters; nil if there are no waiters.
func (q *queue) longestQueue() *callerQueue {
	var longest *callerQueue
	for _, caller := range q.callers {
		if longest == nil || len(caller.waiters) > len(longest.waiters) {
			longest = caller
		}
	}
	return longest
}
