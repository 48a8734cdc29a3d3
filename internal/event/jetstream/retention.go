package jetstream

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
	"answerd/internal/event/jetstream/share"
)

// abandonedAfter is how long a run that has not ended is kept after its last event. A run may wait that long for a
// person.
const abandonedAfter = 7 * 24 * time.Hour

// expireLoop deletes runs whose retention has passed, about every tenth of the retention (between 1 s and 1 min). When
// space is short, it also deletes runs that have ended, and threads. It runs until Close. Every instance that shares
// the streams does so; deleting a run twice is harmless.
func (l *Log) expireLoop() {
	interval := min(max(l.retention/10, time.Second), time.Minute)
	space := time.NewTicker(spaceInterval)
	defer space.Stop()

	var account shortage    // spans the rounds
	var spaceFrom time.Time // before this time, short space is no reason for a round
	due := time.Now().Add(interval)
	for l.awaitExpiry(space, due, spaceFrom) {
		before := l.expired.Load()
		if !l.diskFull.Load() { // otherwise recoverDisk does the same
			l.expireOnce()
			if l.accountFull.Swap(false) {
				l.deleteThreadsForSpace(&account, before)
			}
		}
		if l.expired.Load() == before {
			spaceFrom = time.Now().Add(uselessPause)
		}
		if !l.pause(l.ctx, time.Second) { // while the log is full, expireNow is always ready
			return
		}
		due = time.Now().Add(interval + rand.N(interval/4)) // so that the instances do not work at the same time
	}
}

// awaitExpiry waits until expireLoop is to delete runs: at due, when the log is full (expireNow), or when space is
// short, but for that reason not before spaceFrom. It keeps the sizes of runs up to date during the wait (watchSpace).
// It reports false if the log is closed.
func (l *Log) awaitExpiry(space *time.Ticker, due, spaceFrom time.Time) bool {
	for {
		select {
		case now := <-space.C:
			mustMakeSpace := l.watchSpace(space) && !now.Before(spaceFrom)
			if mustMakeSpace || !now.Before(due) {
				return true
			}
		case <-l.expireNow:
			return true
		case <-l.ctx.Done():
			return false
		}
	}
}

// expireOnce calls expireRuns, and logs its error or panic.
func (l *Log) expireOnce() {
	defer l.recoverPanic("delete expired runs")
	if err := l.expireRuns(l.ctx); err != nil && l.ctx.Err() == nil {
		l.logger.Warn("expired runs could not be deleted from the event log", "error", err)
	}
}

// shortage is a period in which the disk or the account of the log is full.
type shortage struct {
	last    time.Time // when deleteThreadsForSpace was last called
	expired int64     // Log.expired at the beginning of the period
	checks  int       // the calls of deleteThreadsForSpace since runs have expired, or since there are no runs
}

const (
	// shortageEnd is the time without a call of deleteThreadsForSpace after which a shortage has ended.
	shortageEnd = 10 * time.Second
	// checksBeforeThreads is how many checks, once a second, must find that the space of deleted runs is not enough
	// before threads are deleted. A disk gets that space only when the server has compacted its files.
	checksBeforeThreads = 3
)

// deleteThreadsForSpace is called about once a second while the disk or the account is full. It deletes a third of the
// threads, the least recently updated ones, if that stays so although runs have expired, or although there are no runs.
// s is the current shortage, and before was Log.expired before the caller deleted runs.
func (l *Log) deleteThreadsForSpace(s *shortage, before int64) {
	defer l.recoverPanic("delete threads of a full log")
	now := time.Now()
	if now.Sub(s.last) > shortageEnd {
		*s = shortage{expired: before}
	}
	s.last = now
	info, err := l.streamInfo(l.ctx, l.runsStream)
	if err != nil {
		return
	}
	hasRuns := info.State.Msgs > 0
	if hasRuns && l.expired.Load() == s.expired {
		return
	}
	s.checks++
	if s.checks < checksBeforeThreads {
		return
	}
	deleted, err := l.threads.DeleteOldestThird(l.ctx, int64(info.State.Bytes))
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

// compactTurns makes the server free the disk space of deleted turns, at the price of the oldest turn that is left. The
// server never compacts the last file of a stream by itself, and the stream may have only one. It compacts that file
// when the beginning of the stream is purged (nats-server 2.15, fileStore.compactLocked).
func (l *Log) compactTurns(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	info, err := l.streamInfo(ctx, l.turnsStream)
	if err == nil && info.State.Msgs > 0 {
		err = l.turnsStream.Purge(ctx, js.WithPurgeSequence(info.State.FirstSeq+1))
	}
	return err
}

// expireRuns deletes the runs whose retention has passed, and old tombstones if the index is short of space. If space
// is still short, it deletes runs that have ended: first those of owners above their share, then the oldest of any
// owner.
func (l *Log) expireRuns(ctx context.Context) error {
	if err := l.expireInOrder(ctx, false); err != nil {
		return err
	}
	if err := l.dropTombstones(ctx); err != nil {
		return err
	}
	spaceShort, err := l.isSpaceShort(ctx)
	if err == nil && spaceShort {
		spaceShort, err = l.evictByShare(ctx)
	}
	if err != nil || !spaceShort {
		return err
	}
	return l.expireInOrder(ctx, true)
}

// expireInOrder deletes the expired runs, in the order in which runs were created. It stops at the first run that is
// younger than the retention. If spaceShort is set, it also deletes runs that have ended, of any age, until space is no
// longer short.
func (l *Log) expireInOrder(ctx context.Context, spaceShort bool) error {
	for from := uint64(0); ; {
		entries, more, err := l.readBatch(ctx, indexName, directGet{Next: ownerPrefix + ">", From: from})
		if err != nil {
			return err
		}
		for i, m := range entries {
			from = m.pos + 1
			if l.Now().Sub(m.time) < l.retention && !spaceShort {
				entries = entries[:i]
				more = false
				break
			}
		}
		if spaceShort, err = l.expireEntries(ctx, entries, spaceShort); err != nil {
			return err
		}
		if !more || len(entries) == 0 {
			return nil
		}
	}
}

// How a full log makes space
//
// From 80 % of its limit on, a log deletes runs that have ended, until 75 % are used: those of the owners
// above an equal share, which is the space up to 80 % divided by the number of owners that have runs. If none of
// those owners has a run that ended, it deletes the runs that were created first, of any owner. It does this only
// from 90 % on if a run of those owners ended less than readGrace ago, or if the sizes of runs are unknown.

const (
	// spaceInterval separates two checks of the space, and nearInterval two checks while more than followAbove is used.
	spaceInterval = time.Second
	nearInterval  = 200 * time.Millisecond
	// uselessPause is how long short space is no reason to delete again after a round that deleted no run.
	uselessPause = 2 * time.Second
	// readGrace is how long after its end a run is not deleted because of its owner's share, so that its readers can
	// read the last events.
	readGrace = 5 * time.Second

	// Parts of the limit, in percent.
	followAbove = 65 // above, the sizes of runs are kept up to date (share.Table)
	forgetBelow = 50 // below, they are forgotten
	shortAbove  = 80 // above, space is short, and runs are deleted
	enoughBelow = 75 // below, a round of deleting ends
	fullAbove   = 90 // above, evictByShare does not wait for readGrace or unknown sizes
)

// space is how many bytes a stream has stored, and its limit.
type space struct{ used, limit int64 }

// exceeds reports whether more than percent of the limit is used.
func (s space) exceeds(percent int64) bool { return s.used > s.limit/100*percent }

// spaceOf returns the space of the stream of runs or of the index. The limit of the stream of runs is that of the
// configuration, even if the stream has a larger one from an earlier version.
func (l *Log) spaceOf(ctx context.Context, stream js.Stream) (space, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	info, err := l.streamInfo(ctx, stream)
	if err != nil {
		return space{}, unavailableError("read the state of the log", err)
	}
	s := space{int64(info.State.Bytes), info.Config.MaxBytes}
	if stream == l.runsStream {
		s.limit = min(s.limit, maxRunsBytes(l.maxBytes))
	}
	return s, nil
}

// watchSpace keeps the sizes of runs (l.sizes) up to date while they may be needed soon, and reports whether the space
// of runs or of the index is short. It sets the interval of tick to nearInterval or spaceInterval. It reports false if
// the disk is full, because recoverDisk makes space then, and if the space cannot be read.
func (l *Log) watchSpace(tick *time.Ticker) bool {
	defer l.recoverPanic("watch the space of the log")
	if l.diskFull.Load() {
		return false
	}
	runs, err := l.spaceOf(l.ctx, l.runsStream)
	switch {
	case err != nil: // expireRuns will get the error, and expireOnce logs it
	case runs.exceeds(followAbove):
		tick.Reset(nearInterval)
		_ = l.sizes.Follow(l.ctx, runs.used) // evictByShare logs the error
	default:
		tick.Reset(spaceInterval)
		if !runs.exceeds(forgetBelow) {
			l.sizes.Reset(l.ctx)
		}
	}
	if err != nil || runs.exceeds(shortAbove) {
		return err == nil
	}
	index, err := l.spaceOf(l.ctx, l.indexStream)
	return err == nil && index.exceeds(shortAbove)
}

// isSpaceShort reports whether the stream of runs or the index exceeds shortAbove. At its limit, the stream of runs
// would drop events that are still needed, and the index would refuse new runs.
func (l *Log) isSpaceShort(ctx context.Context) (bool, error) {
	for _, stream := range []js.Stream{l.runsStream, l.indexStream} {
		if s, err := l.spaceOf(ctx, stream); err != nil || s.exceeds(shortAbove) {
			return err == nil, err
		}
	}
	return false, nil
}

// dropTombstones removes the oldest tombstones, until the index uses less than enoughBelow, if it exceeds shortAbove.
// Otherwise the index of a log that deletes many runs would become full of tombstones, and refuse new runs. The owners
// of the runs then get event.ErrNotFound in place of event.ErrGone.
func (l *Log) dropTombstones(ctx context.Context) error {
	for enough := int64(shortAbove); ; enough = enoughBelow {
		index, err := l.spaceOf(ctx, l.indexStream)
		if err != nil || !index.exceeds(enough) {
			return err
		}
		// A new tombstone is the newest message of the index, so records before tombstonePos need not be read again.
		records, more, err := l.readBatch(ctx, indexName, directGet{Next: recordPrefix + ">", From: l.tombstonePos.Load()})
		if err != nil {
			return err
		}
		for _, m := range records {
			var err error
			if isTombstone := m.header.Get(js.MsgTTLHeader) != ""; isTombstone {
				err = deleteMessage(ctx, l.indexStream, m.pos)
			}
			if err != nil && !errors.Is(err, event.ErrFenced) { // ErrFenced: another process has removed it
				return err
			}
			l.tombstonePos.Store(m.pos + 1)
		}
		if !more || len(records) == 0 {
			return nil
		}
	}
}

// evictByShare deletes runs of the owners above their share while space is short. It reports whether the caller must
// also delete runs of the remaining owners: space is still short, and the log cannot wait until more runs of the owners
// above their share may be deleted.
func (l *Log) evictByShare(ctx context.Context) (mustDeleteAny bool, err error) {
	runs, err := l.spaceOf(ctx, l.runsStream)
	if err != nil {
		return false, err
	}
	shortStream := l.runsStream
	limit := runs.limit / 100 * shortAbove
	full := runs.exceeds(fullAbove)
	if !runs.exceeds(shortAbove) { // the index is short of space, so count runs (limit 0) instead of their bytes
		index, err := l.spaceOf(ctx, l.indexStream)
		if err != nil {
			return false, err
		}
		shortStream = l.indexStream
		limit = 0
		full = index.exceeds(fullAbove)
	}
	endedBefore := l.Now().Add(-readGrace)
	if err := l.sizes.Follow(ctx, runs.used); err != nil {
		if ctx.Err() == nil {
			l.logger.Warn("the event log is nearly full, and the sizes of its runs are not known", "error", err)
		}
		return full, nil
	}
	outcome, err := l.sizes.Evict(ctx, share.Eviction{
		Limit: limit, EndedBefore: endedBefore, Ended: l.endOf,
		Delete: func(ctx context.Context, id, owner string) error {
			l.expired.Add(1)
			return l.deleteRun(ctx, id, ownerPrefix+owner+".*."+id)
		},
		Enough: func(ctx context.Context) (bool, error) {
			s, err := l.spaceOf(ctx, shortStream)
			return err == nil && !s.exceeds(enoughBelow), err
		},
	})
	if err != nil {
		return false, err
	}
	cannotWait := outcome == share.Waiting && full
	return outcome == share.Nothing || cannotWait, nil
}

// endOf returns when a run ended, or the zero time if it has not ended, and the pos of its last message, 0 if it has
// none. It asks the leader of the stream. owner is the owner's token. It returns event.ErrGone if the log does not have
// the run.
func (l *Log) endOf(ctx context.Context, id, owner string) (ended time.Time, pos uint64, err error) {
	last, err := l.readLastFromLeader(ctx, runsName, runSubject(id, eventToken))
	if err != nil {
		return ended, 0, err
	}
	if last == nil {
		entry, err := l.readFromLeader(ctx, indexName, directGet{Next: ownerPrefix + owner + ".*." + id, From: 1})
		if err == nil && entry == nil {
			err = event.ErrGone
		}
		return ended, 0, err
	}
	hasEnded, err := l.isExpired(ctx, message{}, last, true)
	if err != nil || !hasEnded {
		return ended, last.pos, err
	}
	return last.time, last.pos, nil
}

// readOwners returns the first entries of the index at pos from or later, in order, and whether there are more. It is
// share.Source.Entries.
func (l *Log) readOwners(ctx context.Context, from uint64) (owners []share.Entry, more bool, err error) {
	entries, more, err := l.readBatch(ctx, indexName, directGet{Next: ownerPrefix + ">", From: from})
	for _, m := range entries {
		owner, _, _ := strings.Cut(strings.TrimPrefix(m.subject, ownerPrefix), ".")
		owners = append(owners, share.Entry{Pos: m.pos, ID: lastToken(m.subject), Owner: owner})
	}
	return owners, more, err
}

// expireEntries deletes the expired runs among some index entries and, while space is short,
// those that have ended. It reports whether space is still short. Without spaceShort it does not examine the space.
func (l *Log) expireEntries(ctx context.Context, entries []message, spaceShort bool) (stillShort bool, _ error) {
	lastEvents, err := l.readLastEvents(ctx, entries)
	if err != nil {
		return spaceShort, err
	}
	for _, entry := range entries {
		id := lastToken(entry.subject)
		var last *message
		if found, hasEvents := lastEvents[runSubject(id, eventToken)]; hasEvents {
			last = &found
		}
		expired, err := l.isExpired(ctx, entry, last, spaceShort)
		if err == nil && expired && l.clustered {
			expired, err = l.confirmExpired(ctx, entry, spaceShort)
		}
		if err != nil {
			return spaceShort, err
		}
		if !expired {
			continue
		}
		if err := l.deleteRun(ctx, id, entry.subject); err != nil {
			return spaceShort, err
		}
		l.sizes.Forget(id)
		l.expired.Add(1)
		if !spaceShort {
			continue
		}
		if spaceShort, err = l.isSpaceShort(ctx); err != nil {
			return spaceShort, err
		}
	}
	return spaceShort, nil
}

// isExpired reports whether the run of an index entry is to be deleted. last is the run's last message. If it is nil,
// the run was never started or the stream has dropped its events, and entry gives the run's age. If spaceShort is set,
// any run that has ended is to be deleted.
func (l *Log) isExpired(ctx context.Context, entry message, last *message, spaceShort bool) (bool, error) {
	if last == nil {
		age := l.Now().Sub(entry.time)
		return age >= l.retention || age >= abandonedAfter, nil
	}
	e, _, err := l.readEvent(ctx, *last)
	if errors.Is(err, event.ErrUnavailable) {
		return false, err
	}
	ended := err != nil || e.Terminal() // a run whose last event cannot be decoded counts as ended
	age := l.Now().Sub(last.time)
	switch {
	case isAbandoned(*last):
		return age >= startTimeout, nil
	case ended && (spaceShort || age >= l.retention):
		return true, nil
	}
	return age >= abandonedAfter, nil
}

// confirmExpired decides like isExpired, with the run's last message from the stream's leader. Another server may lack
// the newest messages, or all of them if it has just joined.
func (l *Log) confirmExpired(ctx context.Context, entry message, spaceShort bool) (bool, error) {
	last, err := l.readLastFromLeader(ctx, runsName, runSubject(lastToken(entry.subject), eventToken))
	if err != nil {
		return false, err
	}
	return l.isExpired(ctx, entry, last, spaceShort)
}
