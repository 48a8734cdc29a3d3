package memory

import (
	"context"
	"slices"

	"answerd/internal/event"
)

// AddInput implements event.Inbox. It wakes the run's job if the job is parked.
func (l *Log) AddInput(_ context.Context, id, inputID string, data []byte) error {
	if !event.ValidID(inputID) {
		return event.ErrNotFound
	}
	if len(data) > event.MaxResult {
		return event.ErrTooLarge
	}
	var waiting *job
	err := l.changeRun(id, func(r *run) error {
		if slices.ContainsFunc(r.inbox.inputs, func(i event.Input) bool { return i.ID == inputID }) {
			return event.ErrDuplicateInput
		}
		r.inbox.inputs = append(r.inbox.inputs, event.Input{ID: inputID, Pos: int64(len(r.inbox.inputs)) + 1, Data: data})
		r.otherBytes += int64(cap(data)) + entryOverhead
		wakeWaiters(&r.inbox.more)
		waiting = r.job
		return nil
	})
	if waiting != nil {
		waiting.wakeIfParked()
	}
	return err
}

// Inputs implements event.Inbox. If the run has no inputs after that position, the page's More is closed when one is
// added.
func (l *Log) Inputs(_ context.Context, id string, after int64) (event.InputPage, error) {
	r, err := l.findRun(id)
	if err != nil {
		return event.InputPage{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	count := int64(len(r.inbox.inputs))
	switch {
	case r.expiredLocked(l.retention):
		return event.InputPage{}, event.ErrGone
	case after < 0:
		return event.InputPage{}, event.ErrInvalidPosition
	case after < count:
		return event.InputPage{Inputs: r.inbox.inputs[after:count:count]}, nil // capped, so that a reader's append copies the inputs
	}
	return event.InputPage{More: waitChannel(&r.inbox.more)}, nil
}
