package mcp

import (
	"slices"
	"sync"
)

const (
	maxProgressQueue = 64      // notifications that wait for a slow reader
	maxProgressText  = 4 << 10 // bytes of a message; a longer one is cut
	maxLogQueue      = 64      // log messages that wait for a slow reader
	maxLogs          = 1000    // log messages of one call that are delivered at all
)

// note is what a server says during a call: one of the two is set.
type note struct {
	progress *Progress
	log      *LogMessage
}

// noteQueue hands what a server says during a call to its reader on a goroutine of its
// own, in the order in which it came, so that a slow reader holds up neither the stream
// that brings it nor other calls.
//
// It is bounded. When it is full of progress the latest replaces the one before it:
// progress only ever grows (MCP basic/utilities/progress), so what is left out was out
// of date. Log messages that find no room, or are more than a call may have, are
// counted, and the count is delivered with the next one or at the end.
type noteQueue struct {
	deliver func(note)
	wake    chan struct{} // of capacity 1: there is something to do
	gone    chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex // protects what follows
	queue   []note
	waiting int // log messages in queue
	logs    int // log messages so far that were not left out
	omitted int // left out since then
	closed  bool
}

// newNoteQueue starts the goroutine; close ends it.
func newNoteQueue(deliver func(note)) *noteQueue {
	q := &noteQueue{deliver: deliver, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	go q.run()
	return q
}

// put adds one notification. It never waits: it runs where the stream is read.
func (q *noteQueue) put(n note) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return
	case n.log == nil:
		q.makeRoomLocked()
	case q.waiting == maxLogQueue || q.logs == maxLogs:
		q.omitted++
		return
	default:
		n.log.Omitted, q.omitted = q.omitted, 0
		q.waiting++
		q.logs++
	}
	q.queue = append(q.queue, n)
	q.signal()
}

// makeRoomLocked removes the latest progress where there is too much of it.
func (q *noteQueue) makeRoomLocked() {
	if len(q.queue)-q.waiting < maxProgressQueue {
		return
	}
	for i := len(q.queue) - 1; i >= 0; i-- {
		if q.queue[i].progress != nil {
			q.queue = slices.Delete(q.queue, i, i+1)
			return
		}
	}
}

// signal wakes the goroutine; one pending signal stands for all.
func (q *noteQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// run delivers what is queued, outside of the lock, until the queue is closed and
// empty.
func (q *noteQueue) run() {
	defer close(q.gone)
	for range q.wake {
		for {
			n, closed := q.next()
			if n != (note{}) {
				q.deliver(n)
				continue
			}
			if closed {
				return
			}
			break
		}
	}
}

// next is the next note; the zero note where there is none.
func (q *noteQueue) next() (n note, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.queue) > 0:
		n, q.queue = q.queue[0], q.queue[1:]
		if n.log != nil {
			q.waiting--
		}
	case q.closed && q.omitted > 0: // nothing is left to carry the count
		n.log = &LogMessage{Omitted: q.omitted}
		q.omitted = 0
	}
	return n, q.closed
}

// close returns when the reader has had what is queued, or, unless all, when it is
// done with what it has. Nothing is delivered after it.
func (q *noteQueue) close(all bool) {
	q.mu.Lock()
	q.closed = true
	if !all {
		q.queue, q.omitted = nil, 0
	}
	q.signal()
	q.mu.Unlock()
	<-q.gone
}
