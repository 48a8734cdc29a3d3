package admission

import "slices"

// waiter is one request that waits for a slot.
type waiter struct {
	name string     // the caller's name
	done chan error // gets the outcome once: nil for a slot, or the refusal; capacity 1
}

// callerQueue holds one caller's waiters, in the order they came.
type callerQueue struct {
	name    string
	waiters []*waiter
}

// queue holds all waiters, in one queue per caller. The first caller is served next: one of its waiters gets a slot,
// and the caller moves to the end. The queue is searched linearly, since it has at most max(minQueue, 2*Limits.Max)
// waiters. Callers must hold Gate.mu.
type queue struct {
	count   int            // waiters of all callers
	callers []*callerQueue // callers with waiters, in the order they are served
}

// pushWaiter adds w at the end of its caller's queue. A caller that has no queue yet gets one at the end of q.callers.
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

// popNext removes and returns the waiter to serve next, or nil, and moves its caller to the end.
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

// removeWaiter removes w, and also its caller if that has no other waiters. It does nothing if w is not in the queue.
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

// positionOf returns at which position, counted from 1, a caller's nth waiter will be served if no others join. Before
// that, each other caller is served at most n times, because callers take turns.
func (q *queue) positionOf(name string, nth int) int {
	position := nth
	for _, caller := range q.callers {
		if caller.name != name {
			position += min(len(caller.waiters), nth)
		}
	}
	return position
}

// longestQueue returns the queue of the caller with the most waiters, or nil if nothing waits.
func (q *queue) longestQueue() *callerQueue {
	var longest *callerQueue
	for _, caller := range q.callers {
		if longest == nil || len(caller.waiters) > len(longest.waiters) {
			longest = caller
		}
	}
	return longest
}
