package event

import "context"

// memoryInbox is the inputs of one run in a Memory log; a position is an index, from 1.
type memoryInbox struct {
	inputs []Input
	more   chan struct{}
}

// AddInput implements Inbox.
func (m *Memory) AddInput(_ context.Context, run, id string, data []byte) error {
	if !ValidID(id) {
		return ErrNotFound
	}
	if len(data) > MaxResult {
		return ErrTooLarge
	}
	r, err := m.run(run)
	if err != nil {
		return err
	}
	size := int64(len(data)) + eventOverhead
	job, err := r.give(m, id, data, size)
	if err != nil {
		return err
	}
	m.account(r, size, false)
	if job != nil {
		job.wake()
	}
	return nil
}

// give adds an input and returns the job that it may wake, nil if there is none.
func (r *memoryRun) give(m *Memory, id string, data []byte, size int64) (woken *memoryJob, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case m.expired(r):
		return nil, ErrGone
	case !r.ended.IsZero():
		return nil, ErrEnded
	}
	for _, in := range r.inbox.inputs {
		if in.ID == id {
			return nil, ErrDuplicateInput
		}
	}
	r.inbox.inputs = append(r.inbox.inputs, Input{ID: id, Pos: int64(len(r.inbox.inputs)) + 1, Data: data})
	r.bytes += size
	wake(&r.inbox.more)
	return r.job, nil
}

// Inputs implements Inbox.
func (m *Memory) Inputs(_ context.Context, run string, after int64) (InputPage, error) {
	r, err := m.run(run)
	if err != nil {
		return InputPage{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := int64(len(r.inbox.inputs))
	switch {
	case m.expired(r):
		return InputPage{}, ErrGone
	case after < 0:
		return InputPage{}, ErrInvalidPosition
	case after < n:
		return InputPage{Inputs: r.inbox.inputs[after:n:n]}, nil
	}
	if r.inbox.more == nil {
		r.inbox.more = make(chan struct{})
	}
	return InputPage{More: r.inbox.more}, nil
}
