package memory

import (
	"slices"

	"answerd/internal/event"
)

const (
	// entryOverhead estimates the bytes that an event of a tail, an input, note or result needs in
	// addition to its own text.
	entryOverhead = 128
	// maxTail is the size that a tail is cut to when it has twice as much. Readers that follow a run are
	// seldom more than some events behind.
	maxTail = 256 << 10
	// tailsShare is the part of MaxBytes that the tails of ended runs may use: one in tailsShare bytes.
	tailsShare = 16
)

// tail has the newest events of a run as the writer gave them, so that a reader that follows the run
// need not decode their JSON, which is in a block. Pages share parts of it.
type tail struct {
	events []event.Event
	bytes  int64
}

// tailSize estimates the bytes of an event in a tail. Its body has about the texts of the JSON.
func tailSize(e event.Event) int64 { return int64(len(e.JSON)) + entryOverhead }

// add adds the newest event, and cuts the tail if it has become too large.
func (t *tail) add(e event.Event) {
	t.events = append(t.events, e)
	t.bytes += tailSize(e)
	if t.bytes > 2*maxTail && len(t.events) > 1 {
		t.dropOldest(maxTail)
	}
}

// dropOldest drops the oldest events, but not the newest one, until the tail has at most size bytes.
func (t *tail) dropOldest(size int64) {
	n := 0
	for ; t.bytes > size && n < len(t.events)-1; n++ {
		t.bytes -= tailSize(t.events[n])
	}
	t.events = slices.Clone(t.events[n:]) // a subslice would keep the dropped events in memory
}

// eventsAfter returns the events after seq, if it has all of them.
func (t *tail) eventsAfter(seq int64) ([]event.Event, bool) {
	if len(t.events) == 0 || seq+1 < t.events[0].Seq {
		return nil, false
	}
	return t.events[seq+1-t.events[0].Seq:], true
}
