package event

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
)

// The events of a run lie on pages, one behind the other, each behind a head that says how
// many bytes it takes. To allocate them one by one was a sixth of what an answer without
// tools cost, and to pack an ended run copied them once more.

const (
	headBytes = 4
	smallPage = 2 << 10  // of the first four pages of a run
	usualPage = 4 << 10  // of the next six
	largePage = 16 << 10 // of all others
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
	case p.number < 4:
		usual = smallPage
	case p.number >= 10:
		usual = largePage
	}
	return page{seq, p.number + 1, make([]byte, 0, max(usual, headBytes+size))}
}

// write writes an event on a page of the run, where it gets its JSON. r.writing is held.
func (r *memoryRun) write(e *Event, fields []byte) (on page) {
	on = r.events.page(e.Seq, encodedSize(e.RunID, e.Body, fields))
	e.JSON = on.write(e.RunID, e.Seq, r.ts.digits(e.Time), e.Body, fields)
	return on
}

// write adds an event to the page, and returns its JSON.
func (p *page) write(run string, seq int64, ts []byte, body Body, fields []byte) (line []byte) {
	at := len(p.text) + headBytes
	text := appendEvent(append(p.text, "head"...), run, seq, ts, body, fields)
	binary.BigEndian.PutUint32(text[at-headBytes:], uint32(len(text)-at))
	p.text = text
	return text[at:len(text):len(text)]
}

// records are the JSON of the events on the page, by their numbers.
func (p page) records() iter.Seq2[int64, []byte] {
	return func(yield func(int64, []byte) bool) {
		for seq, text := p.first, p.text; len(text) > 0; seq++ {
			end := headBytes + int(binary.BigEndian.Uint32(text))
			if !yield(seq, text[headBytes:end:end]) {
				return
			}
			text = text[end:]
		}
	}
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
		for seq, line := range p.records() {
			switch {
			case seq <= n:
				continue
			case len(events) == blockLen:
				return events, nil
			case seq == m.last:
				return append(events, m.newest), nil
			}
			e, err := Decode(line)
			if err != nil {
				return nil, fmt.Errorf("unpack a run: %w", err)
			}
			events = append(events, e)
		}
	}
	return events, nil
}
