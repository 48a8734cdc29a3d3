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

func (q *queue) pushWaiter(w *waiter) {
	q.n++
	for _, l := range q.lines {
		if l.name == w.name {
			l.waiters = append(l.waiters, w)
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
	l := q.lines[0]
	q.lines = q.lines[1:]
	w := l.waiters[0]
	if l.waiters = l.waiters[1:]; len(l.waiters) > 0 {
		q.lines = append(q.lines, l)
	}
	return w
}

func (q *queue) removeWaiter(w *waiter) {
	for i, l := range q.lines {
		at := slices.Index(l.waiters, w)
		if l.name != w.name || at < 0 {
			continue
		}
		q.n--
		if l.waiters = slices.Delete(l.waiters, at, at+1); len(l.waiters) == 0 {
			q.lines = slices.Delete(q.lines, i, i+1)
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
