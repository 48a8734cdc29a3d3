package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
)

// maxIndexWindow bounds the part of the index that one step of Runs reads.
const maxIndexWindow = 1 << 20

// tombstoneTTL limits how long the owner of a deleted run is known.
const tombstoneTTL = 7 * 24 * time.Hour

// Runs implements event.Directory. It reads an owner's index entries, newest first, in windows
// of the stream. A window with few entries of the owner makes the next one twice as large.
// Filter.Before is the number of an entry in the index.
func (l *Log) Runs(ctx context.Context, filter event.Filter) (page event.RunPage, err error) {
	info, err := l.streamInfo(ctx, l.indexStream)
	if err != nil {
		return page, unavailableError("list runs", err)
	}

	high, first := info.State.LastSeq+1, info.State.FirstSeq
	if filter.Before != "" {
		before, err := strconv.ParseUint(filter.Before, 36, 64)
		if err != nil || before == 0 {
			return page, event.ErrInvalidPosition
		}
		high = min(high, before)
	}

	thread := "*"
	if filter.ThreadID != "" {
		thread = subjectDigest(filter.ThreadID)
	}

	subject := ownerPrefix + ownerToken(filter.Owner) + "." + thread + ".*"
	last := uint64(0)
	for window := uint64(maxBatch); high > first; window = min(2*window, maxIndexWindow) {
		low := max(first, high-min(high, window))
		entries, err := l.readEntries(ctx, subject, low, high)
		if err != nil {
			return page, err
		}
		for chunk := range slices.Chunk(entries, maxBatch) {
			runs, err := l.readRuns(ctx, chunk)
			if err != nil {
				return page, err
			}
			for i, run := range runs {
				hasStatus := filter.Status == "" || run.Status() == filter.Status
				if run.ID == "" || filter.HidesChild(run.ParentID) || !hasStatus {
					continue
				}
				if len(page.Runs) == filter.PageSize() {
					page.Next = strconv.FormatUint(last, 36)
					return page, nil
				}
				page.Runs, last = append(page.Runs, run), chunk[i].pos
			}
		}
		high = low
	}
	return page, nil
}

// readEntries returns the index entries of a subject from pos low to below high, the newest
// first.
func (l *Log) readEntries(ctx context.Context, subject string, low, high uint64) (entries []message, err error) {
	for from := low; from < high; {
		found, more, err := l.readNext(ctx, indexName, subject, from, maxBatch)
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			from = m.pos + 1
			if m.pos < high {
				entries = append(entries, m)
			}
		}
		hasAll := !more && !l.clustered // a server of a cluster may lack the newest entries
		if hasAll || len(found) == 0 {
			break
		}
	}
	slices.Reverse(entries)
	return entries, nil
}

// readRuns returns the runs of index entries. A run without an ID stands for one that cannot be
// read, because it is no longer kept or its messages are damaged.
func (l *Log) readRuns(ctx context.Context, entries []message) ([]event.Run, error) {
	recordSubjects, eventSubjects := make([]string, len(entries)), make([]string, len(entries))
	for i, m := range entries {
		id := lastToken(m.subject)
		recordSubjects[i], eventSubjects[i] = recordPrefix+id, runSubject(id, eventToken)
	}
	records, err := l.readLastOfEachComplete(ctx, indexName, recordSubjects)
	if err != nil {
		return nil, err
	}
	lastEvents, err := l.readLastOfEachComplete(ctx, runsName, eventSubjects)
	if err != nil {
		return nil, err
	}
	runs := make([]event.Run, len(entries))
	for i := range entries {
		m, known := records[recordSubjects[i]]
		if !known {
			continue
		}
		last, hasEvents := lastEvents[eventSubjects[i]]
		readable, err := l.listedRun(ctx, lastToken(entries[i].subject), m, last, hasEvents)
		if err != nil {
			return nil, err
		}
		runs[i] = readable
	}
	return runs, nil
}

// listedRun returns a run for a list: from its record and, if it has events, from the message of its last one. Another
// process may write or delete the run meanwhile, so a run that cannot be read is left out of the list: it has no ID.
// The only error is event.ErrUnavailable.
func (l *Log) listedRun(ctx context.Context, id string, stored, last message, hasEvents bool) (event.Run, error) {
	rec, err := decodeRecord(&stored)
	if err != nil {
		return event.Run{}, nil
	}
	r := run{log: l, id: id, record: rec} // no other goroutine has it
	if hasEvents {
		r.last, _, err = l.readEvent(ctx, last)
	} else if !rec.Gone {
		rec.Gone, err = l.neverHasEvents(ctx, rec)
	}
	switch {
	case errors.Is(err, event.ErrUnavailable):
		return event.Run{}, err
	case err != nil, r.isGoneLocked():
		return event.Run{}, nil
	}
	listed := rec.toRun(id)
	listed.Last = r.last
	return listed, nil
}

// Delete implements event.Directory. It does not stop when ctx ends, because the caller may not call it again, and what
// has not been deleted yet would stay until the retention of the run has passed.
func (l *Log) Delete(ctx context.Context, id string) error {
	run, err := l.Run(ctx, id)
	if err != nil && !errors.Is(err, event.ErrGone) {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if w, err := l.writerFor(ctx, id); err == nil {
		_ = w.awaitAhead(ctx) // or it would be stored after the deletion
	}
	return l.deleteRun(ctx, id, ownerSubject(run))
}

// deleteRun removes everything of a run except its tombstone. It removes the entry by owner
// last, because retention repeats an interrupted deletion as long as the entry exists. A full
// log may refuse the tombstone until something else has been removed.
func (l *Log) deleteRun(ctx context.Context, id, owner string) error {
	rec, err := l.readRecord(ctx, id)
	if err != nil && !errors.Is(err, event.ErrNotFound) {
		return err
	}
	var full error
	if rec != nil {
		if err := l.releaseKey(ctx, id, rec.Key); err != nil {
			return err
		}
		full = l.writeTombstone(ctx, id, *rec)
		if full != nil && !isFull(full) {
			return full
		}
	}
	l.markGone(id)
	if err := purgeSubject(ctx, l.runsStream, runSubject(id, ">")); err != nil {
		return err
	}
	if full != nil {
		if err := l.replaceRecord(ctx, id, *rec); err != nil {
			return err
		}
	}
	for _, prefix := range []string{jobPrefix, wakePrefix} {
		if err := l.removeJobMessage(ctx, prefix+id); err != nil {
			return err
		}
	}
	return purgeSubject(ctx, l.indexStream, owner)
}

// purgeIfGone removes what was added to a run while it was deleted. Those who add something beside the events call it, since
// nothing else finds that any more.
func (l *Log) purgeIfGone(id string) {
	ctx, cancel := context.WithTimeout(l.ctx, readTimeout)
	defer cancel()
	if rec, err := l.readRecord(ctx, id); err == nil && rec.Gone {
		_ = purgeSubject(ctx, l.runsStream, runSubject(id, ">")) // the stream drops its oldest messages at the latest
	}
}

// releaseKey removes the key of a run, unless the key already refers to another run. A run
// without a key has the subject "".
func (l *Log) releaseKey(ctx context.Context, id, subject string) error {
	if subject == "" {
		return nil
	}
	m, err := l.readLast(ctx, indexName, subject)
	if err != nil || m == nil {
		return err
	}
	var k keyRecord
	if json.Unmarshal(m.data, &k) != nil || k.Run != id {
		return nil
	}
	// Not the subject: another run may have taken the key over since it was read.
	if err := deleteMessage(ctx, l.indexStream, m.pos); !errors.Is(err, event.ErrFenced) {
		return err
	}
	return nil
}

// writeTombstone replaces the record of a run by one that has little more than the owner. The
// server removes it after tombstoneTTL.
func (l *Log) writeTombstone(ctx context.Context, id string, rec record) error {
	if rec.Gone {
		return nil
	}
	rec.Gone = true
	rec.Key = ""
	rec.Request = nil
	rec.Metadata = nil
	body, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	m := nats.NewMsg(recordPrefix + id)
	m.Data = body
	m.Header.Set(js.MsgTTLHeader, strconv.Itoa(int(tombstoneTTL.Seconds()))+"s")
	if _, err := l.publishOnce(ctx, m); err != nil {
		return unavailableError("write a tombstone", err)
	}
	return nil
}

// replaceRecord writes a tombstone to a log that refused it because it was full. If the log
// refuses it again, the record is removed first, and the run may end up without a tombstone: its
// owner then reads ErrNotFound instead of ErrGone.
func (l *Log) replaceRecord(ctx context.Context, id string, rec record) error {
	err := l.writeTombstone(ctx, id, rec)
	if !isFull(err) {
		return err
	}
	if err := purgeSubject(ctx, l.indexStream, recordPrefix+id); err != nil {
		return err
	}
	if err := l.writeTombstone(ctx, id, rec); err != nil && !isFull(err) {
		return err
	}
	return nil
}

// markGone updates the cache of a run that is being deleted, and ends its writer.
func (l *Log) markGone(id string) {
	r := l.cachedRun(id)
	if r == nil {
		return
	}
	r.mu.Lock()
	w := r.writer
	r.mu.Unlock()
	if w != nil {
		w.mu.Lock()
		w.revokeLocked(event.ErrGone)
		w.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.record != nil {
		gone := *r.record
		gone.Gone, gone.Request = true, nil
		r.record = &gone
	}
	r.stale = true
	r.wakeReadersLocked()
	r.wakeExecutorLocked()
}
