package jetstream

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

const (
	// maxTail is the largest number of events that trimTailLocked leaves in a run's tail, and maxTailBytes their
	// largest total size. A tail may grow to twice these bounds before it is trimmed.
	maxTail      = 256
	maxTailBytes = 256 << 10
	// maxPositions is the largest number of entries in run.positions.
	maxPositions = 64
	// pollInterval is how long a run's cache may be used after a read of the stream, even if live messages arrive. If
	// the run's last live message is lost, no later one reveals the gap.
	pollInterval = 5 * time.Second
	// evictAfter is how long a run stays cached without a request for it.
	evictAfter = 3 * pollInterval
	// DefaultMemory is the default of Options.Memory. For a log on disk, two thirds of it are DefaultMaxBytes.
	DefaultMemory = event.DefaultMaxBytes / 2 * 3
	// failureShared is how long after a failed read all callers of the run get an error without another read.
	failureShared = 500 * time.Millisecond
	// readRetryFor is how long a reader waits for a log that does not answer. A cluster needs a moment to elect a
	// leader, and a connection needs a moment to find another server.
	readRetryFor = 2 * time.Second
	// lagInterval is the time between two reads of a replica that lags behind its leader. maxLagReads is how often one
	// refresh repeats the read.
	lagInterval = 20 * time.Millisecond
	maxLagReads = 20
	// startTimeout is how long a run may stay without its first event. Starting a run takes at most 30 s. So after
	// startTimeout, the run's creator has died or got an error, and the run counts as gone.
	startTimeout = time.Minute
)

// errReadFailedRecently is the cause of the errors returned during failureShared.
var errReadFailedRecently = errors.New("a read failed a moment ago")

// run caches one run: its record, its newest events (the tail), and the writer if this instance is the run's writer.
//
// Live messages and the writer's appends extend the tail, but only if a message directly follows the one at lastPos.
// Anything else (a gap, a message in parts, a reconnect) sets stale, and the next caller reads the missing messages
// from the stream. So no event is lost or repeated, although live messages can get lost.
type run struct {
	log *Log
	id  string

	refreshMu sync.Mutex // held while refreshCache reads the stream; locked before mu

	mu        sync.Mutex         // guards the fields below
	record    *record            // nil until it was read
	writer    *writer            // nil unless this instance is the run's writer
	eventSub  *nats.Subscription // live messages with events; nil if not subscribed
	inputSub  *nats.Subscription // live messages with inputs; nil if not subscribed
	loaded    bool               // tail, last and lastPos were read at least once
	stale     bool               // the stream may have newer messages
	livePos   uint64             // highest position of a live message; above lastPos if the cache lacks that message
	tail      []event.Event      // the newest events without gaps; pages share parts of it
	tailPos   []uint64           // for each event in tail, the position of its message
	tailBytes int                // total length of the JSON of the events in tail
	last      event.Event        // the newest event; its Seq is 0 before the first event
	lastPos   uint64             // position of the run's last message; control messages count
	positions []position         // positions of some older events, for findPos
	more      chan struct{}      // closed at the next event, or to make readers ask again; nil if no reader waits
	settled   chan struct{}      // closed when the run has settled, or to make callers ask again; nil if none waits
	moreInput chan struct{}      // closed at the next input, or to make the executor ask again; nil if it does not wait

	hasNoInputs bool      // the run was created here, and no input was added here since then
	lastUsed    time.Time // when a caller last used the run
	lastRead    time.Time // when the stream was last read
	lastFailed  time.Time // when reading the stream last failed
	evicted     bool      // the run is no longer in Log.runs
	cachedBytes int64     // this run's part of Log.cached
}

// getOrAddRun returns the cache entry of a run, and adds an empty one if the cache has none. The run need not exist in
// the log. getOrAddRun returns event.ErrNotFound if id is not a valid id.
func (l *Log) getOrAddRun(id string) (*run, error) {
	if !event.ValidID(id) {
		return nil, event.ErrNotFound
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.runs[id]
	if r == nil {
		r = &run{log: l, id: id}
		l.runs[id] = r
	}
	r.mu.Lock()
	r.lastUsed = time.Now()
	r.mu.Unlock()
	return r, nil
}

// cachedRun returns the cache entry of a run, or nil if this instance has none.
func (l *Log) cachedRun(id string) *run {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs[id]
}

// updateRun calls update while it holds l.mu and r.mu. It also puts r back into the cache, because r may have been
// evicted after the caller got it.
func (l *Log) updateRun(r *run, update func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	l.runs[r.id] = r
	r.evicted = false
	r.lastUsed = time.Now()
	update()
	r.countCachedLocked()
}

// countCachedLocked updates this run's part of Log.cached. Call it after a change of the tail or an eviction. If the
// cache is full, it makes pollLoop evict runs. The caller holds r.mu.
func (r *run) countCachedLocked() {
	size := int64(0)
	if !r.evicted { // count each event twice, because it is in memory both as JSON and decoded
		size = 2 * int64(max(r.tailBytes, len(r.last.JSON)))
	}
	if cached := r.log.cached.Add(size - r.cachedBytes); cached > r.log.maxCached {
		select {
		case r.log.evictNow <- struct{}{}:
		default: // a request is pending
		}
	}
	r.cachedBytes = size
}

// forEachRun calls f for every cached run, while it holds l.mu and the run's mu. If f panics for one run, forEachRun
// continues with the next.
func (l *Log) forEachRun(f func(*run)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	callLocked := func(r *run) {
		defer l.recoverPanic("poll a run")
		r.mu.Lock()
		defer r.mu.Unlock()
		f(r)
	}
	for _, r := range l.runs {
		callLocked(r)
	}
}

// isCurrentLocked reports whether the cache is complete and up to date, so that the stream need not be read. The caller
// holds r.mu.
func (r *run) isCurrentLocked() bool {
	if !r.loaded || r.stale || r.record == nil {
		return false
	}
	if r.writer != nil { // all new events come from this instance
		return true
	}
	isLive := r.eventSub != nil || r.log.alone || r.last.Terminal()
	return isLive && time.Since(r.lastRead) < pollInterval
}

// isGoneLocked reports whether the run was deleted, or its retention has passed. r.record must not be nil. The caller
// holds r.mu.
func (r *run) isGoneLocked() bool {
	if r.record.Gone {
		return true
	}
	return r.last.Terminal() && r.log.Now().Sub(time.UnixMilli(r.last.Time)) >= r.log.retention
}

// wakeReadersLocked makes all callers that wait in After or Settled ask again. The caller holds r.mu.
func (r *run) wakeReadersLocked() {
	r.wakeReadersOfEventsLocked()
	if r.settled != nil {
		close(r.settled)
		r.settled = nil
	}
}

// wakeReadersOfEventsLocked makes callers that wait in After ask again, but not those that wait in Settled. The caller
// holds r.mu.
func (r *run) wakeReadersOfEventsLocked() {
	if r.more != nil {
		close(r.more)
		r.more = nil
	}
}

// wakeExecutorLocked makes the run's executor ask for inputs again, if it waits in this instance. The caller holds
// r.mu.
func (r *run) wakeExecutorLocked() {
	r.hasNoInputs = false
	if r.moreInput != nil {
		close(r.moreInput)
		r.moreInput = nil
	}
}

// appendTailLocked adds the events of the message at position pos to the tail, and wakes the readers. previous is the
// position of the run's previous message. If previous is not lastPos, a message is missing, and appendTailLocked only
// marks the run as stale. It ignores a message that the cache already has. The caller holds r.mu.
func (r *run) appendTailLocked(events []event.Event, pos, previous uint64) {
	if pos <= r.lastPos {
		return
	}
	if !r.loaded || previous != r.lastPos {
		r.stale = true
		r.wakeReadersLocked()
		return
	}
	for _, e := range events {
		r.tail = append(r.tail, e)
		r.tailPos = append(r.tailPos, pos)
		r.tailBytes += len(e.JSON)
		r.last = e
	}
	r.lastPos = pos
	r.trimTailLocked()
	r.countCachedLocked()
	if r.stale || r.last.Settled() {
		r.wakeReadersLocked()
	} else {
		r.wakeReadersOfEventsLocked()
	}
}

// advanceLastPosLocked records that the control message at pos is the run's last message, unless a newer one is known.
// The caller holds r.mu.
func (r *run) advanceLastPosLocked(pos uint64) {
	r.lastPos = max(r.lastPos, pos)
}

// setTailLocked replaces the tail with the run's newest event, from the message at pos. If that message is a control
// message, the tail becomes empty, because the message only repeats the event and the event's own position is unknown.
// The caller holds r.mu.
func (r *run) setTailLocked(newest event.Event, pos uint64, info messageInfo) {
	r.tail = nil
	r.tailPos = nil
	r.tailBytes = 0
	if !info.isControl() && newest.Seq > 0 {
		r.tail = []event.Event{newest}
		r.tailPos = []uint64{pos}
		r.tailBytes = len(newest.JSON)
	}
}

// trimTailLocked shortens a tail that exceeds twice maxTail or maxTailBytes to these bounds, but keeps at least one
// event. It copies the remaining events, so that the memory of the dropped ones can be freed. Pages that share the old
// tail stay valid. The caller holds r.mu.
func (r *run) trimTailLocked() {
	isLong := len(r.tail) > 2*maxTail
	isLarge := len(r.tail) > 1 && r.tailBytes > 2*maxTailBytes
	if !isLong && !isLarge {
		return
	}
	first, bytes := 0, r.tailBytes // the index of the first event to keep, and the size of the rest
	for first < len(r.tail)-1 && (len(r.tail)-first > maxTail || bytes > maxTailBytes) {
		bytes -= len(r.tail[first].JSON)
		first++
	}
	r.addPositionLocked(r.tail[first].Seq-1, r.tailPos[first]-1)
	r.tail = slices.Clone(r.tail[first:])
	r.tailPos = slices.Clone(r.tailPos[first:])
	r.tailBytes = bytes
}

// Run implements event.Log. It reads the stream only if the cached run is not up to date.
func (l *Log) Run(ctx context.Context, id string) (event.Run, error) {
	r, err := l.getOrAddRun(id)
	if err != nil {
		return event.Run{}, err
	}
	r.mu.Lock()
	current := r.isCurrentLocked()
	r.mu.Unlock()
	if !current {
		if err := r.refreshWithRetry(ctx, nil); err != nil {
			return event.Run{}, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	snapshot := r.record.toRun(id)
	if r.isGoneLocked() {
		return snapshot, event.ErrGone
	}
	snapshot.Last = r.last
	return snapshot, nil
}

// refreshWithRetry brings the cache up to date. If the log does not answer, it tries again for up to readRetryFor, and
// then returns event.ErrUnavailable. If cacheSuffices is not nil and returns true after a failed attempt, the caller
// can use the cache as it is, and refreshWithRetry returns nil.
func (r *run) refreshWithRetry(ctx context.Context, cacheSuffices func() bool) error {
	until := time.Now().Add(readRetryFor)
	for {
		err := r.refreshCache(ctx)
		switch {
		case !errors.Is(err, event.ErrUnavailable):
			return err
		case cacheSuffices != nil && cacheSuffices():
			return nil
		}
		if !r.log.pause(ctx, retryInterval) || time.Now().After(until) {
			return err
		}
	}
}

// refreshCache updates the cache from the stream. Only one caller reads at a time. Callers that wait for refreshMu use
// the result of that read.
func (r *run) refreshCache(ctx context.Context) error {
	r.refreshMu.Lock()
	defer r.refreshMu.Unlock()
	for reads := 0; ; reads++ {
		rec, done, err := r.beginRefresh()
		if done || err != nil {
			return err
		}
		readErr := r.loadTail(ctx, rec)
		behind, err := r.endRefresh(readErr)
		if err != nil {
			return err
		}
		// If behind is true, the replica that answered lags behind its leader. After maxLagReads reads, give up and
		// leave the run stale.
		if !behind || reads == maxLagReads {
			return nil
		}
		if !r.log.pause(ctx, lagInterval) {
			return nil // the cache can be used, and the run stays stale
		}
	}
}

// beginRefresh prepares a read of the stream. done is true if the cache is up to date and no read is needed. rec is the
// run's record, or nil if the read must include it. beginRefresh returns an error if a read failed less than
// failureShared ago.
func (r *run) beginRefresh() (rec *record, done bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isCurrentLocked() && r.lastPos >= r.livePos {
		return nil, true, nil
	}
	if time.Since(r.lastFailed) < failureShared {
		return nil, false, unavailableError("read the log", errReadFailedRecently)
	}
	r.stale = false // a message that arrives during the read sets it again
	return r.record, false, nil
}

// endRefresh records the result of a read that returned readErr, and returns readErr. behind is true if the read did
// not find a message that has arrived live.
func (r *run) endRefresh(readErr error) (behind bool, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if readErr != nil {
		r.stale = true
		if errors.Is(readErr, event.ErrUnavailable) {
			r.lastFailed = time.Now()
		}
		return false, readErr
	}
	behind = r.lastPos < r.livePos
	r.stale = r.stale || behind
	return behind, nil
}

// loadTail reads the run's newest events into the cache. It also reads the run's record if rec is nil. It returns
// event.ErrNotFound if the run has no record.
func (r *run) loadTail(ctx context.Context, rec *record) error {
	newest, err := r.log.readLast(ctx, runsName, runSubject(r.id, eventToken))
	if err != nil {
		return err
	}
	if rec, err = r.completeRecord(ctx, rec, newest); err != nil {
		return err
	}
	r.mu.Lock()
	r.record = rec
	r.lastRead = time.Now()
	wasLoaded, lastPos := r.loaded, r.lastPos
	if newest == nil {
		r.loaded = true
	}
	r.mu.Unlock()
	switch {
	case newest == nil, newest.Pos <= lastPos:
		return nil
	case wasLoaded && newest.Pos-lastPos < 4*maxBatch:
		// All runs share the stream, so probably only a few of the messages after lastPos belong to this run.
		return r.catchUp(ctx, lastPos)
	}
	return r.loadNewest(ctx, *newest)
}

// completeRecord returns the run's record, and reads it if rec is nil. newest is the run's last message, or nil if the
// run has none. The returned record is marked as gone if the run was not started and can no longer start.
func (r *run) completeRecord(ctx context.Context, rec *record, newest *message) (*record, error) {
	var err error
	if rec == nil || newest == nil { // a run without events may have been deleted since rec was read
		if rec, err = r.log.readRecord(ctx, r.id); err != nil {
			return nil, err
		}
	}
	switch {
	case newest != nil && isAbandoned(*newest):
		gone := *rec
		gone.Gone = true
		return &gone, nil
	case newest == nil && !rec.Gone: // rec was just read, so no other goroutine has it
		rec.Gone, err = r.log.neverHasEvents(ctx, rec)
	}
	return rec, err
}

// isAbandoned reports whether a run's last message says that the run was never started and can no longer start.
func isAbandoned(last message) bool {
	info, err := parseMessageInfo(last.Header)
	return err == nil && info.kind == kindAbandoned
}

// loadNewest replaces the tail with the last event of newest, the run's last message, and wakes the readers. It does
// nothing if the cache received that message during the read.
func (r *run) loadNewest(ctx context.Context, newest message) error {
	e, info, err := r.log.readEvent(ctx, newest)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if newest.Pos > r.lastPos {
		r.setTailLocked(e, newest.Pos, info)
		r.last = e
		r.lastPos = newest.Pos
		r.loaded = true
		r.countCachedLocked()
		r.wakeReadersLocked()
	}
	return nil
}

// catchUp reads all of the run's messages after position from and adds them to the tail. from is the lastPos of the
// cache.
func (r *run) catchUp(ctx context.Context, from uint64) error {
	for {
		found, more, err := r.log.readBatch(ctx, runsName, directGet{Next: runSubject(r.id, eventToken), From: from + 1})
		if err != nil {
			return err
		}
		for _, msg := range found {
			events, info, err := r.log.readEvents(ctx, msg)
			if err != nil {
				return err
			}
			r.mu.Lock()
			if info.isControl() {
				r.advanceLastPosLocked(msg.Pos)
			} else {
				// A live message may have moved lastPos past from. This message is then ignored, or follows lastPos.
				r.appendTailLocked(events, msg.Pos, max(r.lastPos, from))
			}
			r.mu.Unlock()
			from = msg.Pos
		}
		if !more || len(found) == 0 {
			return nil
		}
	}
}

// neverHasEvents reports whether a run without events will never have any. That is so if it was not started within
// startTimeout, or if the stream has dropped its events because of the size limit.
func (l *Log) neverHasEvents(ctx context.Context, rec *record) (bool, error) {
	if l.Now().Sub(rec.Created) > startTimeout {
		return true, nil
	}
	return l.mayHaveDropped(ctx, rec)
}

// mayHaveDropped reports whether the stream may have dropped events of a run because of its size limit. That is
// possible if the stream's oldest message is younger than the run and the stream is at least half full.
func (l *Log) mayHaveDropped(ctx context.Context, rec *record) (dropped bool, _ error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	info, err := l.streamInfo(ctx, l.runsStream)
	if err != nil {
		return false, unavailableError("read the log", err)
	}
	// Compare with half of the limit, because runs may have been deleted since the stream was full.
	wasFull := info.State.Bytes > uint64(maxRunsBytes(l.maxBytes))/2
	return wasFull && info.State.FirstTime.After(rec.Created), nil
}
