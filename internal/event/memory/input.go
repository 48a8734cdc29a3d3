package memory

import (
	"context"

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
	r, err := l.findRun(id)
	if err != nil {
		return err
	}
	job, grown, err := l.addInput(r, inputID, data)
	if err != nil {
		return err
	}
	l.addBytes(r, grown, false)
	if job != nil {
		job.wakeIfParked()
	}
	return nil
}

// addInput adds an input to a run that has not ended. It returns event.ErrDuplicateInput if the run already has an
// input with that id. Otherwise it returns the run's job, or nil if the run has none, and how many bytes the run grew.
// The caller must wake the job if it is parked.
func (l *Log) addInput(r *run, inputID string, data []byte) (*job, int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.expiredLocked(l.retention):
		return nil, 0, event.ErrGone
	case !r.ended.IsZero():
		return nil, 0, event.ErrEnded
	}
	for _, earlier := range r.inbox.inputs {
		if earlier.ID == inputID {
			return nil, 0, event.ErrDuplicateInput
		}
	}
	r.inbox.inputs = append(r.inbox.inputs, event.Input{ID: inputID, Pos: int64(len(r.inbox.inputs)) + 1, Data: data})
	r.otherBytes += int64(cap(data)) + entryOverhead
	wakeWaiters(&r.inbox.more)
	return r.job, r.countLocked(), nil
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
	n := int64(len(r.inbox.inputs))
	switch {
	case r.expiredLocked(l.retention):
		return event.InputPage{}, event.ErrGone
	case after < 0:
		return event.InputPage{}, event.ErrInvalidPosition
	case after < n:
		return event.InputPage{Inputs: r.inbox.inputs[after:n:n]}, nil // capped, so that a reader's append copies the inputs
	}
	return event.InputPage{More: waitChannel(&r.inbox.more)}, nil
}
