// Package batch collects a run's events and notes that occur close together, and encodes them as the data of one
// message.
//
// A Queue stores its items in order. Items that are added while a batch is being stored become the next batch (group
// commit). An item may also be delayed for a few milliseconds, so that later items join its batch. Flush ends all
// delays and waits until every item is stored.
//
// The data of a message has one line per item. The line of an event is its JSON, which begins with {. The line of a
// note is # followed by the note in base64. The numbers of the events are consecutive.
package batch

import (
	"bytes"
	"encoding/base64"
	"fmt"

	"answerd/internal/event"
)

// Item is an event or a note of a run. A note belongs to the event before it.
type Item struct {
	Event event.Event // the zero Event if the item is a note
	Note  []byte      // nil if the item is an event
}

// IsNote reports whether the item is a note.
func (i Item) IsNote() bool { return i.Event.Seq == 0 }

// size returns the length of the item's line, including the newline.
func (i Item) size() int {
	if i.IsNote() {
		return len("#") + base64.StdEncoding.EncodedLen(len(i.Note)) + len("\n")
	}
	return len(i.Event.JSON) + len("\n")
}

// Encode returns the data of a message that contains items, one line per item, in order.
func Encode(items []Item) []byte {
	size := 0
	for _, i := range items {
		size += i.size()
	}
	data := make([]byte, 0, size)
	for _, i := range items {
		if i.IsNote() {
			data = base64.StdEncoding.AppendEncode(append(data, '#'), i.Note)
		} else {
			data = append(data, i.Event.JSON...)
		}
		data = append(data, '\n')
	}
	return data
}

// Split decodes data made by Encode into the JSON of each event and the notes. last is the number of the last event in
// data, or 0 if the run has no events yet. Split does not check the JSON. The elements of events share the memory of
// data.
func Split(data []byte, last int64) (events [][]byte, notes []event.Note, err error) {
	for line := range bytes.Lines(data) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		switch {
		case len(line) == 0:
			return nil, nil, fmt.Errorf("a batch of the log has an empty line")
		case line[0] == '#':
			note, err := base64.StdEncoding.AppendDecode(nil, line[1:])
			if err != nil {
				return nil, nil, fmt.Errorf("decode a note of the log: %w", err)
			}
			notes = append(notes, event.Note{After: int64(len(events)), Data: note})
		default:
			events = append(events, line)
		}
	}
	// At this point, After counts the events of the batch before the note. Convert it to the number of the event before
	// the note.
	before := last - int64(len(events)) // the number of the event before the batch
	for i := range notes {
		notes[i].After += before
	}
	return events, notes, nil
}
