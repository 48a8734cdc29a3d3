package event

import (
	"slices"
	"time"
)

// As events, a run is some five pointers for each of them, which every garbage collection
// follows. So it is packed when it has ended: then there are no events but the newest, and
// others are made out of the pages, into which no collection looks, for whoever comes. To
// keep events of ended runs was a sixth of all CPU time.

// packAfter is how long after its end a run is packed: nearly all of its readers have read
// it by then. What is not packed yet is most of what collections have to follow.
const packAfter = 100 * time.Millisecond

// pack lets go of all events but the newest, of which a run's status is asked, and of what
// is empty of the last page: a short run has no other.
func (m *memoryEvents) pack() {
	newest, _ := m.end()
	if last := &m.pages[len(m.pages)-1]; cap(last.text) > 2*len(last.text) {
		last.text = slices.Clone(last.text)
		newest.JSON = last.text[len(last.text)-len(newest.JSON):]
	}
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

// pack packs a run that has ended.
func (r *memoryRun) pack() {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.gone {
		r.events.pack()
	}
}
