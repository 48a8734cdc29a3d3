package event

import "context"

// AddNote implements Journal.
func (m *Memory) AddNote(_ context.Context, run string, note []byte) error {
	if len(note) > MaxNote {
		return ErrTooLarge
	}
	r, err := m.run(run)
	if err != nil {
		return err
	}
	size := int64(len(note)) + eventOverhead
	if err := r.note(note, size); err != nil {
		return err
	}
	m.account(r, size, false)
	return nil
}

func (r *memoryRun) note(note []byte, size int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.openLocked(); err != nil {
		return err
	}
	r.notes = append(r.notes, Note{After: r.newestLocked().Seq, Data: note})
	r.bytes += size
	return nil
}

// Notes implements Journal.
func (m *Memory) Notes(_ context.Context, run string) ([]Note, error) {
	r, err := m.run(run)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.expired(r) {
		return nil, ErrGone
	}
	return r.notes[:len(r.notes):len(r.notes)], nil
}
