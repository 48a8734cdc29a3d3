package event

import (
	"cmp"
	"context"
	"slices"
	"strconv"
)

// Runs implements Directory. A position is the number of a run in the order of
// creation.
func (m *Memory) Runs(_ context.Context, f Filter) (RunPage, error) {
	before := int64(1) << 62
	if f.Before != "" {
		n, err := strconv.ParseInt(f.Before, 36, 64)
		if err != nil || n < 1 {
			return RunPage{}, ErrInvalidPosition
		}
		before = n
	}
	var found []*memoryRun
	for _, v := range m.runs.Range {
		if r := v.(*memoryRun); r.number < before && r.run.Owner == f.Owner && (f.ThreadID == "" || f.ThreadID == r.run.ThreadID) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b *memoryRun) int { return cmp.Compare(b.number, a.number) })
	var page RunPage
	var last int64
	for _, r := range found {
		run, kept := r.snapshot(m)
		if !kept || f.Status != "" && run.Status() != f.Status {
			continue
		}
		if len(page.Runs) == f.PageSize() {
			page.Next = strconv.FormatInt(last, 36)
			break
		}
		page.Runs, last = append(page.Runs, run), r.number
	}
	return page, nil
}

// snapshot is the run as it is, and whether it is kept.
func (r *memoryRun) snapshot(m *Memory) (Run, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.recordLocked(), !m.expired(r)
}

// RunByKey implements Directory.
func (m *Memory) RunByKey(_ context.Context, owner Owner, key string) (Run, error) {
	m.mu.RLock()
	r := m.keys[ownedKey{owner, key}]
	m.mu.RUnlock()
	if r == nil {
		return Run{}, ErrNotFound
	}
	run, kept := r.snapshot(m)
	if !kept {
		return Run{}, ErrNotFound
	}
	return run, nil
}

// Delete implements Directory.
func (m *Memory) Delete(_ context.Context, run string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.runs.Load(run)
	if ok {
		m.buryLocked(v.(*memoryRun))
		return nil
	}
	if _, gone := m.gone.owner(run); gone {
		return nil
	}
	return ErrNotFound
}
