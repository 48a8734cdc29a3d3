package jetstream

import (
	"context"
	"slices"
	"strconv"

	"answerd/internal/event"
)

// Runs implements event.Directory. An owner's entries are looked through from the
// newest on, in windows of the index that grow while they have few; Before is the
// number of an entry in the index.
func (l *Log) Runs(ctx context.Context, f event.Filter) (page event.RunPage, err error) {
	info, err := l.indexStream.Info(ctx)
	if err != nil {
		return page, unavailable("list runs", err)
	}
	high, first := info.State.LastSeq+1, info.State.FirstSeq
	if f.Before != "" {
		before, err := strconv.ParseUint(f.Before, 36, 64)
		if err != nil || before == 0 {
			return page, event.ErrInvalidPosition
		}
		high = min(high, before)
	}
	thread := "*"
	if f.ThreadID != "" {
		thread = digest(f.ThreadID)
	}
	subject := ownRoot + ownerToken(f.Owner) + "." + thread + ".*"
	last := uint64(0)
	for window := uint64(maxBatch); high > first; window = min(2*window, 1<<20) {
		low := max(first, high-min(high, window))
		entries, err := l.entries(ctx, subject, low, high)
		if err != nil {
			return page, err
		}
		for chunk := range slices.Chunk(entries, maxBatch) {
			runs, err := l.statesOf(ctx, chunk)
			if err != nil {
				return page, err
			}
			for i, run := range runs {
				if run.ID == "" || f.Status != "" && run.Status() != f.Status {
					continue
				}
				if len(page.Runs) == f.PageSize() {
					page.Next = strconv.FormatUint(last, 36)
					return page, nil
				}
				page.Runs, last = append(page.Runs, run), chunk[i].at
			}
		}
		high = low
	}
	return page, nil
}

// entries are the index's entries of a subject from low up to high, the newest first.
func (l *Log) entries(ctx context.Context, subject string, low, high uint64) (entries []message, err error) {
	for from := low; from < high; {
		found, more, err := l.batch(ctx, indexName, query{Next: subject, From: from})
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			if from = m.at + 1; m.at < high {
				entries = append(entries, m)
			}
		}
		if !more || len(found) == 0 {
			break
		}
	}
	slices.Reverse(entries)
	return entries, nil
}

// statesOf are the runs that entries stand for, each as it is now; one that is not kept
// any more has no id.
func (l *Log) statesOf(ctx context.Context, entries []message) ([]event.Run, error) {
	records, events := make([]string, len(entries)), make([]string, len(entries))
	for i, m := range entries {
		id := lastToken(m.subject)
		records[i], events[i] = recRoot+id, runRoot+runSubject(id)+"."+evKind
	}
	recs, err := l.lastOfEach(ctx, indexName, records)
	if err != nil {
		return nil, err
	}
	evs, err := l.lastOfEach(ctx, runsName, events)
	if err != nil {
		return nil, err
	}
	runs := make([]event.Run, len(entries))
	for i := range entries {
		m, known := recs[records[i]]
		if !known {
			continue
		}
		r := run{log: l, id: lastToken(entries[i].subject)}
		if r.record, err = decodeRecord(&m); err != nil {
			return nil, err
		}
		if e, some := evs[events[i]]; some {
			if r.last, _, err = l.event(ctx, e); err != nil {
				return nil, err
			}
		}
		if !r.goneLocked() {
			runs[i] = r.record.run(r.id)
			runs[i].Last = r.last
		}
	}
	return runs, nil
}

// lastOfEach returns the last messages of some subjects, by subject.
func (l *Log) lastOfEach(ctx context.Context, stream string, subjects []string) (map[string]message, error) {
	byName := make(map[string]message, len(subjects))
	from, left := uint64(0), subjects
	for len(left) > 0 {
		// The answer comes in the order of the stream and may end early, by its bytes.
		found, more, err := l.batch(ctx, stream, query{LastOf: left, From: from})
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			byName[m.subject] = m
		}
		if !more || len(found) == 0 {
			break
		}
		left = slices.DeleteFunc(slices.Clone(left), func(s string) bool { _, have := byName[s]; return have })
	}
	return byName, nil
}
