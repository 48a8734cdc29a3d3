// Package batch collects the events and notes of a run that occur close together, and encodes them as the
// data of one message.
//
// A Queue stores its items in order. While one batch is being stored, later items wait, and become the next
// batch (group commit). An item may also wait for a moment for others to come. Flush stores what waits and
// returns when all of it is stored.
//
// The data of a message has one line for each item. The line of an event is its JSON, which begins with {.
// The line of a note is # and the note in base64. The numbers of the events follow each other.
package batch

import (
	"bytes"
	"encoding/base64"
	"fmt"

	"answerd/internal/event"
)

// Item is an event or a note of a run. A note belongs to the event before it.
type Item struct {
	Event event.Event // a zero Event for a note
	Note  []byte
}

// IsNote reports whether the item is a note.
func (i Item) IsNote() bool { return i.Event.Seq == 0 }

// size returns the length of the item's line.
func (i Item) size() int {
	if i.IsNote() {
		return len("#") + base64.StdEncoding.EncodedLen(len(i.Note)) + len("\n")
	}
	return len(i.Event.JSON) + len("\n")
}

// Encode returns the data of a message with items.
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

// Split returns the lines of the events in data that Encode made, and the notes; last is the number of the
// last event.
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
	for i := range notes { // After has counted the events of the batch so far
		notes[i].After += last - int64(len(events))
	}
	return events, notes, nil
}
