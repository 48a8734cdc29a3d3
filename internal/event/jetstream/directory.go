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

// maxIndexWindow is the largest number of index positions that Runs examines at once.
const maxIndexWindow = 1 << 20

// tombstoneTTL is how long the tombstone of a run is kept.
const tombstoneTTL = 7 * 24 * time.Hour

// Runs implements event.Directory. It reads the owner's index entries from the newest to the oldest, one range of
// stream positions at a time. Each range is twice as large as the one before, up to maxIndexWindow, because the owner
// may have few entries. Filter.Before and RunPage.Next are the position of an entry in base 36.
func (l *Log) Runs(ctx context.Context, filter event.Filter) (page event.RunPage, err error) {
	info, err := l.streamInfo(ctx, l.indexStream)
	if err != nil {
		return page, unavailableError("list runs", err)
	}
	first, high := info.State.FirstSeq, info.State.LastSeq+1 // entries at high or later were read
	if filter.Before != "" {
		before, err := strconv.ParseUint(filter.Before, 36, 64)
		if err != nil || before == 0 {
			return page, event.ErrInvalidPosition
		}
		high = min(high, before)
	}
	threadToken := "*"
	if filter.ThreadID != "" {
		threadToken = subjectDigest(filter.ThreadID)
	}
	subject := ownerPrefix + ownerToken(filter.Owner) + "." + threadToken + ".*"
	for window := uint64(maxBatch); high > first; window = min(2*window, maxIndexWindow) {
		low := max(first, high-min(high, window))
		entries, err := l.readEntries(ctx, subject, low, high)
		if err != nil {
			return page, err
		}
		for batch := range slices.Chunk(entries, maxBatch) {
			isComplete, err := l.addRuns(ctx, &page, filter, batch)
			if isComplete || err != nil {
				return page, err
			}
		}
		high = low
	}
	page.Next = "" // all runs were read
	return page, nil
}

// addRuns appends the runs that match filter to page, and sets page.Next to the position of the last one in base 36. It
// returns true if the page is complete and a run for the next page exists.
func (l *Log) addRuns(ctx context.Context, page *event.RunPage, filter event.Filter, entries []message) (isComplete bool, err error) {
	runs, err := l.readRuns(ctx, entries)
	if err != nil {
		return false, err
	}
	for i, run := range runs {
		hasStatus := filter.Status == "" || run.Status() == filter.Status
		if run.ID == "" || filter.HidesChild(run.ParentID) || !hasStatus {
			continue
		}
		if len(page.Runs) == filter.PageSize() {
			return true, nil
		}
		page.Runs = append(page.Runs, run)
		page.Next = strconv.FormatUint(entries[i].Pos, 36)
	}
	return false, nil
}

// readEntries returns the index entries of a subject at positions from low up to, but not including, high. The newest
// entry is first.
func (l *Log) readEntries(ctx context.Context, subject string, low, high uint64) (entries []message, err error) {
	for from := low; from < high; {
		found, more, err := l.readNext(ctx, indexName, subject, from, maxBatch)
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			from = m.Pos + 1
			if m.Pos < high {
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

// readRuns returns the run of each index entry, in the same order. If a run cannot be read because it is no longer kept
// or its messages are damaged, its element is a Run without an ID.
func (l *Log) readRuns(ctx context.Context, entries []message) ([]event.Run, error) {
	recordSubjects, eventSubjects := make([]string, len(entries)), make([]string, len(entries))
	for i, m := range entries {
		id := lastToken(m.Subject)
		recordSubjects[i] = recordPrefix + id
		eventSubjects[i] = runSubject(id, eventToken)
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
		recordMessage := records[recordSubjects[i]]
		if recordMessage == nil {
			continue
		}
		id := lastToken(entries[i].Subject)
		if runs[i], err = l.listedRun(ctx, id, recordMessage, lastEvents[eventSubjects[i]]); err != nil {
			return nil, err
		}
	}
	return runs, nil
}

// listedRun builds the run with the given id from its record's message and its last message, which is nil if the run
// has no events. It returns a Run without an ID if the run is gone or cannot be decoded, because another process may be
// writing or deleting it. The only error is event.ErrUnavailable.
func (l *Log) listedRun(ctx context.Context, id string, recordMessage, last *message) (event.Run, error) {
	rec, err := decodeRecord(recordMessage)
	if err != nil {
		return event.Run{}, nil
	}
	r := run{log: l, id: id, record: rec} // not in the cache, so it needs no lock
	if last != nil {
		r.last, _, err = l.readEvent(ctx, *last)
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

// Delete implements event.Directory. Once the run is found, the deletion continues even if ctx ends. It is repeated for
// up to createTimeout while the log does not answer, because callers may not try again. Data left behind would stay
// until the run's retention has passed.
func (l *Log) Delete(ctx context.Context, id string) error {
	run, err := l.Run(ctx, id)
	if err != nil && !errors.Is(err, event.ErrGone) {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	w, writerErr := l.writerFor(ctx, id)
	hasNotBegun := err == nil && run.Last.Seq == 0
	switch {
	case writerErr == nil:
		_ = w.awaitAhead(ctx) // otherwise the messages sent ahead could be stored after the deletion
	case hasNotBegun && !l.alone: // another instance may be about to append the first event
		err := purgeSubject(ctx, l.runsStream, runSubject(id, ">"))
		if err == nil && l.abandon(ctx, id) == nil {
			return nil
		}
	}
	deadline := time.Now().Add(createTimeout)
	for {
		err := l.deleteRun(ctx, id, ownerSubject(run))
		canRepeat := errors.Is(err, event.ErrUnavailable) && !l.diskFailed() && time.Now().Before(deadline)
		if !canRepeat || !l.pause(ctx, retryInterval) {
			return err
		}
	}
}

// abandon makes sure that a run without messages never begins. It appends a control message, so that the first append
// of the run's creator fails if the creator is still alive, and then writes a tombstone. Retention removes the control
// message. It returns event.ErrFenced if the run has received a message.
func (l *Log) abandon(ctx context.Context, id string) error {
	rec, err := l.readRecord(ctx, id)
	if err != nil {
		return err
	}
	m := nats.NewMsg(runSubject(id, eventToken))
	m.Header.Set(writerHeader, messageInfo{instance: l.instanceID, attempt: firstAttempt, kind: kindAbandoned}.String())
	if _, err := l.publishAfter(ctx, runsName, m, 0, createTimeout); err != nil {
		return err
	}
	l.markGone(id)
	return l.writeTombstone(ctx, id, *rec)
}

// deleteRun replaces a run's record with a tombstone and removes the rest of the run. ownerEntry is the subject of the
// owner's index entry, and may have a wildcard. That entry is removed last: as long as it exists, retention repeats an
// interrupted deletion. If the log is too full for the tombstone, deleteRun writes the tombstone after it has removed
// the events.
func (l *Log) deleteRun(ctx context.Context, id, ownerEntry string) error {
	rec, err := l.readRecord(ctx, id)
	if err != nil && !errors.Is(err, event.ErrNotFound) {
		return err
	}
	wasRefused := false // the log was too full for the tombstone
	if rec != nil {
		if err := l.releaseKey(ctx, id, rec.Key); err != nil {
			return err
		}
		err := l.writeTombstone(ctx, id, *rec)
		wasRefused = isFull(err)
		if err != nil && !wasRefused {
			return err
		}
	}
	l.markGone(id)
	if err := purgeSubject(ctx, l.runsStream, runSubject(id, ">")); err != nil {
		return err
	}
	if wasRefused {
		if err := l.retryTombstone(ctx, id, *rec); err != nil {
			return err
		}
	}
	for _, prefix := range []string{jobPrefix, wakePrefix} {
		if err := l.removeJobMessage(ctx, prefix+id); err != nil {
			return err
		}
	}
	return purgeSubject(ctx, l.indexStream, ownerEntry)
}

// purgeIfGone removes messages that were added to a run while the run was being deleted. It is called after a result or
// an input was added, because nothing else finds such messages once the run is deleted. It ignores errors.
func (l *Log) purgeIfGone(id string) {
	ctx, cancel := context.WithTimeout(l.ctx, readTimeout)
	defer cancel()
	if rec, err := l.readRecord(ctx, id); err == nil && rec.Gone {
		_ = purgeSubject(ctx, l.runsStream, runSubject(id, ">")) // after an error, they stay until the stream is full
	}
}

// releaseKey removes the idempotency key of run id, unless the key refers to another run by now. subject is the subject
// of the key's record, or "" if the run has no key.
func (l *Log) releaseKey(ctx context.Context, id, subject string) error {
	if subject == "" {
		return nil
	}
	m, err := l.readLast(ctx, indexName, subject)
	if err != nil || m == nil {
		return err
	}
	var k keyRecord
	if json.Unmarshal(m.Data, &k) != nil || k.Run != id {
		return nil
	}
	// Remove this message instead of purging the subject, because the key may refer to another run by now.
	err = deleteMessage(ctx, l.indexStream, m.Pos)
	if errors.Is(err, event.ErrFenced) {
		return nil
	}
	return err
}

// writeTombstone replaces a run's record with a tombstone, which is rec without the key, the request and the metadata.
// The server removes it after tombstoneTTL. writeTombstone does nothing if rec is already a tombstone.
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

// retryTombstone writes a tombstone that the full log has refused before. If the log refuses it again, retryTombstone
// removes the record and tries once more. If the log still refuses it, the run has no tombstone, and its owner gets
// event.ErrNotFound instead of event.ErrGone.
func (l *Log) retryTombstone(ctx context.Context, id string, rec record) error {
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

// markGone marks a cached run as gone. From then on the run's readers, executor and writer get event.ErrGone. It does
// nothing if the run is not in this instance's cache.
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
