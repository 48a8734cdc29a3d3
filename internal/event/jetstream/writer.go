package jetstream

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
	"answerd/internal/event/jetstream/batch"
)

const (
	// deltaInterval is the shortest time between two events with deltas. The deltas of this time are joined into one
	// event: two or three tokens, at 50 tokens per second.
	deltaInterval = 40 * time.Millisecond
	// maxPendingDelta is the largest total size of the deltas that wait to be joined, in bytes.
	maxPendingDelta = 1 << 10
)

// batchDelay is how long an event waits for more events of its run, so that they are stored in one message. An event
// does not wait if a reader is waiting for it.
const batchDelay = 5 * time.Millisecond

// writer represents this instance's right to append to a run. The right ends when another instance claims the run (the
// writer notices that at its next append), when the run is deleted, or when this instance gives the run up
// (relinquish).
type writer struct {
	run     *run
	attempt int           // the job's event.Job.Attempt; every new writer of the run has a higher one
	lost    chan struct{} // closed when err is set
	queue   *batch.Queue  // events and notes that are not stored yet

	// These fields are used only by the queue's goroutine, and by relinquish once the queue is empty.
	lastPos     uint64      // position of the run's last message
	lastStored  event.Event // the last stored event
	maybeStored bool        // the next message was sent before but not acknowledged, so the stream may have it

	aheadMu sync.Mutex // held during awaitAhead, which the queue and Delete call; locked before mu

	mu           sync.Mutex  // guards the fields below; held while an item is added to the queue, to keep the order
	lastAdded    event.Event // the last event that was added, stored or not
	err          error       // why all appends are refused; nil while appends are allowed
	relinquished bool        // relinquish was called, so nothing more may be added
	// aheadWaits has one function per message sent by sendAhead. It waits until the message is stored.
	aheadWaits []func(context.Context) error
	pending    event.Deltas // deltas that wait to be added to the queue as one event
	lastDelta  time.Time    // when deltas were last added to the queue
	timer      *time.Timer  // adds pending to the queue; nil if it is not running
}

// newWriter returns a writer that continues after last, the run's newest event. lastPos is the position of the run's
// newest message, or 0 if it has none.
func newWriter(r *run, lastPos uint64, last event.Event, attempt int) *writer {
	w := &writer{run: r, attempt: attempt, lost: make(chan struct{}), lastPos: lastPos, lastStored: last, lastAdded: last}
	limit := 0 // store each item in a separate message
	if r.log.batches {
		limit = r.log.maxPart
	}
	w.queue = batch.NewQueue(batch.Options{Store: w.store, Go: r.log.goGuarded, Limit: limit})
	return w
}

// writerFor returns this instance's writer for a run. If this instance is not the writer, writerFor returns the error
// for an append: event.ErrGone, event.ErrEnded, event.ErrNotFound, or event.ErrFenced if another instance may be the
// writer.
func (l *Log) writerFor(ctx context.Context, id string) (*writer, error) {
	if r := l.cachedRun(id); r != nil {
		r.mu.Lock()
		w, gone := r.writer, r.record != nil && r.isGoneLocked()
		r.mu.Unlock()
		if gone {
			return nil, event.ErrGone
		}
		if w != nil {
			return w, nil
		}
	}
	run, err := l.Run(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case run.Last.Terminal():
		return nil, event.ErrEnded
	}
	return nil, event.ErrFenced
}

// Append implements event.Log. It waits until the event is stored, unless the event is a delta that was joined with
// pending ones (see add).
func (l *Log) Append(ctx context.Context, id string, body event.Body) (int64, error) {
	w, err := l.writerFor(ctx, id)
	if err != nil {
		return 0, err
	}
	seq, isJoined, err := w.add(ctx, body)
	if err == nil && !isJoined {
		err = w.queue.Flush(ctx)
	}
	if err != nil {
		return 0, err
	}
	return seq, nil
}

// AppendAsync implements event.Log. It adds the event to the writer's queue, and does not wait until the event is
// stored.
func (l *Log) AppendAsync(ctx context.Context, id string, body event.Body) (int64, error) {
	w, err := l.writerFor(ctx, id)
	if err != nil {
		return 0, err
	}
	seq, _, err := w.add(ctx, body)
	return seq, err
}

// Flush implements event.Log. It also stores the deltas that are pending.
func (l *Log) Flush(ctx context.Context, id string) error {
	w, err := l.writerFor(ctx, id)
	if err != nil {
		return err
	}
	return w.flushAll(ctx)
}

// checkWritable returns the error that an append would return now, or nil if appends are allowed.
func (w *writer) checkWritable() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checkWritableLocked()
}

// checkWritableLocked is checkWritable for callers that hold w.mu.
func (w *writer) checkWritableLocked() error {
	switch {
	case w.err != nil:
		return w.err
	case w.lastAdded.Terminal():
		return event.ErrEnded
	case w.relinquished:
		return event.ErrFenced
	}
	return nil
}

// add adds body to the queue, after the pending deltas, and returns the number of its event. It blocks only if the
// queue is too long or could not be stored (Queue.AwaitReady). If body is a delta that was joined with the pending
// ones, isJoined is true, and seq is the number of the event with all of them, which may not be in the queue yet.
func (w *writer) add(ctx context.Context, body event.Body) (seq int64, isJoined bool, err error) {
	if err := w.queue.AwaitReady(ctx); err != nil {
		return 0, false, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.checkWritableLocked(); err != nil {
		return 0, false, err
	}
	if w.pending.Add(body, maxPendingDelta) {
		wait := deltaInterval - time.Since(w.lastDelta)
		if wait > 0 {
			w.scheduleDeltaLocked(wait)
			return w.lastAdded.Seq + 1, true, nil
		}
		err := w.addPendingLocked()
		return w.lastAdded.Seq, true, err
	}
	if err := w.addPendingLocked(); err != nil {
		return 0, false, err
	}
	if event.IsDelta(body) { // it could not be joined with the pending deltas
		w.lastDelta = time.Now()
	}
	err = w.addEventLocked(body, w.delay())
	return w.lastAdded.Seq, false, err
}

// delay returns how long an event may wait in the queue. It is 0 while a reader waits for an event.
func (w *writer) delay() time.Duration {
	w.run.mu.Lock()
	defer w.run.mu.Unlock()
	if w.run.more != nil {
		return 0
	}
	return batchDelay
}

// scheduleDeltaLocked starts the timer that adds the pending deltas to the queue after wait, unless the timer is
// already running. Close waits for the timer (Log.wg). The caller holds w.mu.
func (w *writer) scheduleDeltaLocked(wait time.Duration) {
	l := w.run.log
	if w.timer != nil || l.ctx.Err() != nil {
		return
	}
	l.wg.Add(1)
	w.timer = time.AfterFunc(wait, func() {
		defer l.wg.Done()
		defer l.recoverPanic("append a pending delta")
		w.mu.Lock()
		defer w.mu.Unlock()
		w.timer = nil
		_ = w.addPendingLocked() // after an error, the next append tries again and returns the error
	})
}

// addPendingLocked stops the timer and adds the pending deltas, if any, to the queue as one event. After an error they
// stay pending. The caller holds w.mu.
func (w *writer) addPendingLocked() error {
	if w.timer != nil && w.timer.Stop() { // otherwise the timer's function is running and waits for w.mu
		w.timer = nil
		w.run.log.wg.Done()
	}
	joined := w.pending.Join()
	if joined == nil || w.err != nil {
		return w.err
	}
	if err := w.addEventLocked(joined, 0); err != nil {
		return err
	}
	w.pending.Reset()
	w.lastDelta = time.Now()
	return nil
}

// addEventLocked makes body the run's next event and adds it to the queue, where it waits for up to delay. It fails
// only if body cannot be encoded. The caller holds w.mu.
func (w *writer) addEventLocked(body event.Body, delay time.Duration) error {
	// The times of a run's events must not decrease, although the clocks of two servers may differ.
	now := max(w.run.log.Now().UnixMilli(), w.lastAdded.Time)
	e, err := event.Encode(w.run.id, w.lastAdded.Seq+1, now, body)
	if err != nil {
		return err
	}
	w.lastAdded = e
	w.queue.Add(batch.Item{Event: e}, delay)
	return nil
}

// flushAll adds the pending deltas to the queue, and waits until everything in the queue is stored.
func (w *writer) flushAll(ctx context.Context) error {
	w.mu.Lock()
	err := w.addPendingLocked()
	w.mu.Unlock()
	if err != nil {
		return err
	}
	return w.queue.Flush(ctx)
}

// store appends a batch of events and notes as one message. It waits until this message and those sent ahead are
// acknowledged. Only then do readers get the events. The queue calls it as Options.Store.
func (w *writer) store(items []batch.Item) error {
	r := w.run
	events := eventsOf(items)
	newest, kind := w.lastStored, kindNote
	if len(events) > 0 {
		newest, kind = events[len(events)-1], ""
	}
	info := messageInfo{instance: r.log.instanceID, attempt: w.attempt, seq: newest.Seq, kind: kind}
	msg, payload := w.encodeMessage(items, events, info)
	pos, err := w.publish(r.log.ctx, msg, info, payload)
	if err == nil {
		err = w.awaitAhead(r.log.ctx)
	}
	if err != nil {
		return err
	}
	previousPos := w.lastPos
	w.lastPos = pos
	w.lastStored = newest
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(events) > 0 {
		r.appendTailLocked(events, pos, previousPos)
	} else {
		r.advanceLastPosLocked(pos)
	}
	return nil
}

// eventsOf returns the events of a batch without its notes.
func eventsOf(items []batch.Item) (events []event.Event) {
	for _, i := range items {
		if !i.IsNote() {
			events = append(events, i.Event)
		}
	}
	return events
}

// encodeMessage returns the message for a batch, still without its payload and writerHeader, and the payload. items is
// the batch, and events are the events in it. If the batch has only notes, the message repeats the previous event,
// because readers expect a run's newest event in its newest message.
func (w *writer) encodeMessage(items []batch.Item, events []event.Event, info messageInfo) (msg *nats.Msg, payload []byte) {
	msg = nats.NewMsg(runSubject(w.run.id, eventToken))
	switch {
	case len(items) == 1 && len(events) == 1:
		payload = events[0].JSON
	case len(items) == 1: // a note
		payload = w.lastStored.JSON
		msg.Header.Set(noteHeader, base64.StdEncoding.EncodeToString(items[0].Note))
	case len(events) > 0:
		msg.Header.Set(batchHeader, strconv.Itoa(len(events)))
		payload = batch.Encode(items)
	case info.seq == 0: // notes before the first event
		msg.Header.Set(batchHeader, "0")
		payload = batch.Encode(items)
	default: // notes after w.lastStored
		msg.Header.Set(batchHeader, "1")
		payload = batch.Encode(append([]batch.Item{{Event: w.lastStored}}, items...))
	}
	return msg, payload
}

// appendControl appends a control message with the given kind and additional headers, and waits until it is
// acknowledged. The message repeats the run's last event. The queue must be empty.
func (w *writer) appendControl(ctx context.Context, kind string, header nats.Header) error {
	r := w.run
	m := nats.NewMsg(runSubject(r.id, eventToken))
	maps.Copy(m.Header, header)
	info := messageInfo{instance: r.log.instanceID, attempt: w.attempt, seq: w.lastStored.Seq, kind: kind}
	pos, err := w.publish(ctx, m, info, w.lastStored.JSON)
	if err != nil {
		return err
	}
	w.lastPos = pos
	r.mu.Lock()
	r.advanceLastPosLocked(pos)
	r.mu.Unlock()
	return nil
}

// publish appends msg, with payload and the header for info, after the run's message at w.lastPos. It returns the
// position of msg. If another writer's message is last, or the run was deleted, this writer loses the right to append.
// After any other error the stream may have msg, so the next call of publish must be for the same message.
func (w *writer) publish(ctx context.Context, msg *nats.Msg, info messageInfo, payload []byte) (uint64, error) {
	r := w.run
	msg.Header.Set(writerHeader, info.String())
	if err := r.log.setPayload(ctx, r.id, msg, payload); err != nil {
		return 0, err
	}
	request := conditionalAppend{stream: runsName, msg: msg, last: w.lastPos, maybeStored: w.maybeStored}
	pos, err := r.log.publishConditional(ctx, request, appendTimeout)
	w.maybeStored = err != nil
	wasDeleted := errors.Is(err, event.ErrGone)
	if wasDeleted || errors.Is(err, event.ErrFenced) {
		w.mu.Lock()
		w.revokeLocked(err)
		w.mu.Unlock()
	}
	if wasDeleted { // by another process, and this one may have saved a result after that
		r.log.purgeIfGone(r.id)
	}
	return pos, err
}

// revokeLocked ends the right to append. It drops the events that are not stored yet, and later appends return why.
// Only the first call has an effect. The caller holds w.mu, but not run.mu.
func (w *writer) revokeLocked(why error) {
	if w.err != nil {
		return
	}
	w.err = why
	w.pending = event.Deltas{}
	w.queue.Stop(why)
	close(w.lost)
	r := w.run
	r.mu.Lock()
	if r.writer == w {
		r.writer = nil
		r.stale = true
		r.wakeReadersLocked()
	}
	r.mu.Unlock()
}

// isLost reports whether the right to append has ended.
func (w *writer) isLost() bool {
	select {
	case <-w.lost:
		return true
	default:
		return false
	}
}

// relinquish gives the run up. It stores the pending and queued events, and then a control message with the given kind
// and additional headers. Then it ends the right to append, even if it returns an error. After an error, events may be
// lost.
func (w *writer) relinquish(ctx context.Context, kind string, header nats.Header) error {
	w.mu.Lock()
	err := w.checkWritableLocked()
	if err == nil {
		err = w.addPendingLocked()
	}
	w.relinquished = true
	w.mu.Unlock()
	flushErr := w.queue.Flush(ctx) // even after an error, so that the events in the queue are stored
	err = cmp.Or(err, flushErr)
	if err == nil {
		err = w.appendControl(ctx, kind, header)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revokeLocked(event.ErrFenced)
	return err
}

// AddNote implements event.Journal. A note is stored among the events, in a message with events or in a control
// message. So it keeps its place in their order, and a writer that was replaced cannot add notes.
func (l *Log) AddNote(ctx context.Context, id string, note []byte) error {
	if len(note) > event.MaxNote {
		return event.ErrTooLarge
	}
	w, err := l.writerFor(ctx, id)
	if err != nil {
		return err
	}
	return w.addNote(ctx, note)
}

// addNote adds a note to the queue, after the pending deltas, without waiting until the note is stored. It blocks only
// if the queue is too long or could not be stored (Queue.AwaitReady).
func (w *writer) addNote(ctx context.Context, note []byte) error {
	if err := w.queue.AwaitReady(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.checkWritableLocked(); err != nil {
		return err
	}
	if err := w.addPendingLocked(); err != nil {
		return err
	}
	w.queue.Add(batch.Item{Note: note}, batchDelay)
	return nil
}

// sendAhead sends msg, which must be stored before readers get the run's first event, without waiting until it is
// stored. awaitAhead waits for it later, by calling await. isEarly is false, and nothing is sent, if the run already
// has an event. If msg could not be sent, isEarly is true, and sendAhead returns an error.
func (w *writer) sendAhead(stream string, msg *nats.Msg, await func(context.Context, sentMessage) error) (isEarly bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lastAdded.Seq > 0 {
		return false, nil
	}
	message, err := w.run.log.send(stream, msg)
	if err == nil {
		w.aheadWaits = append(w.aheadWaits, func(ctx context.Context) error { return await(ctx, message) })
	}
	return true, err
}

// awaitAhead waits until all messages sent by sendAhead are stored. If one of them cannot be stored, a part of the run
// is missing, so the writer loses the right to append, and awaitAhead returns the error.
//
// The messages may be stored in any order, because callers do not learn the id of the run or thread before the first
// event, and no other process reads a log on disk. If the process dies before all are stored, repairRuns deletes or
// ends the run. Waiting for each message separately took half of the time until the first event, at 16 callers.
func (w *writer) awaitAhead(ctx context.Context) error {
	w.aheadMu.Lock() // an acknowledgement can be received only once
	defer w.aheadMu.Unlock()
	w.mu.Lock()
	waits := w.aheadWaits
	w.mu.Unlock()
	var failed error
	for _, await := range waits { // wait for all, even after an error: Delete must not overtake a message
		failed = errors.Join(failed, await(ctx))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.aheadWaits = w.aheadWaits[len(waits):]
	if failed != nil {
		w.revokeLocked(failed)
	}
	return failed
}
