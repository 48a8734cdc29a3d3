package jetstream

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
	"answerd/internal/event/jetstream/share"
)

// abandonedAfter is how long a run that has not ended is kept after its last event. It is a week, because a run may
// wait that long for a person.
const abandonedAfter = 7 * 24 * time.Hour

// expireLoop deletes runs whose retention has passed, about every tenth of the retention (between 1 s and 1 min). When
// space is short, it also deletes runs that have ended, and threads. It returns after Close. Every instance that shares
// the streams runs this loop. Deleting a run twice is harmless.
func (l *Log) expireLoop() {
	interval := min(max(l.retention/10, time.Second), time.Minute)
	space := time.NewTicker(spaceInterval)
	defer space.Stop()

	var account shortage    // the same for all rounds
	var spaceFrom time.Time // before this time, short space does not start a round
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
		due = time.Now().Add(interval + rand.N(interval/4)) // so that the instances do not all work at the same time
	}
}

// awaitExpiry waits until expireLoop must delete runs: at the time due, when the log is full (expireNow), or when space
// is short. It ignores short space before spaceFrom. While it waits, it keeps the sizes of runs up to date
// (watchSpace). It returns false if the log is closed.
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

// shortage describes a period in which the log's disk or account is full.
type shortage struct {
	last    time.Time // when deleteThreadsForSpace was last called
	expired int64     // the value of Log.expired when the period began
	checks  int       // calls of deleteThreadsForSpace in which runs had expired since the beginning, or no runs were left
}

const (
	// shortageEnd is how long deleteThreadsForSpace must not have been called before a shortage is considered over.
	shortageEnd = 10 * time.Second
	// checksBeforeThreads is how many checks, one per second, must find that deleting runs has not freed enough space
	// before threads are deleted. Deleting takes a while to free disk space, because the server must first compact its
	// files.
	checksBeforeThreads = 3
)

// deleteThreadsForSpace deletes the least recently updated third of the threads if the log stays full although runs
// have expired, or although the log has no runs. It is called about once a second while the disk or the account is
// full. s is the current shortage. before is the value of Log.expired before the caller deleted runs.
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

// compactTurns makes the server free the disk space of deleted turns. This costs the oldest remaining turn: the server
// never compacts the last file of a stream by itself, and the stream may have only one file. It compacts that file only
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
// is still short, it deletes runs that have ended: first those of owners above their share, and then the oldest runs of
// all owners.
func (l *Log) expireRuns(ctx context.Context) error {
	if err := l.expireInOrder(ctx, expiredRuns); err != nil {
		return err
	}
	if err := l.dropTombstones(ctx); err != nil {
		return err
	}
	spaceShort, err := l.isSpaceShort(ctx)
	if err != nil || !spaceShort {
		return err
	}
	mustDeleteAny, err := l.evictByShare(ctx)
	if err != nil || !mustDeleteAny {
		return err
	}
	return l.expireInOrder(ctx, endedRuns)
}

// deletable says which runs expireInOrder deletes.
type deletable int

const (
	expiredRuns deletable = iota // runs whose retention has passed
	endedRuns                    // also runs of any age that have ended, because space is short
)

// expireInOrder deletes runs in the order in which they were created. Once space is no longer short, it deletes only
// expiredRuns, and stops at the first run that was created within the retention.
func (l *Log) expireInOrder(ctx context.Context, which deletable) error {
	for from := uint64(0); ; {
		entries, more, err := l.readBatch(ctx, indexName, directGet{Next: ownerPrefix + ">", From: from})
		if err != nil {
			return err
		}
		if which == expiredRuns {
			isYoung := func(m message) bool { return l.Now().Sub(m.Time) < l.retention }
			if i := slices.IndexFunc(entries, isYoung); i >= 0 {
				entries, more = entries[:i], false
			}
		}
		if len(entries) == 0 {
			return nil
		}
		if which, err = l.expireEntries(ctx, entries, which); err != nil || !more {
			return err
		}
		from = entries[len(entries)-1].Pos + 1
	}
}

// How a full log makes space
//
// When more than 80 % of its limit are used, a log deletes runs that have ended, until 75 % are used. It deletes only
// runs of owners above an equal share, which is the space up to 80 % divided by the number of owners that have runs. If
// none of those owners has a run that has ended, it deletes the oldest runs of all owners. If a run of those owners
// ended less than readGrace ago, or the sizes of runs are unknown, it deletes the oldest runs only above 90 %.

const (
	// spaceInterval is the time between two checks of the space. nearInterval replaces it while more than followAbove
	// is used.
	spaceInterval = time.Second
	nearInterval  = 200 * time.Millisecond
	// uselessPause is how long short space does not start another round after a round that deleted no run.
	uselessPause = 2 * time.Second
	// readGrace is how long a run that has ended is protected from deletion because of its owner's share, so that its
	// readers can read the last events.
	readGrace = 5 * time.Second

	// Parts of the limit, in percent.
	followAbove = 65 // above: keep the sizes of runs up to date (share.Table)
	forgetBelow = 50 // below: forget these sizes
	shortAbove  = 80 // above: space is short, so delete runs
	enoughBelow = 75 // below: stop deleting
	fullAbove   = 90 // above: evictByShare waits neither for readGrace nor for the sizes of runs
)

// space is the number of bytes that a stream stores, and the stream's limit.
type space struct{ used, limit int64 }

// exceeds reports whether more than percent % of the limit is used.
func (s space) exceeds(percent int64) bool { return s.used > s.limit/100*percent }

// spaceOf returns the space of the stream of runs or of the index. For the stream of runs it uses the configured limit,
// even if the stream has a larger one from an earlier version of answerd.
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

// watchSpace keeps the sizes of runs (l.sizes) up to date if they may be needed soon. It reports whether the space of
// runs or of the index is short, and sets the interval of tick to nearInterval or spaceInterval. It returns false if
// the disk is full, because recoverDisk then makes space, and if the space cannot be read.
func (l *Log) watchSpace(tick *time.Ticker) bool {
	defer l.recoverPanic("watch the space of the log")
	if l.diskFull.Load() {
		return false
	}
	runs, err := l.spaceOf(l.ctx, l.runsStream)
	if err != nil { // expireRuns will get the same error, and expireOnce logs it
		return false
	}
	if runs.exceeds(followAbove) {
		tick.Reset(nearInterval)
		_ = l.sizes.Follow(l.ctx, runs.used) // evictByShare logs the error
	} else {
		tick.Reset(spaceInterval)
	}
	if !runs.exceeds(forgetBelow) {
		l.sizes.Reset(l.ctx)
	}
	if runs.exceeds(shortAbove) {
		return true
	}
	index, err := l.spaceOf(l.ctx, l.indexStream)
	return err == nil && index.exceeds(shortAbove)
}

// isSpaceShort reports whether the stream of runs or the index exceeds shortAbove. At its limit, the stream of runs
// drops events that are still needed, and the index refuses new runs.
func (l *Log) isSpaceShort(ctx context.Context) (bool, error) {
	for _, stream := range []js.Stream{l.runsStream, l.indexStream} {
		s, err := l.spaceOf(ctx, stream)
		if err != nil {
			return false, err
		}
		if s.exceeds(shortAbove) {
			return true, nil
		}
	}
	return false, nil
}

// dropTombstones removes the oldest tombstones if the index exceeds shortAbove, until the index uses less than
// enoughBelow. Otherwise a log that deletes many runs would fill its index with tombstones and refuse new runs. For
// runs without a tombstone, owners get event.ErrNotFound instead of event.ErrGone.
func (l *Log) dropTombstones(ctx context.Context) error {
	limit := int64(shortAbove) // in percent
	for {
		index, err := l.spaceOf(ctx, l.indexStream)
		if err != nil || !index.exceeds(limit) {
			return err
		}
		limit = enoughBelow
		// A new tombstone is the newest message of the index, so records before tombstonePos need not be read again.
		records, more, err := l.readBatch(ctx, indexName, directGet{Next: recordPrefix + ">", From: l.tombstonePos.Load()})
		if err != nil {
			return err
		}
		if err := l.deleteTombstones(ctx, records); err != nil || !more || len(records) == 0 {
			return err
		}
	}
}

// deleteTombstones deletes the tombstones among records, and advances l.tombstonePos.
func (l *Log) deleteTombstones(ctx context.Context, records []message) error {
	for _, m := range records {
		if isTombstone := m.Header.Get(js.MsgTTLHeader) != ""; isTombstone {
			err := deleteMessage(ctx, l.indexStream, m.Pos)
			if err != nil && !errors.Is(err, event.ErrFenced) { // ErrFenced: another process has removed it
				return err
			}
		}
		l.tombstonePos.Store(m.Pos + 1)
	}
	return nil
}

// evictByShare deletes runs of owners above their share while space is short. mustDeleteAny is true if the caller must
// also delete runs of other owners, because space is still short and the log cannot wait until more runs of owners
// above their share may be deleted.
func (l *Log) evictByShare(ctx context.Context) (mustDeleteAny bool, err error) {
	runs, err := l.spaceOf(ctx, l.runsStream)
	if err != nil {
		return false, err
	}
	shortStream, short := l.runsStream, runs
	limit := runs.limit / 100 * shortAbove
	if !runs.exceeds(shortAbove) { // the index is short of space, so compare numbers of runs (limit 0) instead of bytes
		shortStream = l.indexStream
		limit = 0
		if short, err = l.spaceOf(ctx, l.indexStream); err != nil {
			return false, err
		}
	}
	isFull := short.exceeds(fullAbove)
	endedBefore := l.Now().Add(-readGrace)
	if err := l.sizes.Follow(ctx, runs.used); err != nil {
		if ctx.Err() == nil {
			l.logger.Warn("the event log is nearly full, and the sizes of its runs are not known", "error", err)
		}
		return isFull, nil
	}
	outcome, err := l.sizes.Evict(ctx, share.Eviction{
		Limit:       limit,
		EndedBefore: endedBefore,
		Ended:       l.endOf,
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
	cannotWait := outcome == share.Waiting && isFull
	return outcome == share.Nothing || cannotWait, nil
}

// endOf returns when a run ended, and the position of its last message. ended is zero if the run has not ended, and pos
// is 0 if the run has no messages. owner is the owner's token. endOf asks the stream's leader. It returns event.ErrGone
// if the log does not have the run.
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
	hasEnded, err := l.mustDelete(ctx, *last, endedRuns) // while space is short, all runs that have ended must be deleted
	if err != nil || !hasEnded {
		return ended, last.Pos, err
	}
	return last.Time, last.Pos, nil
}

// readOwners returns the index entries at position from or later, in order. The result may be incomplete; more is then
// true. It implements share.Source.Entries.
func (l *Log) readOwners(ctx context.Context, from uint64) (owners []share.Entry, more bool, err error) {
	entries, more, err := l.readBatch(ctx, indexName, directGet{Next: ownerPrefix + ">", From: from})
	for _, m := range entries {
		owner, _, _ := strings.Cut(strings.TrimPrefix(m.Subject, ownerPrefix), ".")
		owners = append(owners, share.Entry{Pos: m.Pos, ID: lastToken(m.Subject), Owner: owner})
	}
	return owners, more, err
}

// expireEntries deletes the runs of entries that are deletable. If which is endedRuns, it checks the space after each
// deletion. Once space is no longer short, it continues with expiredRuns. next is what the caller must continue with.
func (l *Log) expireEntries(ctx context.Context, entries []message, which deletable) (next deletable, _ error) {
	lastEvents, err := l.readLastEvents(ctx, entries)
	if err != nil {
		return which, err
	}
	for _, entry := range entries {
		isDeletable, err := l.isDeletable(ctx, entry, lastEvents, which)
		if err != nil {
			return which, err
		}
		if !isDeletable {
			continue
		}
		id := lastToken(entry.Subject)
		if err := l.deleteRun(ctx, id, entry.Subject); err != nil {
			return which, err
		}
		l.sizes.Forget(id)
		l.expired.Add(1)
		if which == endedRuns {
			spaceShort, err := l.isSpaceShort(ctx)
			if err != nil {
				return which, err
			}
			if !spaceShort {
				which = expiredRuns
			}
		}
	}
	return which, nil
}

// isDeletable reports whether the run of entry, a message of the index, must be deleted. lastEvents holds the last
// messages of runs by subject. They may come from any server, which may lack the newest messages, or all messages if it
// has just joined. So in a cluster, isDeletable confirms the result with the leader.
func (l *Log) isDeletable(ctx context.Context, entry message, lastEvents map[string]*message, which deletable) (bool, error) {
	subject := runSubject(lastToken(entry.Subject), eventToken)
	isExpired, err := l.isExpired(ctx, entry, lastEvents[subject], which)
	if err != nil || !isExpired || !l.clustered {
		return isExpired, err
	}
	last, err := l.readLastFromLeader(ctx, runsName, subject)
	if err != nil {
		return false, err
	}
	return l.isExpired(ctx, entry, last, which)
}

// isExpired is isDeletable with the run's last message. If last is nil, the run was never started or the stream has
// dropped its events, so its age is taken from entry.
func (l *Log) isExpired(ctx context.Context, entry message, last *message, which deletable) (bool, error) {
	if last == nil {
		age := l.Now().Sub(entry.Time)
		return age >= l.retention || age >= abandonedAfter, nil
	}
	return l.mustDelete(ctx, *last, which)
}

// mustDelete reports whether the run whose last message is last must be deleted, according to its age and which. A run
// whose last event cannot be decoded counts as ended.
func (l *Log) mustDelete(ctx context.Context, last message, which deletable) (bool, error) {
	e, _, err := l.readEvent(ctx, last)
	if errors.Is(err, event.ErrUnavailable) {
		return false, err
	}
	hasEnded := err != nil || e.Terminal()
	age := l.Now().Sub(last.Time)
	switch {
	case isAbandoned(last):
		return age >= startTimeout, nil
	case hasEnded && (which == endedRuns || age >= l.retention):
		return true, nil
	}
	return age >= abandonedAfter, nil
}
