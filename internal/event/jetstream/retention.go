package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
)

const (
	// abandonedAfter limits how long a run that has not ended is kept without a new event. A run
	// may wait that long for a person.
	abandonedAfter = 7 * 24 * time.Hour
	// tombstoneTTL limits how long the owner of a deleted run is known.
	tombstoneTTL = 7 * 24 * time.Hour
)

// expireLoop deletes runs whose retention has passed. When space is short, it also deletes runs
// that have ended. Every instance that shares the streams does so; deleting a run twice is
// harmless.
func (l *Log) expireLoop() {
	interval := min(max(l.retention/10, time.Second), time.Minute)
	var account shortage
	for {
		select {
		case <-time.After(interval + rand.N(interval/4)):
		case <-l.expireNow:
		case <-l.ctx.Done():
			return
		}
		if !l.diskFull.Load() { // else recoverDisk does it
			before := l.expired.Load()
			l.expireOnce()
			if l.accountFull.Swap(false) {
				l.relieve(&account, before)
			}
		}
		select { // while the log is full, expireNow is always ready
		case <-time.After(time.Second):
		case <-l.ctx.Done():
			return
		}
	}
}

// expireSoon makes expireLoop delete runs now, because the log is full, as err says.
func (l *Log) expireSoon(err error) {
	if isAccountFull(err) {
		l.accountFull.Store(true)
	}
	select {
	case l.expireNow <- struct{}{}:
	default: // a request is pending
	}
}

func (l *Log) expireOnce() {
	defer l.recoverPanic("delete expired runs")
	if err := l.expireRuns(l.ctx); err != nil && l.ctx.Err() == nil {
		l.logger.Warn("expired runs could not be deleted from the event log", "error", err)
	}
}

// shortage describes a time in which the disk or the account of the log is full.
type shortage struct {
	last    time.Time // when that was found last
	expired int64     // Log.expired at the beginning
	checks  int       // since the first run has expired
}

const (
	// shortageEnd is the time after which a shortage that was not found again has ended.
	shortageEnd = 10 * time.Second
	// reliefChecks is how often a shortage is found, once a second, before threads give way: the disk has
	// the space of deleted runs only when the server has compacted its files.
	reliefChecks = 3
)

// relieve deletes old threads if the disk or the account stays full although runs have expired, or
// although there are none. before is Log.expired before this check deleted runs.
func (l *Log) relieve(s *shortage, before int64) {
	defer l.recoverPanic("delete threads of a full log")
	now := time.Now()
	if now.Sub(s.last) > shortageEnd {
		*s = shortage{expired: before}
	}
	s.last = now
	info, err := l.streamInfo(l.ctx, l.runsStream)
	if err != nil || info.State.Msgs > 0 && l.expired.Load() == s.expired {
		return
	}
	if s.checks++; s.checks < reliefChecks {
		return
	}
	deleted, err := l.threads.GiveWay(l.ctx, int64(info.State.Bytes))
	if deleted {
		l.logger.Warn("deleted the threads of the full event log that were not updated for longest")
		if l.embedded != nil && err == nil {
			err = l.compactTurns(l.ctx)
		}
	}
	if err != nil && l.ctx.Err() == nil {
		l.logger.Warn("old threads could not be deleted from the full event log", "error", err)
	}
}

// compactTurns makes the server give the space at the beginning of the turns back to the disk. It never
// compacts the last file of a stream by itself, which may be the only one. It does so when the beginning
// is purged, up to a message (nats-server 2.15, fileStore.compactLocked), so compactTurns purges the oldest turn.
func (l *Log) compactTurns(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	info, err := l.streamInfo(ctx, l.turnsStream)
	if err == nil && info.State.Msgs > 0 {
		err = l.turnsStream.Purge(ctx, js.WithPurgeSequence(info.State.FirstSeq+1))
	}
	return err
}

// expireRuns examines the runs in the order of creation, and stops at the first run younger than
// the retention. While space is short it examines all runs.
func (l *Log) expireRuns(ctx context.Context) error {
	short, err := l.isSpaceShort(ctx)
	if err != nil {
		return err
	}
	for from := uint64(0); ; {
		entries, more, err := l.readBatch(ctx, indexName, directGet{Next: ownerPrefix + ">", From: from})
		if err != nil {
			return err
		}
		for i, m := range entries {
			if from = m.pos + 1; l.Now().Sub(m.time) < l.retention && !short {
				entries, more = entries[:i], false
				break
			}
		}
		if short, err = l.expireEntries(ctx, entries, short); err != nil {
			return err
		}
		if !more || len(entries) == 0 {
			return nil
		}
	}
}

// isSpaceShort reports whether a stream is filled to 80 %. Beyond its limit, the stream of
// events would drop events that are still needed, and the index would refuse new runs.
func (l *Log) isSpaceShort(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	for _, s := range []js.Stream{l.runsStream, l.indexStream} {
		info, err := l.streamInfo(ctx, s)
		if err != nil {
			return false, unavailableError("read the state of the log", err)
		}
		limit := info.Config.MaxBytes
		if s == l.runsStream {
			limit = min(limit, maxRunsBytes(l.maxBytes))
		}
		if info.State.Bytes > uint64(limit)/10*8 {
			return true, nil
		}
	}
	return false, nil
}

// expireEntries deletes the expired runs among some index entries and, while space is short,
// those that have ended. It reports whether space is still short.
func (l *Log) expireEntries(ctx context.Context, entries []message, short bool) (bool, error) {
	lastEvents, err := l.readLastEvents(ctx, entries)
	if err != nil {
		return short, err
	}
	for _, m := range entries {
		last, hasEvents := lastEvents[runSubject(lastToken(m.subject), eventToken)]
		expired, err := l.isExpired(ctx, m, last, hasEvents, short)
		if err == nil && expired && l.clustered {
			expired, err = l.confirmExpired(ctx, m, short)
		}
		if err != nil {
			return short, err
		}
		if !expired {
			continue
		}
		if err := l.deleteRun(ctx, lastToken(m.subject), m.subject); err != nil {
			return short, err
		}
		l.expired.Add(1)
		if short {
			if short, err = l.isSpaceShort(ctx); err != nil {
				return short, err
			}
		}
	}
	return short, nil
}

// isExpired reports whether the run of an index entry is to be deleted.
func (l *Log) isExpired(ctx context.Context, entry, last message, hasEvents, short bool) (bool, error) {
	if !hasEvents { // it was never started, or the stream has dropped its events
		age := l.Now().Sub(entry.time)
		return age >= l.retention || age >= abandonedAfter, nil
	}
	e, _, err := l.readEvent(ctx, last)
	if errors.Is(err, event.ErrUnavailable) {
		return false, err
	}
	// A run whose last event is damaged counts as ended.
	ended := err != nil || e.Terminal()
	age := l.Now().Sub(last.time)
	if isAbandoned(last) {
		return age >= startTimeout, nil
	}
	return age >= abandonedAfter || ended && (short || age >= l.retention), nil
}

// confirmExpired does the same as isExpired with the last event that the stream's leader has. Another
// server may lack the newest events, or all of them if it is new.
func (l *Log) confirmExpired(ctx context.Context, entry message, short bool) (bool, error) {
	last, err := l.readLastFromLeader(ctx, runsName, runSubject(lastToken(entry.subject), eventToken))
	switch {
	case err != nil:
		return false, err
	case last == nil:
		return l.isExpired(ctx, entry, message{}, false, short)
	}
	return l.isExpired(ctx, entry, *last, true, short)
}

// Delete implements event.Directory.
func (l *Log) Delete(ctx context.Context, id string) error {
	run, err := l.Run(ctx, id)
	if err != nil && !errors.Is(err, event.ErrGone) {
		return err
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
		if full = l.writeTombstone(ctx, id, *rec); full != nil && !isFull(full) {
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
	return purgeSubject(ctx, l.indexStream, subject)
}

// writeTombstone replaces the record of a run by one that has little more than the owner. The
// server removes it after tombstoneTTL.
func (l *Log) writeTombstone(ctx context.Context, id string, rec record) error {
	if rec.Gone {
		return nil
	}
	rec.Gone, rec.Key, rec.Request, rec.Metadata = true, "", nil, nil
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
