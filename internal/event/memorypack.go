package event

import (
	"slices"
	"time"
)

// As events, a run is some five pointers for each of them, which every garbage collection
// follows, and as JSON ten times the words of the model. So it is packed as long as nobody
// reads it, which is all its life where a whole answer is waited for, and again when it has
// ended: then there are no events but the newest, and others are made out of the pages, into
// which no collection looks, for whoever comes. To keep events of ended runs was a sixth of
// all CPU time.

// packAfter is how long after its end a run is packed that has readers: nearly all of them
// have read it by then. What is not packed yet is most of what collections have to follow.
const packAfter = 100 * time.Millisecond

// saying is what an event says, and when it was said in milliseconds since the Unix epoch.
type saying struct {
	ms   int64
	body Body
}

// unpack makes the events of a run that goes on, once for all who read it from now on. It
// returns by how many bytes the log grows.
func (r *memoryRun) unpack() (grown int64) {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unpackLocked()
}

func (r *memoryRun) unpackLocked() (grown int64) {
	if !r.events.packed || r.gone || !r.ended.IsZero() {
		return 0
	}
	packed := r.events
	r.events = memoryEvents{run: packed.run, began: packed.began, first: packed.first}
	// A stream is read from its start on: nothing is short yet, and no JSON moves.
	stays := int64(len(packed.said)) == packed.last
	for _, p := range packed.pages {
		for seq, rec := range p.records() {
			if rec.shape != whole {
				e := packed.short(seq, rec)
				on, size := r.write(&e, nil)
				r.events.append(on, e)
				grown += size - int64(headBytes+len(rec.text))
				continue
			}
			said := packed.said[0]
			packed.said = packed.said[1:]
			e, on := Event{RunID: packed.run, Seq: seq, Time: said.ms, Body: said.body, JSON: rec.text}, p
			if !stays {
				on = r.events.page(seq, len(rec.text))
				e.JSON = on.copy(rec.text)
			}
			r.events.append(on, e)
		}
	}
	r.bytes += grown
	return grown
}

// pack lets go of all events but the newest, of which a run's status is asked, and of what
// is empty of the last page: a short run has no other.
func (m *memoryEvents) pack() {
	newest, _ := m.end()
	if last := &m.pages[len(m.pages)-1]; cap(last.text) > 2*len(last.text) {
		last.text = slices.Clone(last.text)
		newest.JSON = last.text[len(last.text)-len(newest.JSON):]
	}
	m.newest, m.packed, m.blocks, m.said = newest, true, nil, nil
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

func (r *memoryRun) isPacked() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events.packed
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
