package event

import "context"

// keptResults are the results of one run in a Memory log.
type keptResults struct {
	byCall map[string][]byte // nil for one that was dropped
	order  []string          // the calls of those that are left, the oldest first
}

// keep adds a result and returns by how many bytes it made the run grow.
func (k *keptResults) keep(call string, result []byte) (grown int64) {
	if old := k.byCall[call]; old != nil {
		grown = -int64(len(old))
	} else {
		grown = eventOverhead
		k.order = append(k.order, call)
	}
	if k.byCall == nil {
		k.byCall = make(map[string][]byte)
	}
	k.byCall[call] = result
	return grown + int64(len(result))
}

// drop forgets the oldest results, at least want bytes of them or all there are, and
// returns how many bytes went.
func (k *keptResults) drop(want int64) (freed int64) {
	for len(k.order) > 0 && freed < want {
		call := k.order[0]
		k.order = k.order[1:]
		freed += int64(len(k.byCall[call])) + eventOverhead
		k.byCall[call] = nil
	}
	return freed
}

// SaveResult implements Log.
func (m *Memory) SaveResult(_ context.Context, run, call string, result []byte) error {
	if len(result) > MaxResult {
		return ErrTooLarge
	}
	r, err := m.run(run)
	if err != nil {
		return err
	}
	if result == nil {
		result = []byte{}
	}
	r.mu.Lock()
	if r.gone || !r.ended.IsZero() {
		err = ErrEnded
		if m.expired(r) {
			err = ErrGone
		}
		r.mu.Unlock()
		return err
	}
	grown := r.kept.keep(call, result)
	r.bytes += grown
	r.mu.Unlock()
	m.account(r, grown, false)
	return nil
}

// Result implements Log.
func (m *Memory) Result(_ context.Context, run, call string) ([]byte, error) {
	r, err := m.run(run)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.expired(r) {
		return nil, ErrGone
	}
	switch result, known := r.kept.byCall[call]; {
	case !known:
		return nil, ErrNotFound
	case result == nil:
		return nil, ErrGone
	default:
		return result, nil
	}
}
