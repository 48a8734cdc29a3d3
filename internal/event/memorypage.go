package event

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// The JSON of a run's events lies on pages, one event behind the other, each behind its
// length. To allocate it event by event was a sixth of what an answer without tools cost, and
// to pack an ended run copied it once more.

const (
	lengthBytes = 4
	smallPage   = 2 << 10 // of the first two pages of a run
	usualPage   = 4 << 10
	largePage   = 16 << 10 // of those after the tenth
)

// page is the JSON of some events. What is on it is neither changed nor moved.
type page struct {
	first  int64  // number of its first event
	number int    // of the page in the run, from 1 on; 0 for none
	text   []byte // of each event its length, big endian, and its JSON
}

// page is where the next event, of about size bytes, is to be written: the newest page or,
// where it may not fit there, another one. r.writing is held.
func (r *memoryRun) page(size int) page {
	p := r.sheet
	if cap(p.text)-len(p.text) >= lengthBytes+size {
		return p
	}
	usual := usualPage
	switch {
	case p.number < 2:
		usual = smallPage
	case p.number >= 10:
		usual = largePage
	}
	return page{r.next, p.number + 1, make([]byte, 0, max(usual, lengthBytes+size))}
}

// write adds an event to the page, and returns its JSON.
func (p *page) write(run string, seq int64, ts []byte, body Body, fields []byte) (line []byte) {
	at := len(p.text) + lengthBytes
	text := appendEvent(append(p.text, "size"...), run, seq, ts, body, fields)
	binary.BigEndian.PutUint32(text[at-lengthBytes:], uint32(len(text)-at))
	p.text = text
	return text[at:len(text):len(text)]
}

// keep keeps a page that is full.
func (m *memoryEvents) keep(p page) {
	switch {
	case p.number == 0:
		return // there was none yet
	case m.pages == nil:
		m.pages = make([]page, 0, 4) // most runs have some few
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
		for seq, text := p.first, p.text; len(text) > 0; seq++ {
			size := lengthBytes + int(binary.BigEndian.Uint32(text))
			line := text[lengthBytes:size:size]
			text = text[size:]
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
