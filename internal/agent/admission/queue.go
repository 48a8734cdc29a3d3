package admission

import "slices"

// waiter is one request that waits for a slot. done gets the outcome, once.
type waiter struct {
	name string
	done chan error // of capacity 1
}

// callerQueue has the waiters of one caller, in the order in which they came.
type callerQueue struct {
	name    string
	waiters []*waiter
}

// queue has all waiters, in one queue per caller. The caller at the front is served next, once, and
// then goes to the end. There are at most twice Limits.Max, so it costs little to look at each.
type queue struct {
	n       int
	callers []*callerQueue
}

// pushWaiter adds a waiter at the end of its caller's queue. A caller without a queue gets one, behind the others.
func (q *queue) pushWaiter(w *waiter) {
	q.n++
	for _, caller := range q.callers {
		if caller.name == w.name {
			caller.waiters = append(caller.waiters, w)
			return
		}
	}
	q.callers = append(q.callers, &callerQueue{w.name, []*waiter{w}})
}

// popNext removes and returns the next waiter, or nil.
func (q *queue) popNext() *waiter {
	if len(q.callers) == 0 {
		return nil
	}
	q.n--
	caller := q.callers[0]
	q.callers = q.callers[1:]
	next := caller.waiters[0]
	caller.waiters = caller.waiters[1:]
	if len(caller.waiters) > 0 {
		q.callers = append(q.callers, caller)
	}
	return next
}

// removeWaiter removes a waiter, and its caller's queue if that is empty then. It does nothing if the waiter was
// removed before.
func (q *queue) removeWaiter(w *waiter) {
	for callerIndex, caller := range q.callers {
		waiterIndex := slices.Index(caller.waiters, w)
		if waiterIndex < 0 {
			continue
		}
		q.n--
		caller.waiters = slices.Delete(caller.waiters, waiterIndex, waiterIndex+1)
		if len(caller.waiters) == 0 {
			q.callers = slices.Delete(q.callers, callerIndex, callerIndex+1)
		}
		return
	}
}

// positionOf returns how many waiters are served until the nth of a caller is, that one included:
// until then no other caller is served more often.
func (q *queue) positionOf(name string, nth int) int {
	p := nth
	for _, caller := range q.callers {
		if caller.name != name {
			p += min(len(caller.waiters), nth)
		}
	}
	return p
}

// longestQueue returns the queue of the caller with the most waiters, nil if there are none.
func (q *queue) longestQueue() *callerQueue {
	var longest *callerQueue
	for _, caller := range q.callers {
		if longest == nil || len(caller.waiters) > len(longest.waiters) {
			longest = caller
		}
	}
	return longest
}
