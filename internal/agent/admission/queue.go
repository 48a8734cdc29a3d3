package admission

import "slices"

// waiter is one who waits for a place. done gets what came of it, once.
type waiter struct {
	name string
	done chan error // of capacity 1
}

// line is those of one caller, in the order in which they came.
type line struct {
	name    string
	waiters []*waiter
}

// queue is everybody who waits. The caller at the front of lines is the next to be
// served, once; then he goes to the end. It holds at most maxWaiting, so that walking
// along it costs nothing.
type queue struct {
	n     int
	lines []*line
}

func (q *queue) push(w *waiter) {
	q.n++
	for _, l := range q.lines {
		if l.name == w.name {
			l.waiters = append(l.waiters, w)
			return
		}
	}
	q.lines = append(q.lines, &line{w.name, []*waiter{w}})
}

// pop returns the next, or nil.
func (q *queue) pop() *waiter {
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

func (q *queue) remove(w *waiter) {
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

// position returns how many are served until the nth of a caller is, himself included: no
// other caller is served more often before that.
func (q *queue) position(name string, nth int) int {
	p := nth
	for _, l := range q.lines {
		if l.name != name {
			p += min(len(l.waiters), nth)
		}
	}
	return p
}

// longest returns the line of the caller who has most of them, nil in an empty queue.
func (q *queue) longest() *line {
	var out *line
	for _, l := range q.lines {
		if out == nil || len(l.waiters) > len(out.waiters) {
			out = l
		}
	}
	return out
}
