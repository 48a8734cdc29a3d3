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

// queue has all waiters, in one line per caller. The caller at the front is served next, once, and
// then goes to the end. There are at most twice Limits.Max, so walking along them is cheap.
type queue struct {
	n     int
	lines []*callerQueue
}

// pushWaiter adds a waiter at the end of its caller's line. A caller without a line gets one, behind the others.
func (q *queue) pushWaiter(w *waiter) {
	q.n++
	for _, line := range q.lines {
		if line.name == w.name {
			line.waiters = append(line.waiters, w)
			return
		}
	}
	q.lines = append(q.lines, &callerQueue{w.name, []*waiter{w}})
}

// popNext removes and returns the next waiter, or nil.
func (q *queue) popNext() *waiter {
	if len(q.lines) == 0 {
		return nil
	}
	q.n--
	line := q.lines[0]
	q.lines = q.lines[1:]
	next := line.waiters[0]
	line.waiters = line.waiters[1:]
	if len(line.waiters) > 0 {
		q.lines = append(q.lines, line)
	}
	return next
}

// removeWaiter removes a waiter, and the line of its caller if nobody else waits in it. It does nothing if the waiter
// has left the queue already.
func (q *queue) removeWaiter(w *waiter) {
	for lineIndex, line := range q.lines {
		waiterIndex := slices.Index(line.waiters, w)
		if waiterIndex < 0 {
			continue
		}
		q.n--
		line.waiters = slices.Delete(line.waiters, waiterIndex, waiterIndex+1)
		if len(line.waiters) == 0 {
			q.lines = slices.Delete(q.lines, lineIndex, lineIndex+1)
		}
		return
	}
}

// positionOf returns how many waiters are served until the nth of a caller is, that one included:
// until then no other caller is served more often.
func (q *queue) positionOf(name string, nth int) int {
	p := nth
	for _, l := range q.lines {
		if l.name != name {
			p += min(len(l.waiters), nth)
		}
	}
	return p
}

// longestQueue returns the line of the caller with the most waiters, nil if there are none.
func (q *queue) longestQueue() *callerQueue {
	var out *callerQueue
	for _, l := range q.lines {
		if out == nil || len(l.waiters) > len(out.waiters) {
			out = l
		}
	}
	return out
}
