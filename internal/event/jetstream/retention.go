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

// abandonedAfter limits how long a run that has not ended is kept without a new event. A run
// may wait that long for a person.
const abandonedAfter = 7 * 24 * time.Hour

// expireLoop deletes runs whose retention has passed. When space is short, it also deletes runs
// that have ended. Every instance that shares the streams does so; deleting a run twice is
// harmless.
func (l *Log) expireLoop() {
	interval := min(max(l.retention/10, time.Second), time.Minute)
	space := time.NewTicker(spaceInterval)
	defer space.Stop()

	var account shortage
	var again time.Time // not before then because of the space
	for due := time.Now().Add(interval); ; due = time.Now().Add(interval + rand.N(interval/4)) {
		for waiting := true; waiting; {
			select {
			case now := <-space.C:
				short := l.watchSpace(space)
				mayMakeSpace := short && !now.Before(again)
				waiting = now.Before(due) && !mayMakeSpace
			case <-l.expireNow:
				waiting = false
			case <-l.ctx.Done():
				return
			}
		}
		before := l.expired.Load()
		if !l.diskFull.Load() { // else recoverDisk does it
			l.expireOnce()
			if l.accountFull.Swap(false) {
				l.deleteThreadsForSpace(&account, before)
			}
		}
		if l.expired.Load() == before {
			again = time.Now().Add(uselessPause)
		}
		select { // while the log is full, expireNow is always ready
		case <-time.After(time.Second):
		case <-l.ctx.Done():
			return
		}
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

// deleteThreadsForSpace deletes old threads if the disk or the account stays full although runs have expired, or
// although there are none. before is Log.expired before this check deleted runs.
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
	if s.checks < reliefChecks {
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

// expireRuns deletes the runs whose retention has passed, and then makes space if it is short.
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

// expireInOrder examines the runs in the order of creation, and stops at the first run younger than
// the retention. While space is short it examines all runs.
func (l *Log) expireInOrder(ctx context.Context, spaceShort bool) error {
	for from := uint64(0); ; {
		entries, more, err := l.readBatch(ctx, indexName, directGet{Next: ownerPrefix + ">", From: from})
		if err != nil {
			return err
		}
		for i, m := range entries {
			from = m.pos + 1
			if l.Now().Sub(m.time) < l.retention && !spaceShort {
				entries, more = entries[:i], false
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
// above an equal share, which is the space up to 80 % divided by the owners that have runs. If none of
// those owners has a run that ended, it deletes the runs that were created first, of any owner. It waits
// with that until 90 % are used if some ended less than readGrace ago, or if the sizes of runs are
// unknown.

const (
	// spaceInterval separates two checks of the space, and nearInterval when more than followAbove of it is
	// used.
	spaceInterval = time.Second
	nearInterval  = 200 * time.Millisecond
	// uselessPause separates two checks that delete nothing.
	uselessPause = 2 * time.Second
	// readGrace protects a run after its end from being chosen because of its owner's share. The readers
	// of its stream read the last events in this time.
	readGrace = 5 * time.Second

	// Parts of the limit, in percent.
	followAbove = 65 // the sizes of runs are known from here on
	forgetBelow = 50 // and forgotten here
	shortAbove  = 80
	enoughBelow = 75
	fullAbove   = 90
)

// space is what a stream has stored, and its limit.
type space struct{ used, limit int64 }

func (s space) exceeds(percent int64) bool { return s.used > s.limit/100*percent }

// spaceOf returns the space of the stream of runs or the index.
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

// watchSpace keeps the sizes of runs up to date while they may be needed soon, and reports whether the
// space of runs or of the index is short.
func (l *Log) watchSpace(tick *time.Ticker) bool {
	defer l.recoverPanic("watch the space of the log")
	if l.diskFull.Load() {
		return false
	}
	runs, err := l.spaceOf(l.ctx, l.runsStream)
	switch {
	case err != nil: // expireOnce logs it
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

// isSpaceShort reports whether a stream is filled to 80 %. Beyond its limit, the stream of
// events would drop events that are still needed, and the index would refuse new runs.
func (l *Log) isSpaceShort(ctx context.Context) (bool, error) {
	for _, stream := range []js.Stream{l.runsStream, l.indexStream} {
		if s, err := l.spaceOf(ctx, stream); err != nil || s.exceeds(shortAbove) {
			return err == nil, err
		}
	}
	return false, nil
}

// dropTombstones removes the oldest tombstones while the index is short of space. Without it, the index of a
// log that deletes many runs would be full of tombstones, and refuse new runs. The owners of the runs then get
// ErrNotFound in place of ErrGone.
func (l *Log) dropTombstones(ctx context.Context) error {
	for enough := int64(shortAbove); ; enough = enoughBelow {
		s, err := l.spaceOf(ctx, l.indexStream)
		if err != nil || !s.exceeds(enough) {
			return err
		}
		// A tombstone replaces a record and is then the newest message, so those before tombstonePos need
		// not be read again.
		found, more, err := l.readBatch(ctx, indexName, directGet{Next: recordPrefix + ">", From: l.tombstonePos.Load()})
		if err != nil {
			return err
		}
		for _, m := range found {
			if m.header.Get(js.MsgTTLHeader) != "" {
				// ErrFenced: another replica has removed it.
				if err := deleteMessage(ctx, l.indexStream, m.pos); err != nil && !errors.Is(err, event.ErrFenced) {
					return err
				}
			}
			l.tombstonePos.Store(m.pos + 1)
		}
		if !more || len(found) == 0 {
			return nil
		}
	}
}

// evictByShare deletes runs of the owners above their share. It reports whether other runs are to be
// deleted as well.
func (l *Log) evictByShare(ctx context.Context) (others bool, err error) {
	runs, err := l.spaceOf(ctx, l.runsStream)
	if err != nil {
		return false, err
	}
	short, limit := l.runsStream, runs.limit/100*shortAbove
	full := runs.exceeds(fullAbove)
	if !runs.exceeds(shortAbove) { // the index is full of runs, not of bytes
		index, err := l.spaceOf(ctx, l.indexStream)
		if err != nil {
			return false, err
		}
		short, limit, full = l.indexStream, 0, index.exceeds(fullAbove)
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
			s, err := l.spaceOf(ctx, short)
			return err == nil && !s.exceeds(enoughBelow), err
		},
	})
	cannotWait := outcome == share.Waiting && full
	return err == nil && (outcome == share.Nothing || cannotWait), err
}

// endOf returns when a run ended, zero if it has not ended, and the pos of its last event, by the leader
// of the stream. It returns event.ErrGone if the log does not have the run.
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
	if hasEnded, err := l.isExpired(ctx, message{}, *last, true, true); err != nil || !hasEnded {
		return ended, last.pos, err
	}
	return last.time, last.pos, nil
}

// readOwners returns the owners of runs in the order of creation, from a pos in the index on.
func (l *Log) readOwners(ctx context.Context, from uint64) (owners []share.Entry, more bool, err error) {
	entries, more, err := l.readBatch(ctx, indexName, directGet{Next: ownerPrefix + ">", From: from})
	for _, m := range entries {
		owner, _, _ := strings.Cut(strings.TrimPrefix(m.subject, ownerPrefix), ".")
		owners = append(owners, share.Entry{Pos: m.pos, ID: lastToken(m.subject), Owner: owner})
	}
	return owners, more, err
}

// expireEntries deletes the expired runs among some index entries and, while space is short,
// those that have ended. It reports whether space is still short.
func (l *Log) expireEntries(ctx context.Context, entries []message, spaceShort bool) (bool, error) {
	lastEvents, err := l.readLastEvents(ctx, entries)
	if err != nil {
		return spaceShort, err
	}
	for _, msg := range entries {
		last, hasEvents := lastEvents[runSubject(lastToken(msg.subject), eventToken)]
		expired, err := l.isExpired(ctx, msg, last, hasEvents, spaceShort)
		if err == nil && expired && l.clustered {
			expired, err = l.confirmExpired(ctx, msg, spaceShort)
		}
		if err != nil {
			return spaceShort, err
		}
		if !expired {
			continue
		}
		if err := l.deleteRun(ctx, lastToken(msg.subject), msg.subject); err != nil {
			return spaceShort, err
		}
		l.sizes.Forget(lastToken(msg.subject))
		l.expired.Add(1)
		if spaceShort {
			if spaceShort, err = l.isSpaceShort(ctx); err != nil {
				return spaceShort, err
			}
		}
	}
	return spaceShort, nil
}

// isExpired reports whether the run of an index entry is to be deleted.
func (l *Log) isExpired(ctx context.Context, entry, last message, hasEvents, spaceShort bool) (bool, error) {
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
	if ended && (spaceShort || age >= l.retention) {
		return true, nil
	}
	return age >= abandonedAfter, nil
}

// confirmExpired does the same as isExpired with the last event that the stream's leader has. Another
// server may lack the newest events, or all of them if it is new.
func (l *Log) confirmExpired(ctx context.Context, entry message, spaceShort bool) (bool, error) {
	last, err := l.readLastFromLeader(ctx, runsName, runSubject(lastToken(entry.subject), eventToken))
	switch {
	case err != nil:
		return false, err
	case last == nil:
		return l.isExpired(ctx, entry, message{}, false, spaceShort)
	}
	return l.isExpired(ctx, entry, *last, true, spaceShort)
}
