package memory

import (
	"context"

	"answerd/internal/event"
)

// results stores the results of one run's calls.
type results struct {
	byCall map[string][]byte // nil for a result that was dropped
	order  []string          // the calls whose results are kept, the oldest first
}

// setResult stores the result of a call and returns by how many bytes the run grew.
func (r *results) setResult(call string, result []byte) (grown int64) {
	if earlier := r.byCall[call]; earlier != nil {
		grown = -int64(cap(earlier))
	} else {
		grown = entryOverhead
		r.order = append(r.order, call)
	}
	if r.byCall == nil {
		r.byCall = make(map[string][]byte)
	}
	r.byCall[call] = result
	return grown + int64(cap(result))
}

// dropOldest drops results until want bytes are free or none is left, and returns how many
// bytes it freed.
func (r *results) dropOldest(want int64) (freed int64) {
	for len(r.order) > 0 && freed < want {
		call := r.order[0]
		r.order = r.order[1:]
		freed += int64(cap(r.byCall[call])) + entryOverhead
		r.byCall[call] = nil
	}
	return freed
}

// SaveResult implements event.Log.
func (l *Log) SaveResult(_ context.Context, id, call string, result []byte) error {
	if len(result) > event.MaxResult {
		return event.ErrTooLarge
	}
	r, err := l.findRun(id)
	if err != nil {
		return err
	}
	grown, err := l.saveResult(r, call, result)
	if err != nil {
		return err
	}
	l.addBytes(r, grown, false)
	return nil
}

// saveResult adds a result to r and returns by how many bytes the run grew.
func (l *Log) saveResult(r *run, call string, result []byte) (grown int64, err error) {
	if result == nil {
		result = []byte{} // nil marks a result that was dropped
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case l.expiredLocked(r):
		return 0, event.ErrGone
	case !r.ended.IsZero():
		return 0, event.ErrEnded
	}
	r.other += r.results.setResult(call, result)
	return r.countLocked(), nil
}

// Result implements event.Log.
func (l *Log) Result(_ context.Context, id, call string) ([]byte, error) {
	r, err := l.findRun(id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.expiredLocked(r) {
		return nil, event.ErrGone
	}
	switch result, known := r.results.byCall[call]; {
	case !known:
		return nil, event.ErrNotFound
	case result == nil:
		return nil, event.ErrGone
	default:
		return result, nil
	}
}
