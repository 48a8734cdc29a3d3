package memory

import (
	"slices"

	"answerd/internal/event"
)

const (
	// entryOverhead estimates how many bytes an event of a tail, an input, a note or a result needs in addition to its
	// own text.
	entryOverhead = 128
	// maxTail is the size to which a tail is cut once it is twice as large. Readers that follow a run are seldom more
	// than a few events behind.
	maxTail = 256 << 10
	// partEvents is the number of events in a part of a tail.
	partEvents = 16
	// tailsShare is the part of MaxBytes that the tails of ended runs may use: one in tailsShare bytes.
	tailsShare = 16
)

// tail holds the newest events of a run as the writer passed them in, so that a reader that follows the run need not
// decode the JSON in the blocks. The events are in parts, so that a long tail is not copied when it grows. Pages share
// the events of a part.
type tail struct {
	parts [][]event.Event // each has partEvents consecutive events; the last one may have fewer
	bytes int64
}

// tailSize estimates the size of an event in a tail, in bytes. A decoded body has about the same texts as the JSON.
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

// dropOldest drops the oldest parts until the tail has at most size bytes or only its last part is left.
func (t *tail) dropOldest(size int64) {
	for t.bytes > size && len(t.parts) > 1 {
		for _, e := range t.parts[0] {
			t.bytes -= tailSize(e)
		}
		t.parts = slices.Delete(t.parts, 0, 1)
	}
}

// eventsAfter returns the events after seq from a single part. ok is false if the tail does not have the event after
// seq.
func (t *tail) eventsAfter(seq int64) (events []event.Event, ok bool) {
	for _, part := range slices.Backward(t.parts) {
		if first := seq + 1 - part[0].Seq; first >= 0 { // the index of the event after seq
			return part[first:len(part):len(part)], true // capped, so that a reader's append copies the events
		}
	}
	return nil, false
}
