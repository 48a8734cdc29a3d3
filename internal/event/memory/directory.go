package memory

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"

	"answerd/internal/event"
)

// cursorBase is the base of the run numbers in Filter.Before and RunPage.Next. It only makes these strings shorter.
const cursorBase = 36

// Runs implements event.Directory. It lists the kept runs, most recently created first. RunPage.Next is the number of
// the last run on the page.
func (l *Log) Runs(_ context.Context, filter event.Filter) (event.RunPage, error) {
	before := int64(math.MaxInt64)
	if filter.Before != "" {
		var err error
		if before, err = strconv.ParseInt(filter.Before, cursorBase, 64); err != nil || before < 1 {
			return event.RunPage{}, event.ErrInvalidPosition
		}
	}

	var page event.RunPage
	last := int64(0) // the number of the page's last run
	for _, r := range l.findRuns(filter, before) {
		hasStatus := filter.Status == "" || r.currentStatus() == filter.Status
		if !hasStatus {
			continue
		}
		snapshot, kept, err := r.snapshot(l.retention)
		if err != nil {
			return event.RunPage{}, err
		}
		if !kept {
			continue
		}
		if len(page.Runs) == filter.PageSize() {
			page.Next = strconv.FormatInt(last, cursorBase) // r is on the next page
			break
		}
		page.Runs = append(page.Runs, snapshot)
		last = r.number
	}
	return page, nil
}

// findRuns returns the runs that match filter, except for their status, and whose number is less than before. The most
// recently created run is first.
func (l *Log) findRuns(filter event.Filter, before int64) (found []*run) {
	for _, value := range l.runs.Range {
		r := value.(*run)
		inThread := filter.ThreadID == "" || filter.ThreadID == r.record.ThreadID
		isOwn := r.record.Owner == filter.Owner
		if inThread && isOwn && r.number < before && !filter.HidesChild(r.record.ParentID) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b *run) int { return cmp.Compare(b.number, a.number) })
	return found
}

// RunByKey implements event.Directory. It does not wait for the first event: it also returns a run that has no events
// yet.
func (l *Log) RunByKey(_ context.Context, owner event.Owner, key string) (event.Run, error) {
	l.mu.RLock()
	r := l.keys[ownedKey{owner, key}]
	l.mu.RUnlock()
	if r == nil {
		return event.Run{}, event.ErrNotFound
	}
	snapshot, kept, err := r.snapshot(l.retention)
	if !kept {
		return event.Run{}, event.ErrNotFound
	}
	return snapshot, err
}

// Delete implements event.Directory. It returns nil without doing anything if the run was already dropped.
func (l *Log) Delete(_ context.Context, id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r, ok := l.runs.Load(id); ok {
		l.dropLocked(r.(*run))
		return nil
	}
	if _, dropped := l.tombstones.ownerOf(id); dropped {
		return nil
	}
	return event.ErrNotFound
}
