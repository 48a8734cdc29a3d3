package memory

import (
	"context"

	"answerd/internal/event"
)

// AddNote implements event.Journal.
func (l *Log) AddNote(_ context.Context, id string, note []byte) error {
	if len(note) > event.MaxNote {
		return event.ErrTooLarge
	}
	r, err := l.findRun(id)
	if err != nil {
		return err
	}
	grown, err := r.addNote(note)
	if err != nil {
		return err
	}
	l.addBytes(r, grown, false)
	return nil
}

// addNote adds a note to r and returns by how many bytes the run grew.
func (r *run) addNote(note []byte) (grown int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkWritableLocked(); err != nil {
		return 0, err
	}
	r.notes = append(r.notes, event.Note{After: r.events.newest, Data: note})
	r.other += int64(cap(note)) + entryOverhead
	return r.countLocked(), nil
}

// Notes implements event.Journal.
func (l *Log) Notes(_ context.Context, id string) ([]event.Note, error) {
	r, err := l.findRun(id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.expiredLocked(r) {
		return nil, event.ErrGone
	}
	return r.notes[:len(r.notes):len(r.notes)], nil
}
