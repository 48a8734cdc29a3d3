package event

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"slices"
)

// The events of a run lie on pages, one behind the other, each behind a head that says how
// many bytes it takes. To allocate them one by one was a sixth of what an answer without
// tools cost, and to pack an ended run copied them once more.

const (
	headBytes  = 4
	smallPage  = 2 << 10  // of the first four pages of a run that is read
	usualPage  = 4 << 10  // an answer without calls is 3 KiB, as long as nobody reads it
	largePage  = 16 << 10 // of those after the tenth
	deltaBytes = 5        // of a short delta, besides its words and the id of its part
)

// shape is how an event lies on a page: the two highest bits of its head.
type shape uint32

const (
	// whole is its JSON.
	whole shape = iota << 30
	// shortText and shortReasoning are a TextDelta and a ReasoningDelta of a run that nobody
	// reads: four bytes for the milliseconds since the run began, one for the length of the
	// part's id, that id, and the words. It is a tenth of their JSON, which would be made for
	// nobody.
	shortText
	shortReasoning
	shapes shape = 3 << 30
)

// page is some events of a run. What is on it is neither changed nor moved.
type page struct {
	first  int64 // number of its first event
	number int   // of the page in the run, from 1 on; 0 for none
	text   []byte
}

// page is where event number seq, of about size bytes, is to be written: the newest page or,
// where it may not fit there, another one. r.writing is held.
func (m *memoryEvents) page(seq int64, size int) page {
	var p page
	if n := len(m.pages); n > 0 {
		p = m.pages[n-1]
	}
	if cap(p.text)-len(p.text) >= headBytes+size {
		return p
	}
	usual := usualPage
	switch {
	case p.number < 4 && !m.packed:
		usual = smallPage
	case p.number >= 10:
		usual = largePage
	}
	return page{seq, p.number + 1, make([]byte, 0, max(usual, headBytes+size))}
}

// write writes an event on a page of the run, for which it gets its JSON unless it is short,
// and says by how many bytes the log grows. r.writing is held.
func (r *memoryRun) write(e *Event, fields []byte) (on page, size int64) {
	if r.events.packed {
		if d, ok := shorten(e.Body, e.Time-r.events.began); ok {
			return r.events.writeShort(e.Seq, d)
		}
	}
	on = r.events.page(e.Seq, encodedSize(e.RunID, e.Body, fields))
	e.JSON = on.write(e.RunID, e.Seq, r.ts.digits(e.Time), e.Body, fields)
	return on, int64(len(e.JSON)) + eventOverhead
}

// write adds a whole event to the page, and returns its JSON.
func (p *page) write(run string, seq int64, ts []byte, body Body, fields []byte) (line []byte) {
	at := len(p.text) + headBytes
	text := appendEvent(append(p.text, "head"...), run, seq, ts, body, fields)
	binary.BigEndian.PutUint32(text[at-headBytes:], uint32(len(text)-at))
	p.text = text
	return text[at:len(text):len(text)]
}

// copy is write for an event whose JSON is there.
func (p *page) copy(line []byte) []byte {
	at := len(p.text) + headBytes
	p.text = append(binary.BigEndian.AppendUint32(p.text, uint32(len(line))), line...)
	return p.text[at:len(p.text):len(p.text)]
}

// delta is a short event.
type delta struct {
	shape       shape
	ms          uint32
	part, words string
}

// shorten is a body as a short event, if it can be one; ms is since the run began.
func shorten(b Body, ms int64) (d delta, ok bool) {
	switch b := b.(type) {
	case TextDelta:
		d = delta{shortText, uint32(ms), b.PartID, b.Delta}
	case ReasoningDelta:
		d = delta{shortReasoning, uint32(ms), b.PartID, b.Delta}
	default:
		return d, false
	}
	return d, uint64(ms) <= math.MaxUint32 && len(d.part) <= math.MaxUint8
}

func (d delta) size() int { return deltaBytes + len(d.part) + len(d.words) }

// writeShort is write for a short event.
func (m *memoryEvents) writeShort(seq int64, d delta) (on page, size int64) {
	on = m.page(seq, d.size())
	text := binary.BigEndian.AppendUint32(on.text, uint32(d.shape)|uint32(d.size()))
	text = binary.BigEndian.AppendUint32(text, d.ms)
	text = append(append(text, byte(len(d.part))), d.part...)
	on.text = append(text, d.words...)
	return on, int64(headBytes + d.size())
}

// records are what lies on the page, by the numbers of the events.
func (p page) records() iter.Seq2[int64, record] {
	return func(yield func(int64, record) bool) {
		for seq, text := p.first, p.text; len(text) > 0; seq++ {
			head := binary.BigEndian.Uint32(text)
			end := headBytes + int(head&^uint32(shapes))
			if !yield(seq, record{shape(head) & shapes, text[headBytes:end:end]}) {
				return
			}
			text = text[end:]
		}
	}
}

// record is one event as it lies on a page.
type record struct {
	shape shape
	text  []byte
}

// event is the event again; seq is its number. Of one that lies there whole, the JSON is not
// copied.
func (m *memoryEvents) event(seq int64, rec record) (Event, error) {
	if rec.shape == whole {
		return Decode(rec.text)
	}
	e := m.short(seq, rec)
	e.encode(nil)
	return e, nil
}

// short is a short event again, without its JSON.
func (m *memoryEvents) short(seq int64, rec record) Event {
	e := Event{RunID: m.run, Seq: seq, Time: m.began + int64(binary.BigEndian.Uint32(rec.text))}
	words := deltaBytes + int(rec.text[deltaBytes-1])
	part, delta := string(rec.text[deltaBytes:words]), string(rec.text[words:])
	if e.Body = (TextDelta{part, delta}); rec.shape == shortReasoning {
		e.Body = ReasoningDelta{part, delta}
	}
	return e
}

// keep keeps a page on which something was written.
func (m *memoryEvents) keep(p page) {
	if n := len(m.pages); n > 0 && m.pages[n-1].number == p.number {
		m.pages[n-1] = p
		return
	}
	m.pages = append(m.pages, p)
}

// dropPages lets go of the pages that hold nothing but events that are no longer kept.
func (m *memoryEvents) dropPages() {
	n := 0
	for n+1 < len(m.pages) && m.pages[n+1].first <= m.first {
		n++
	}
	m.pages = slices.Delete(m.pages, 0, n)
}

// read makes events after number n again, as many at a time as a block holds: they are each
// reader's own, and a slow one must not have all of a long run.
func (m *memoryEvents) read(n int64) ([]Event, error) {
	events := make([]Event, 0, min(m.last-n, blockLen))
	for i, p := range m.pages {
		if i+1 < len(m.pages) && m.pages[i+1].first <= n+1 {
			continue
		}
		for seq, rec := range p.records() {
			switch {
			case seq <= n:
				continue
			case len(events) == blockLen:
				return events, nil
			case seq == m.last:
				return append(events, m.newest), nil
			}
			e, err := m.event(seq, rec)
			if err != nil {
				return nil, fmt.Errorf("unpack a run: %w", err)
			}
			events = append(events, e)
		}
	}
	return events, nil
}
