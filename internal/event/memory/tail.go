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
	// partEvents is the number of events in a part of a tail.
	partEvents = 16
	// tailsShare is the part of MaxBytes that the tails of ended runs may use: one in tailsShare bytes.
	tailsShare = 16
)

// tail has the newest events of a run as the writer gave them, so that a reader that follows the run
// need not decode their JSON, which is in a block. The events are in parts, so that a long tail is not copied when it
// grows. Pages share the events of a part.
type tail struct {
	parts [][]event.Event // each has partEvents consecutive events, but the last one may have fewer
	bytes int64
}

// tailSize estimates the bytes of an event in a tail. Its body has about the texts of the JSON.
func tailSize(e event.Event) int64 { return int64(len(e.JSON)) + entryOverhead }

// add adds the newest event, and cuts the tail if it has become too large.
func (t *tail) add(e event.Event) {
	if n := len(t.parts); n == 0 || len(t.parts[n-1]) == partEvents {
		t.parts = append(t.parts, make([]event.Event, 0, partEvents))
	}
	last := &t.parts[len(t.parts)-1]
	*last = append(*last, e)
	t.bytes += tailSize(e)
	if t.bytes > 2*maxTail {
		t.dropOldest(maxTail)
	}
}

// dropOldest drops the oldest parts until the tail has at most size bytes or only its last part.
func (t *tail) dropOldest(size int64) {
	for t.bytes > size && len(t.parts) > 1 {
		for _, e := range t.parts[0] {
			t.bytes -= tailSize(e)
		}
		t.parts = slices.Delete(t.parts, 0, 1)
	}
}

// eventsAfter returns the events of one part after seq. ok is false if the tail does not have the event after seq.
func (t *tail) eventsAfter(seq int64) (events []event.Event, ok bool) {
	for _, part := range slices.Backward(t.parts) {
		if n := seq + 1 - part[0].Seq; n >= 0 {
			return part[n:len(part):len(part)], true // an append of the reader must copy the events
		}
	}
	return nil, false
}
