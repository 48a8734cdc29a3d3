package event

import "iter"

// blockLen is how many events lie together. In one slice for all of them, a run that grows
// copies its events again and again, which was a sixth of the cost of an append.
const blockLen = 32

// memoryEvents are the events that are kept of a run, one after the other. Event number n lies
// at (n-1) % blockLen of its block. What a block has is neither changed nor moved, so
// readers hold parts of it without a lock.
type memoryEvents struct {
	pages  []page    // where the events lie
	first  int64     // number of the first event that is kept, or would be
	last   int64     // number of the newest one, kept or not; 0 before there is one
	packed bool      // there are pages, and no blocks
	blocks [][]Event // all full but the last; of the first, the head may be empty
	newest Event     // of a packed run
}

// append adds an event that was written on that page.
func (m *memoryEvents) append(on page, e Event) {
	m.keep(on)
	m.last = e.Seq
	last := len(m.blocks) - 1
	if last < 0 || len(m.blocks[last]) == blockLen {
		m.blocks = append(m.blocks, make([]Event, 0, blockLen))
		last++
	}
	m.blocks[last] = append(m.blocks[last], e)
}

// end is the newest event, if one is kept.
func (m *memoryEvents) end() (Event, bool) {
	switch {
	case m.packed:
		return m.newest, true
	case len(m.blocks) > 0:
		return m.newestInBlocks(), true
	}
	return Event{}, false
}

func (m *memoryEvents) newestInBlocks() Event {
	b := m.blocks[len(m.blocks)-1]
	return b[len(b)-1]
}

// after is what follows the event number n, up to the end of a block. All that follows
// must be kept.
func (m *memoryEvents) after(n int64) ([]Event, error) {
	switch {
	case !m.packed:
		return m.inBlock(n), nil
	case n < m.last:
		return m.read(n)
	}
	return nil, nil
}

func (m *memoryEvents) inBlock(n int64) []Event {
	i := m.block(n)
	if i == len(m.blocks) {
		return nil
	}
	b := m.blocks[i][n%blockLen:]
	return b[:len(b):len(b)]
}

// block is the index of the block that the event after number n lies in.
func (m *memoryEvents) block(n int64) int { return int(n/blockLen - (m.first-1)/blockLen) }

// all are the events that are kept.
func (m *memoryEvents) all() iter.Seq[Event] {
	return func(yield func(Event) bool) {
		for n := m.first - 1; ; {
			part := m.inBlock(n)
			for _, e := range part {
				if !yield(e) {
					return
				}
			}
			if n += int64(len(part)); len(part) == 0 {
				return
			}
		}
	}
}

// drop lets go of the first n events.
func (m *memoryEvents) drop(n int64) {
	whole, first := m.block(m.first-1+n), m.first+n
	// The rest of a block that is dropped in part moves, or its memory would stay for as
	// long as one event of it. Readers may hold the old one.
	m.blocks = append([][]Event(nil), m.blocks[whole:]...)
	if head := (first - 1) % blockLen; head > 0 && len(m.blocks) > 0 {
		rest := make([]Event, len(m.blocks[0]), blockLen)
		copy(rest[head:], m.blocks[0][head:])
		m.blocks[0] = rest
	}
	m.first = first
	m.dropPages()
}
