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
	// maxTail bounds the newest events of a run that are cached, and maxTailBytes their bytes.
	maxTail      = 256
	maxTailBytes = 256 << 10
	// maxPositions bounds run.positions.
	maxPositions = 64
	// pollInterval limits how long the cache of a run with readers is trusted without a new live
	// message. If the last live message of a run is lost, no later one reveals the gap.
	pollInterval = 5 * time.Second
	// evictAfter limits how long the cache of a run is kept without a request for it.
	evictAfter = 3 * pollInterval
	// DefaultMemory is the default of Options.Memory. It allows MaxBytes its own default.
	DefaultMemory = event.DefaultMaxBytes / 2 * 3
	// failureShared limits how long one failed read answers all callers of the run.
	failureShared = 500 * time.Millisecond
	// readRetryFor limits how long a reader waits for a log that does not answer. A cluster
	// needs a moment to elect a leader, and a connection to find another server.
	readRetryFor = 2 * time.Second
	// lagInterval separates two reads of a replica that lags behind its leader, and maxLagReads
	// bounds those reads.
	lagInterval = 20 * time.Millisecond
	maxLagReads = 20
	// startTimeout limits how long a run may be without its first event. Starting a run takes at
	// most 30 s, so its creator has died by then, or got an error.
	startTimeout = time.Minute
)

var errReadFailedRecently = errors.New("a read failed a moment ago")

// run caches one run: its record, its newest events (the tail), and the writer if this instance
// is the run's writer.
//
// Live messages and appends of the writer extend the tail, each only if it directly follows
// head. Anything else (a gap, a message in parts, a reconnect) sets stale, and the next caller
// reads the missing messages from the stream. So no event is lost or repeated, although live
// messages may get lost.
type run struct {
	log *Log
	id  string

	refreshMu sync.Mutex // held while refresh reads from the stream; taken before mu

	mu        sync.Mutex // guards the fields below
	record    *record    // nil until it is read
	writer    *writer    // nil unless this instance is the run's writer
	eventSub  *nats.Subscription
	inputSub  *nats.Subscription
	loaded    bool          // tail, last and head were read at least once
	stale     bool          // the stream may have newer messages
	liveHead  uint64        // the highest pos of a live message
	tail      []event.Event // the newest events, without a gap; pages share parts of it
	tailPos   []uint64      // their pos in the stream, which those of a batch share
	tailBytes int
	last      event.Event   // the newest event; its Seq is 0 before there is one
	head      uint64        // pos of the run's last message, control messages included
	headBy    writerID      // of the message at head
	positions []position    // of some older events
	more      chan struct{} // of readers that wait for any event
	settled   chan struct{} // of readers that wait until the run has settled
	moreInput chan struct{}
	noInputs  bool      // the run was created here, and has no input yet
	lastUsed  time.Time // when a caller last asked for the run
	lastRead  time.Time // when the stream was last read
	lastFail  time.Time // when reading the stream last failed
	evicted   bool      // the run is no longer in Log.runs
	counted   int64     // the part of Log.cached for this run
}

// getRun returns the cache of a run, which may be empty.
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

// cachedRun returns the cache of a run, or nil.
func (l *Log) cachedRun(id string) *run {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs[id]
}

// updateRun puts a run, which may have been evicted meanwhile, back into the cache and calls
// update with the run locked.
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

// countCachedLocked updates Log.cached. An event is in memory as JSON and decoded.
func (r *run) countCachedLocked() {
	n := int64(0)
	if !r.evicted {
		n = 2 * int64(max(r.tailBytes, len(r.last.JSON)))
	}
	if cached := r.log.cached.Add(n - r.counted); cached > r.log.maxCached {
		select {
		case r.log.evictNow <- struct{}{}:
		default: // a request is pending
		}
	}
	r.counted = n
}

// forEachRun calls f with every cached run, locked.
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

// isCurrentLocked reports whether the cache is up to date without a read.
func (r *run) isCurrentLocked() bool {
	if !r.loaded || r.stale || r.record == nil {
		return false
	}
	if r.writer != nil {
		return true
	}
	isLive := r.eventSub != nil || r.log.alone || r.last.Terminal()
	return isLive && time.Since(r.lastRead) < pollInterval
}

// isGoneLocked reports whether the run was deleted, or its retention has passed.
func (r *run) isGoneLocked() bool {
	if r.record.Gone {
		return true
	}
	return r.last.Terminal() && r.log.Now().Sub(time.UnixMilli(r.last.Time)) >= r.log.retention
}

// wakeReadersLocked makes callers that wait for the run ask again.
func (r *run) wakeReadersLocked() {
	r.wakeReadersOfEventsLocked()
	if r.settled != nil {
		close(r.settled)
		r.settled = nil
	}
}

// wakeReadersOfEventsLocked makes callers that wait for any event ask again.
func (r *run) wakeReadersOfEventsLocked() {
	if r.more != nil {
		close(r.more)
		r.more = nil
	}
}

// wakeExecutorLocked makes the run's executor ask for inputs again.
func (r *run) wakeExecutorLocked() {
	r.noInputs = false
	if r.moreInput != nil {
		close(r.moreInput)
		r.moreInput = nil
	}
}

// appendTailLocked adds the events of a message to the tail. previous is the pos of the message before it; if
// that is not head, a message between them is missing.
func (r *run) appendTailLocked(events []event.Event, pos, previous uint64, by writerID) {
	if pos <= r.head {
		return
	}
	if !r.loaded || previous != r.head {
		r.stale = true
	} else {
		for _, e := range events {
			r.tail, r.tailPos = append(r.tail, e), append(r.tailPos, pos)
			r.tailBytes += len(e.JSON)
			r.last = e
		}
		r.head, r.headBy = pos, by
		r.trimTailLocked()
		r.countCachedLocked()
	}
	if r.stale || r.last.Settled() {
		r.wakeReadersLocked()
	} else {
		r.wakeReadersOfEventsLocked()
	}
}

// advanceHeadLocked records that a control message is now the run's last message.
func (r *run) advanceHeadLocked(pos uint64, by writerID) {
	if pos > r.head {
		r.head, r.headBy = pos, by
	}
}

// setTailLocked replaces the tail by the newest event alone. The tail stays empty if that event
// was read from a control message, which only repeats it.
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

// trimTailLocked drops the older half of a tail that exceeds twice its bounds. Pages that share
// the dropped part stay valid.
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

// refreshWithRetry refreshes the cache and waits up to readRetryFor for a log that does not
// answer. It returns earlier if suffices reports that the cache is good enough for the caller.
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
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return err
		case <-r.log.ctx.Done():
			return err
		}
		if time.Now().After(until) {
			return err
		}
	}
}

// refreshCache updates the cache from the stream. One caller reads; callers that wait for refreshMu
// meanwhile use its result.
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
		// This replica lags behind its leader: it lacks a message that arrived live.
		if !behind || reads == maxLagReads {
			return nil
		}
		select {
		case <-time.After(lagInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

// beginRefresh returns the record of the run if it is known. done means that there is nothing to
// read.
func (r *run) beginRefresh() (rec *record, done bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isCurrentLocked() && r.head >= r.liveHead {
		return nil, true, nil
	}
	if time.Since(r.lastFail) < failureShared {
		return nil, false, unavailableError("read the log", errReadFailedRecently)
	}
	r.stale = false // a message that arrives during the read sets it again
	return r.record, false, nil
}

// endRefresh records the outcome of a read. behind means that a live message was not read yet.
func (r *run) endRefresh(err error) (behind bool, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.stale = true
		if errors.Is(err, event.ErrUnavailable) {
			r.lastFail = time.Now()
		}
		return false, err
	}
	behind = r.head < r.liveHead
	r.stale = r.stale || behind
	return behind, nil
}

// loadTail reads the newest events, and the record unless rec is set.
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
	if newest == nil && !rec.Gone {
		if rec.Gone, err = r.log.hasNoEventsForGood(ctx, rec); err != nil {
			return err
		}
	}

	r.mu.Lock()
	r.record, r.lastRead = rec, time.Now()
	wasLoaded, head := r.loaded, r.head
	if newest == nil {
		r.loaded = true
	}
	r.mu.Unlock()

	switch {
	case newest == nil, newest.pos <= head:
		return nil
	case wasLoaded && newest.pos-head < 4*maxBatch:
		// All runs share the stream's numbers, so few of the messages between probably belong to
		// this run.
		return r.catchUp(ctx, head)
	}
	return r.loadNewest(ctx, *newest)
}

// isAbandoned reports whether a run's last message says that the run was never started.
func isAbandoned(last message) bool {
	by, err := parseWriterID(last.header)
	return err == nil && by.kind == kindAbandoned
}

// loadNewest replaces the tail by the newest message.
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
		r.headBy = by
		r.loaded = true
		r.countCachedLocked()
		r.wakeReadersLocked()
	}
	return nil
}

// catchUp reads all messages of the run after pos from.
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
				r.advanceHeadLocked(msg.pos, by)
			} else {
				r.appendTailLocked(events, msg.pos, max(r.head, from), by)
			}
			r.mu.Unlock()
			from = msg.pos
		}
		if !more || len(found) == 0 {
			return nil
		}
	}
}

// hasNoEventsForGood reports whether a run without events will never have any. Either it was not
// started in time, or the stream has dropped its events because of its size limit: the stream's
// oldest message is then younger than the run.
func (l *Log) hasNoEventsForGood(ctx context.Context, rec *record) (bool, error) {
	if l.Now().Sub(rec.Created) > startTimeout {
		return true, nil
	}
	return l.mayHaveDropped(ctx, rec)
}

// mayHaveDropped reports whether the stream may have dropped events of a run because of its size limit.
func (l *Log) mayHaveDropped(ctx context.Context, rec *record) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	info, err := l.streamInfo(ctx, l.runsStream)
	if err != nil {
		return false, unavailableError("read the log", err)
	}
	wasFull := info.State.Bytes > uint64(maxRunsBytes(l.maxBytes))/2 // some runs may have been deleted since
	return wasFull && info.State.FirstTime.After(rec.Created), nil
}

// position locates events in the stream: the events up to seq are at pos or before it.
type position struct {
	seq int64
	pos uint64
}

// addPositionLocked remembers a position, in place of the oldest one if there are too many.
func (r *run) addPositionLocked(seq int64, pos uint64) {
	if len(r.positions) == maxPositions {
		r.positions = append(r.positions[:0], r.positions[1:]...)
	}
	r.positions = append(r.positions, position{seq, pos})
}
