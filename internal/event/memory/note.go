package memory

import (
	"context"

	"answerd/internal/event"
)

// AddNote implements event.Journal. The log keeps note itself, not a copy.
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
	l.addBytes(r, grown)
	return nil
}

// Notes implements event.Journal. It returns event.ErrGone if the run's retention has passed.
func (l *Log) Notes(_ context.Context, id string) ([]event.Note, error) {
	r, err := l.findRun(id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.expiredLocked(l.retention) {
		return nil, event.ErrGone
	}
	return r.notes[:len(r.notes):len(r.notes)], nil // capped, so that the caller's append copies the notes
}
