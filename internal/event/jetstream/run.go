package jetstream

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

const (
	// maxTail is how many events trimTailLocked leaves in a run's tail, and maxTailBytes how many of their bytes. A
	// tail may grow to twice as much before it is trimmed.
	maxTail      = 256
	maxTailBytes = 256 << 10
	// maxPositions bounds run.positions.
	maxPositions = 64
	// pollInterval is how long the cache of a run may be used after a read of the stream, although live messages
	// arrive. If the run's last live message is lost, there is no later one that shows the gap.
	pollInterval = 5 * time.Second
	// evictAfter limits how long the cache of a run is kept without a request for it.
	evictAfter = 3 * pollInterval
	// DefaultMemory is the default of Options.Memory. Two thirds of it, for a log on disk, are DefaultMaxBytes.
	DefaultMemory = event.DefaultMaxBytes / 2 * 3
	// failureShared is how long after a failed read all callers of the run get an error without another read.
	failureShared = 500 * time.Millisecond
	// readRetryFor limits how long a reader waits for a log that does not answer. A cluster
	// needs a moment to elect a leader, and a connection to find another server.
	readRetryFor = 2 * time.Second
	// lagInterval separates two reads of a replica that lags behind its leader, and maxLagReads
	// bounds the reads of one refresh.
	lagInterval = 20 * time.Millisecond
	maxLagReads = 20
	// startTimeout is how long a run may be without its first event. Starting a run takes at most 30 s. So after
	// startTimeout its creator has died or got an error, and the run counts as gone.
	startTimeout = time.Minute
)

// errReadFailedRecently is the cause of an error during failureShared.
var errReadFailedRecently = errors.New("a read failed a moment ago")

// run caches one run: its record, its newest events (the tail), and the writer if this instance is the run's writer.
//
// Live messages and appends of the writer extend the tail, but only a message that directly follows the one at
// head. Anything else (a gap, a message in parts, a reconnect) sets stale. The next caller then reads the
// missing messages from the stream. So no event is lost or repeated, although live messages may get lost.
type run struct {
	log *Log
	id  string

	refreshMu sync.Mutex // held while refreshCache reads from the stream; taken before mu

	mu        sync.Mutex         // guards the fields below
	record    *record            // nil until it is read
	writer    *writer            // nil unless this instance is the run's writer
	eventSub  *nats.Subscription // live messages with events, nil if not subscribed
	inputSub  *nats.Subscription // live messages with inputs, nil if not subscribed
	loaded    bool               // tail, last and head were read at least once
	stale     bool               // the stream may have newer messages
	liveHead  uint64             // the highest pos of a live message; above head if the cache lacks the message
	tail      []event.Event      // the newest events, without a gap; pages share parts of it
	tailPos   []uint64           // for each event in tail, the pos of its message
	tailBytes int                // the length of the JSON of all events in tail
	last      event.Event        // the newest event; its Seq is 0 before there is one
	head      uint64             // pos of the run's last message, control messages included
	positions []position         // of some older events, for findPos
	more      chan struct{}      // closed at the next event or to make readers ask again; nil if no reader waits
	settled   chan struct{}      // closed when the run has settled or to make readers ask again; nil if none waits
	moreInput chan struct{}      // closed at the next input or to make the executor ask again; nil if it does not wait

	hasNoInputs bool      // the run was created here, and no input was added here since
	lastUsed    time.Time // when a caller last asked for the run
	lastRead    time.Time // when the stream was last read
	lastFailed  time.Time // when reading the stream last failed
	evicted     bool      // the run is no longer in Log.runs
	cachedBytes int64     // the part of Log.cached for this run
}

// getRun returns the cache of a run, to which it adds an empty one if there is none. It returns event.ErrNotFound for
// an id that no run can have. The run need not exist.
func (l *Log) getRun(id string) (*run, error) {
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

// cachedRun returns the cache of a run, or nil if this instance has none.
func (l *Log) cachedRun(id string) *run {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs[id]
}

// updateRun calls update with l.mu and r.mu locked. It also puts r back into the cache: r may have been evicted since
// the caller got it.
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

// countCachedLocked updates the part of this run in Log.cached, after a change of the tail or an eviction. It makes
// pollLoop evict runs if the cache is full.
func (r *run) countCachedLocked() {
	n := int64(0)
	if !r.evicted { // twice, because an event is in memory as JSON and decoded
		n = 2 * int64(max(r.tailBytes, len(r.last.JSON)))
	}
	if cached := r.log.cached.Add(n - r.cachedBytes); cached > r.log.maxCached {
		select {
		case r.log.evictNow <- struct{}{}:
		default: // a request is pending
		}
	}
	r.cachedBytes = n
}

// forEachRun calls f with every cached run, with l.mu and the run's mu locked. A panic of f ends the call for one run
// only.
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

// isCurrentLocked reports whether the cache is complete and up to date, so that the stream need not be read.
func (r *run) isCurrentLocked() bool {
	if !r.loaded || r.stale || r.record == nil {
		return false
	}
	if r.writer != nil { // all new events come from here
		return true
	}
	isLive := r.eventSub != nil || r.log.alone || r.last.Terminal()
	return isLive && time.Since(r.lastRead) < pollInterval
}

// isGoneLocked reports whether the run was deleted, or its retention has passed. The record must be set.
func (r *run) isGoneLocked() bool {
	if r.record.Gone {
		return true
	}
	return r.last.Terminal() && r.log.Now().Sub(time.UnixMilli(r.last.Time)) >= r.log.retention
}

// wakeReadersLocked makes all callers that wait for the run ask again: those of After and of Settled.
func (r *run) wakeReadersLocked() {
	r.wakeReadersOfEventsLocked()
	if r.settled != nil {
		close(r.settled)
		r.settled = nil
	}
}

// wakeReadersOfEventsLocked makes the callers that wait for the next event ask again, but not those of Settled.
func (r *run) wakeReadersOfEventsLocked() {
	if r.more != nil {
		close(r.more)
		r.more = nil
	}
}

// wakeExecutorLocked makes the run's executor, if it waits in this instance, ask for inputs again.
func (r *run) wakeExecutorLocked() {
	r.hasNoInputs = false
	if r.moreInput != nil {
		close(r.moreInput)
		r.moreInput = nil
	}
}

// appendTailLocked adds the events of the message at pos to the tail, and wakes the readers. previous is the pos of the
// run's message before that one. If previous is not head, a message is missing: the run becomes stale, and the tail
// stays as it is. A message that the cache has already is ignored.
func (r *run) appendTailLocked(events []event.Event, pos, previous uint64) {
	if pos <= r.head {
		return
	}
	if !r.loaded || previous != r.head {
		r.stale = true
	} else {
		for _, e := range events {
			r.tail = append(r.tail, e)
			r.tailPos = append(r.tailPos, pos)
			r.tailBytes += len(e.JSON)
			r.last = e
		}
		r.head = pos
		r.trimTailLocked()
		r.countCachedLocked()
	}
	if r.stale || r.last.Settled() {
		r.wakeReadersLocked()
	} else {
		r.wakeReadersOfEventsLocked()
	}
}

// advanceHeadLocked records that the control message at pos is the run's last message, unless a newer one is known.
func (r *run) advanceHeadLocked(pos uint64) {
	r.head = max(r.head, pos)
}

// setTailLocked replaces the tail by the run's newest event, from the message at pos. If that message is a control
// message, the tail becomes empty: the message only repeats the event, whose own pos is not known.
func (r *run) setTailLocked(newest event.Event, pos uint64, by writerID) {
	r.tail = nil
	r.tailPos = nil
	r.tailBytes = 0
	if !by.isControl() && newest.Seq > 0 {
		r.tail = []event.Event{newest}
		r.tailPos = []uint64{pos}
		r.tailBytes = len(newest.JSON)
	}
}

// trimTailLocked shortens a tail that exceeds twice maxTail or maxTailBytes to these bounds, but not below one event.
// It copies the rest, so that the memory of dropped events can be freed; pages that share the old tail stay valid.
func (r *run) trimTailLocked() {
	isLong := len(r.tail) > 2*maxTail
	isLarge := len(r.tail) > 1 && r.tailBytes > 2*maxTailBytes
	if !isLong && !isLarge {
		return
	}
	n, bytes := 0, r.tailBytes
	for n < len(r.tail)-1 && (len(r.tail)-n > maxTail || bytes > maxTailBytes) {
		bytes -= len(r.tail[n].JSON)
		n++
	}
	r.addPositionLocked(r.tail[n].Seq-1, r.tailPos[n]-1)
	r.tail = append([]event.Event(nil), r.tail[n:]...)
	r.tailPos = append([]uint64(nil), r.tailPos[n:]...)
	r.tailBytes = bytes
}

// Run implements event.Log.
func (l *Log) Run(ctx context.Context, id string) (event.Run, error) {
	r, err := l.getRun(id)
	if err != nil {
		return event.Run{}, err
	}
	r.mu.Lock()
	current := r.isCurrentLocked()
	r.mu.Unlock()
	if !current {
		if err := r.refreshWithRetry(ctx, func() bool { return false }); err != nil {
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

// refreshWithRetry brings the cache up to date. It repeats that for up to readRetryFor if the log does not answer, and
// then returns event.ErrUnavailable. If suffices reports that the caller can use the cache as it is, refreshWithRetry
// returns nil after the first attempt.
func (r *run) refreshWithRetry(ctx context.Context, suffices func() bool) error {
	until := time.Now().Add(readRetryFor)
	for {
		err := r.refreshCache(ctx)
		switch {
		case !errors.Is(err, event.ErrUnavailable):
			return err
		case suffices():
			return nil
		}
		if !r.log.pause(ctx, retryInterval) || time.Now().After(until) {
			return err
		}
	}
}

// refreshCache updates the cache from the stream. Only one caller reads at a time; the callers that wait for refreshMu
// use the result of that read.
func (r *run) refreshCache(ctx context.Context) error {
	r.refreshMu.Lock()
	defer r.refreshMu.Unlock()
	for reads := 0; ; reads++ {
		rec, done, err := r.beginRefresh()
		if done || err != nil {
			return err
		}
		behind, err := r.endRefresh(r.loadTail(ctx, rec))
		if err != nil {
			return err
		}
		// If behind, the replica that was read lags behind its leader. After maxLagReads reads, the run just stays
		// stale.
		if !behind || reads == maxLagReads {
			return nil
		}
		if !r.log.pause(ctx, lagInterval) {
			return nil // the cache is usable, and the run stays stale
		}
	}
}

// beginRefresh prepares a read of the stream. done reports that the cache is up to date, so no read is needed. rec is
// the record of the run, nil if the read must include it. The error is that of a read that failed within failureShared.
func (r *run) beginRefresh() (rec *record, done bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isCurrentLocked() && r.head >= r.liveHead {
		return nil, true, nil
	}
	if time.Since(r.lastFailed) < failureShared {
		return nil, false, unavailableError("read the log", errReadFailedRecently)
	}
	r.stale = false // a message that arrives during the read sets it again
	return r.record, false, nil
}

// endRefresh records the result of a read, whose error is err, and returns err. behind reports that the read did not
// find a message that has arrived live.
func (r *run) endRefresh(err error) (behind bool, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.stale = true
		if errors.Is(err, event.ErrUnavailable) {
			r.lastFailed = time.Now()
		}
		return false, err
	}
	behind = r.head < r.liveHead
	r.stale = r.stale || behind
	return behind, nil
}

// loadTail reads the run's newest events into the cache, and the record if rec is nil. It returns event.ErrNotFound if
// the run has no record.
func (r *run) loadTail(ctx context.Context, rec *record) error {
	newest, err := r.log.readLast(ctx, runsName, runSubject(r.id, eventToken))
	if err != nil {
		return err
	}
	if rec == nil || newest == nil { // a run without events may have been deleted meanwhile
		if rec, err = r.log.readRecord(ctx, r.id); err != nil {
			return err
		}
	}
	if newest != nil && isAbandoned(*newest) {
		gone := *rec
		gone.Gone = true
		rec = &gone
	}
	if newest == nil && !rec.Gone { // rec was just read, so no other goroutine has it
		if rec.Gone, err = r.log.neverHasEvents(ctx, rec); err != nil {
			return err
		}
	}

	r.mu.Lock()
	r.record = rec
	r.lastRead = time.Now()
	wasLoaded, head := r.loaded, r.head
	if newest == nil {
		r.loaded = true
	}
	r.mu.Unlock()

	switch {
	case newest == nil, newest.pos <= head:
		return nil
	case wasLoaded && newest.pos-head < 4*maxBatch:
		// All runs share the stream's numbers, so probably few of the messages after head belong to this run.
		return r.catchUp(ctx, head)
	}
	return r.loadNewest(ctx, *newest)
}

// isAbandoned reports whether a run's last message says that the run was not started and cannot start any more.
func isAbandoned(last message) bool {
	by, err := parseWriterID(last.header)
	return err == nil && by.kind == kindAbandoned
}

// loadNewest replaces the tail by the last event of newest, the run's last message, and wakes the readers. It does
// nothing if the cache has got that message during the read.
func (r *run) loadNewest(ctx context.Context, newest message) error {
	e, by, err := r.log.readEvent(ctx, newest)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if newest.pos > r.head {
		r.setTailLocked(e, newest.pos, by)
		r.last = e
		r.head = newest.pos
		r.loaded = true
		r.countCachedLocked()
		r.wakeReadersLocked()
	}
	return nil
}

// catchUp adds all messages of the run after pos from, which is the head of the cache, to the tail.
func (r *run) catchUp(ctx context.Context, from uint64) error {
	for {
		found, more, err := r.log.readBatch(ctx, runsName, directGet{Next: runSubject(r.id, eventToken), From: from + 1})
		if err != nil {
			return err
		}
		for _, msg := range found {
			events, by, err := r.log.readEvents(ctx, msg)
			if err != nil {
				return err
			}
			r.mu.Lock()
			if by.isControl() {
				r.advanceHeadLocked(msg.pos)
			} else {
				// A live message may have moved head past from; then this message is ignored, or follows head.
				r.appendTailLocked(events, msg.pos, max(r.head, from))
			}
			r.mu.Unlock()
			from = msg.pos
		}
		if !more || len(found) == 0 {
			return nil
		}
	}
}

// neverHasEvents reports whether a run without events will never have any: either it was not started within
// startTimeout, or the stream has dropped its events because of its size limit.
func (l *Log) neverHasEvents(ctx context.Context, rec *record) (bool, error) {
	if l.Now().Sub(rec.Created) > startTimeout {
		return true, nil
	}
	return l.mayHaveDropped(ctx, rec)
}

// mayHaveDropped reports whether the stream may have dropped events of a run because of its size limit: its oldest
// message is younger than the run, and it is at least half full.
func (l *Log) mayHaveDropped(ctx context.Context, rec *record) (dropped bool, _ error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	info, err := l.streamInfo(ctx, l.runsStream)
	if err != nil {
		return false, unavailableError("read the log", err)
	}
	// Runs may have been deleted since the stream was full, so half of the limit counts.
	wasFull := info.State.Bytes > uint64(maxRunsBytes(l.maxBytes))/2
	return wasFull && info.State.FirstTime.After(rec.Created), nil
}
