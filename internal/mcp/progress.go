package mcp

import "sync"

const (
	maxProgressQueue = 64      // notifications that wait for a slow reader
	maxProgressText  = 4 << 10 // bytes of a message; a longer one is cut
)

// progressQueue hands a call's progress to its reader on a goroutine of its own, so
// that a slow reader holds up neither the stream that brings it nor other calls.
// When the queue is full the latest replaces the one before it: progress only ever
// grows (MCP basic/utilities/progress), so what is left out was out of date.
type progressQueue struct {
	deliver func(Progress)
	wake    chan struct{} // of capacity 1: there is something to do
	gone    chan struct{} // closed when the goroutine has ended

	mu     sync.Mutex // protects what follows
	queue  []Progress
	closed bool
}

// newProgressQueue starts the goroutine; close ends it.
func newProgressQueue(deliver func(Progress)) *progressQueue {
	q := &progressQueue{deliver: deliver, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	go q.run()
	return q
}

// put adds one notification. It never waits: it runs where the stream is read.
func (q *progressQueue) put(p Progress) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return
	case len(q.queue) == maxProgressQueue:
		q.queue[len(q.queue)-1] = p
	default:
		q.queue = append(q.queue, p)
	}
	q.signal()
}

// signal wakes the goroutine; one pending signal stands for all.
func (q *progressQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// run delivers what is queued, outside of the lock, until the queue is closed and
// empty.
func (q *progressQueue) run() {
	defer close(q.gone)
	for range q.wake {
		for {
			q.mu.Lock()
			if len(q.queue) == 0 {
				closed := q.closed
				q.mu.Unlock()
				if closed {
					return
				}
				break
			}
			p := q.queue[0]
			q.queue = q.queue[1:]
			q.mu.Unlock()
			q.deliver(p)
		}
	}
}

// close returns when the reader has had what is queued, or, unless all, when it is
// done with what it has. Nothing is delivered after it.
func (q *progressQueue) close(all bool) {
	q.mu.Lock()
	q.closed = true
	if !all {
		q.queue = nil
	}
	q.signal()
	q.mu.Unlock()
	<-q.gone
}
