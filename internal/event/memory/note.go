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
	size := int64(len(note)) + entryOverhead
	if err := r.addNote(note, size); err != nil {
		return err
	}
	l.addBytes(r, size, false)
	return nil
}

func (r *run) addNote(note []byte, size int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkWritableLocked(); err != nil {
		return err
	}
	r.notes = append(r.notes, event.Note{After: r.newestLocked().Seq, Data: note})
	r.bytes += size
	return nil
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
