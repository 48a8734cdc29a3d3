package event

import (
	"slices"
	"time"
)

// A log keeps ended runs for an hour, and nearly nobody reads them again. As events they are
// some five pointers each, which every garbage collection follows: a sixth of all CPU time
// went into that. So a run that has ended is packed: the events go, and are made again out
// of their JSON, into which no collection looks, for whoever comes.

// packAfter is how long after its end a run is packed that has readers: nearly all of them
// have read it by then. One that nobody read is packed at once; who waited for its end needs
// the newest event only. What is not packed yet is most of what collections have to follow.
const packAfter = 100 * time.Millisecond

// pack lets go of all events but the newest, of which a run's status is asked. They end on
// the page last, of which nothing is kept that is mostly empty: a short run has no other.
func (m *memoryEvents) pack(last page) {
	newest := m.newestInBlocks()
	if cap(last.text) > 2*len(last.text) {
		last.text = slices.Clone(last.text)
		newest.JSON = last.text[len(last.text)-len(newest.JSON):]
	}
	m.pages = append(m.pages, last)
	m.newest, m.packed, m.blocks = newest, true, nil
}

// duePacksLocked takes runs that ended long enough ago out of the queue: two for each that
// comes, so that they do not pile up and nobody pays for all.
func (m *Memory) duePacksLocked(now time.Time) (due []*memoryRun) {
	for len(m.unpacked) > 0 && len(due) < 2 && now.Sub(m.unpacked[0].endedAt()) >= packAfter {
		due = append(due, m.unpacked[0])
		m.unpacked[0] = nil
		m.unpacked = m.unpacked[1:]
	}
	return due
}

func (r *memoryRun) wasRead() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.read
}

// pack packs a run that has ended.
func (r *memoryRun) pack() {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.gone {
		r.events.pack(r.sheet)
	}
	r.sheet = page{}
}
