package event

import (
	"fmt"
	"time"
)

// A log keeps ended runs for an hour, and nearly nobody reads them again. As events they are
// some five pointers each, which every garbage collection follows: a sixth of all CPU time
// went into that. So a run that has ended is packed, into bytes that no collection looks
// into, and its events are made again for whoever comes.

// packAfter is how long after its end a run is packed: its readers have read it by then.
const packAfter = time.Second

// pack is the events of a run.
type pack struct {
	lines []byte // the JSON of all but the last
	ends  []uint32
	last  Event // which is what a run's status is asked of
}

// newPack packs events; nil where they are too many bytes.
func newPack(events *memoryEvents) *pack {
	size := 0
	for e := range events.all() {
		size += len(e.JSON)
	}
	if int64(size) > 1<<32-1 {
		return nil // it stays as it is
	}
	p := &pack{lines: make([]byte, 0, size), ends: make([]uint32, 0, events.last-events.first), last: events.newest()}
	for e := range events.all() {
		if e.Seq == p.last.Seq {
			break
		}
		p.lines = append(p.lines, e.JSON...)
		p.ends = append(p.ends, uint32(len(p.lines)))
	}
	return p
}

// from makes the events from the n-th on again, counting from 0.
func (p *pack) from(n int) ([]Event, error) {
	events := make([]Event, 0, len(p.ends)-n+1)
	for i := n; i < len(p.ends); i++ {
		begin, end := uint32(0), p.ends[i]
		if i > 0 {
			begin = p.ends[i-1]
		}
		e, err := Decode(p.lines[begin:end:end])
		if err != nil {
			return nil, fmt.Errorf("unpack a run: %w", err)
		}
		events = append(events, e)
	}
	return events, nil
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
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events.blocks) > 0 && !r.gone {
		if r.packed = newPack(&r.events); r.packed != nil {
			r.events.blocks = nil
		}
	}
}

// eventsLocked are events after the one of that number; all of these are kept.
func (r *memoryRun) eventsLocked(seq int64) ([]Event, error) {
	if r.packed == nil {
		return r.events.after(seq), nil
	}
	n := seq - r.events.first + 1
	if n > int64(len(r.packed.ends)) {
		return nil, nil
	}
	events, err := r.packed.from(int(n))
	return append(events, r.packed.last), err
}
