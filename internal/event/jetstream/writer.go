package jetstream

import (
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
	// deltaInterval separates two appends of deltas. Deltas that arrive meanwhile are joined. At
	// 50 tokens a second, an event has two or three tokens.
	deltaInterval = 40 * time.Millisecond
	// maxPendingDelta bounds the delta that waits to be appended, in bytes.
	maxPendingDelta = 1 << 10
)

// batchDelay is how long an event waits for others of its run, to be stored with them in one message, while no
// reader waits.
const batchDelay = 5 * time.Millisecond

// writer holds the right of this instance to append to a run. The right ends when another
// instance claims the run, which the writer notices at its next append.
type writer struct {
	run     *run
	attempt int
	lost    chan struct{} // closed when err is set
	queue   *batch.Queue  // the events and notes that are not stored yet

	// Only the queue's goroutine uses these, and relinquish when the queue is empty.
	head   uint64      // pos of the run's last message
	stored event.Event // the last event that is stored
	tried  bool        // the message after head was sent before, and may be stored although the server has not acknowledged it

	awaiting sync.Mutex // held by awaitAhead, which Delete calls too; taken before mu

	mu        sync.Mutex                    // guards the fields below; held while an item is added to the queue, to keep the order
	last      event.Event                   // the last event, which may be in the queue
	err       error                         // why appends are refused; nil while they are allowed
	leaves    bool                          // relinquish was called
	ahead     []func(context.Context) error // waits until a message of sendAhead is stored, for each of them
	pending   event.Deltas                  // that wait to be added to the queue as one event
	lastDelta time.Time                     // when the last delta was added
	timer     *time.Timer
}

// newWriter returns a writer that continues after last. head is the pos of the run's newest message, and attempt the
// number of the claim.
func newWriter(r *run, head uint64, last event.Event, attempt int) *writer {
	w := &writer{run: r, attempt: attempt, lost: make(chan struct{}), head: head, stored: last, last: last}
	limit := 0
	if r.log.batches {
		limit = r.log.maxPart
	}
	w.queue = batch.NewQueue(batch.Options{Store: w.store, Go: r.log.goGuarded, Limit: limit})
	return w
}

// writerFor returns the local writer of a run, or the error that explains why there is none.
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

// Append implements event.Log.
func (l *Log) Append(ctx context.Context, id string, b event.Body) (int64, error) {
	w, err := l.writerFor(ctx, id)
	if err != nil {
		return 0, err
	}
	seq, delayed, err := w.add(ctx, b)
	if err == nil && !delayed {
		err = w.queue.Flush(ctx)
	}
	if err != nil {
		return 0, err
	}
	return seq, nil
}

// AppendAsync implements event.Log.
func (l *Log) AppendAsync(ctx context.Context, id string, b event.Body) (int64, error) {
	w, err := l.writerFor(ctx, id)
	if err != nil {
		return 0, err
	}
	seq, _, err := w.add(ctx, b)
	return seq, err
}

// Flush implements event.Log.
func (l *Log) Flush(ctx context.Context, id string) error {
	w, err := l.writerFor(ctx, id)
	if err != nil {
		return err
	}
	return w.flushAll(ctx)
}

// checkWritable returns the error that an append would get, nil if appends are allowed.
func (w *writer) checkWritable() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checkWritableLocked()
}

// checkWritableLocked returns why no event can be appended, or nil.
func (w *writer) checkWritableLocked() error {
	switch {
	case w.err != nil:
		return w.err
	case w.last.Terminal():
		return event.ErrEnded
	case w.leaves:
		return event.ErrFenced
	}
	return nil
}

// add adds body to the queue and returns its number. A delta may stay pending, to be joined with the next ones;
// delayed reports that body may wait for that. Any other body comes after the pending delta.
func (w *writer) add(ctx context.Context, body event.Body) (seq int64, delayed bool, err error) {
	if err := w.queue.Settle(ctx); err != nil {
		return 0, false, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.checkWritableLocked(); err != nil {
		return 0, false, err
	}
	if w.pending.Add(body, maxPendingDelta) {
		if wait := deltaInterval - time.Since(w.lastDelta); wait > 0 {
			w.scheduleDeltaLocked(wait)
			return w.last.Seq + 1, true, nil
		}
		err := w.addPendingLocked()
		return w.last.Seq, true, err
	}
	if err := w.addPendingLocked(); err != nil {
		return 0, false, err
	}
	if event.DeltaSize(body) > 0 {
		w.lastDelta = time.Now()
	}
	err = w.addEventLocked(body, w.delay())
	return w.last.Seq, false, err
}

// delay returns how long an event may wait in the queue.
func (w *writer) delay() time.Duration {
	w.run.mu.Lock()
	defer w.run.mu.Unlock()
	if w.run.more != nil {
		return 0
	}
	return batchDelay
}

// scheduleDeltaLocked starts a timer that adds the pending delta to the queue after wait.
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
		_ = w.addPendingLocked() // the next append repeats it and returns its error
	})
}

// addPendingLocked adds the pending delta to the queue. If that fails, the delta stays pending.
func (w *writer) addPendingLocked() error {
	if w.timer != nil && w.timer.Stop() {
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

// addEventLocked gives an event its number and adds it to the queue.
func (w *writer) addEventLocked(b event.Body, delay time.Duration) error {
	// The time of a run's events does not go back, although two servers' clocks may differ.
	now := max(w.run.log.Now().UnixMilli(), w.last.Time)
	e, err := event.Encode(w.run.id, w.last.Seq+1, now, b)
	if err != nil {
		return err
	}
	w.last = e
	w.queue.Add(batch.Item{Event: e}, delay)
	return nil
}

// flushAll adds the pending delta to the queue, and returns when everything in it is stored.
func (w *writer) flushAll(ctx context.Context) error {
	w.mu.Lock()
	err := w.addPendingLocked()
	w.mu.Unlock()
	if err != nil {
		return err
	}
	return w.queue.Flush(ctx)
}

// flushAllRuns stores what waits of all runs. Close calls it last.
func (l *Log) flushAllRuns() {
	ctx, cancel := context.WithTimeout(l.ctx, attemptTimeout)
	defer cancel()
	l.mu.Lock()
	var writers []*writer
	for _, r := range l.runs {
		r.mu.Lock()
		if r.writer != nil {
			writers = append(writers, r.writer)
		}
		r.mu.Unlock()
	}
	l.mu.Unlock()
	var all sync.WaitGroup
	for _, w := range writers {
		all.Go(func() { _ = w.flushAll(ctx) }) // no later append can repeat it
	}
	all.Wait()
}

// store appends a batch of events and notes as one message, and returns when it is acknowledged. Only then
// readers see the events.
func (w *writer) store(items []batch.Item) error {
	r := w.run
	events := eventsOf(items)
	by := writerID{instance: r.log.instanceID, attempt: w.attempt, seq: w.stored.Seq, kind: kindNote}
	if n := len(events); n > 0 {
		by.seq, by.kind = events[n-1].Seq, ""
	}
	msg, payload := w.encodeMessage(items, events, by)
	pos, err := w.publish(r.log.ctx, msg, by, payload)
	if err == nil {
		err = w.awaitAhead(r.log.ctx)
	}
	if err != nil {
		return err
	}
	previous := w.head
	w.head = pos
	if len(events) > 0 {
		w.stored = events[len(events)-1]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(events) > 0 {
		r.appendTailLocked(events, pos, previous, by)
	} else {
		r.advanceHeadLocked(pos, by)
	}
	return nil
}

// eventsOf returns the events of a batch, without its notes.
func eventsOf(items []batch.Item) (events []event.Event) {
	for _, i := range items {
		if !i.IsNote() {
			events = append(events, i.Event)
		}
	}
	return events
}

// encodeMessage returns the message for a batch, without its payload, and the payload. A batch of notes repeats the
// event before it, because readers find the newest event of a run in its newest message.
func (w *writer) encodeMessage(items []batch.Item, events []event.Event, by writerID) (msg *nats.Msg, payload []byte) {
	msg = nats.NewMsg(runSubject(w.run.id, eventToken))
	switch {
	case len(items) == 1 && len(events) == 1:
		payload = events[0].JSON
	case len(items) == 1:
		payload = w.stored.JSON
		msg.Header.Set(noteHeader, base64.StdEncoding.EncodeToString(items[0].Note))
	case len(events) > 0:
		msg.Header.Set(batchHeader, strconv.Itoa(len(events)))
		payload = batch.Encode(items)
	case by.seq == 0:
		msg.Header.Set(batchHeader, "0")
		payload = batch.Encode(items)
	default: // notes alone, after the event that they repeat
		msg.Header.Set(batchHeader, "1")
		payload = batch.Encode(append([]batch.Item{{Event: w.stored}}, items...))
	}
	return msg, payload
}

// appendControl appends a control message, which repeats the last event (see the kinds). The queue must be
// empty.
func (w *writer) appendControl(ctx context.Context, kind string, header nats.Header) error {
	r := w.run
	m := nats.NewMsg(runSubject(r.id, eventToken))
	maps.Copy(m.Header, header)
	by := writerID{instance: r.log.instanceID, attempt: w.attempt, seq: w.stored.Seq, kind: kind}
	pos, err := w.publish(ctx, m, by, w.stored.JSON)
	if err != nil {
		return err
	}
	w.head = pos
	r.mu.Lock()
	r.advanceHeadLocked(pos, by)
	r.mu.Unlock()
	return nil
}

// publish publishes a message after the run's last one. If another writer's message is
// last, this writer loses the right to append.
func (w *writer) publish(ctx context.Context, m *nats.Msg, by writerID, payload []byte) (uint64, error) {
	r := w.run
	m.Header.Set(writerHeader, by.String())
	if err := r.log.setPayload(ctx, r.id, m, payload); err != nil {
		return 0, err
	}
	pos, err := r.log.publishAfterTry(ctx, runsName, m, w.head, appendTimeout, w.tried)
	w.tried = err != nil // the queue stores the same items next
	if errors.Is(err, event.ErrFenced) || errors.Is(err, event.ErrGone) {
		w.mu.Lock()
		w.revokeLocked(err)
		w.mu.Unlock()
	}
	if errors.Is(err, event.ErrGone) { // another process deleted the run, while this one saved a result
		r.log.purgeIfGone(r.id)
	}
	return pos, err
}

// revokeLocked ends the right to append: later appends return why.
func (w *writer) revokeLocked(why error) {
	if w.err != nil {
		return
	}
	w.err, w.pending = why, event.Deltas{}
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

// relinquish stores what waits and a control message that gives the run up, and ends the
// right to append.
func (w *writer) relinquish(ctx context.Context, kind string, header nats.Header) error {
	w.mu.Lock()
	err := w.checkWritableLocked()
	if err == nil {
		err = w.addPendingLocked()
	}
	w.leaves = true
	w.mu.Unlock()
	if flushErr := w.queue.Flush(ctx); err == nil {
		err = flushErr
	}
	if err == nil {
		err = w.appendControl(ctx, kind, header)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revokeLocked(event.ErrFenced)
	return err
}

// AddNote implements event.Journal. A note is stored among the events, which orders it and refuses it from a
// writer that was replaced: in their message, or in a control message.
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

// addNote adds a note to the queue, after the events that the writer has accepted so far. It does not wait until the
// note is stored, except when the queue is too long or could not be stored before (Queue.Settle).
func (w *writer) addNote(ctx context.Context, note []byte) error {
	if err := w.queue.Settle(ctx); err != nil {
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

// sendAhead sends a message that must be stored before this process returns the first event of the run, and does not wait
// for that: awaitAhead calls await. It reports false, and sends nothing, if the run has an event already.
func (w *writer) sendAhead(stream string, m *nats.Msg, await func(context.Context, sentMessage) error) (sent bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.Seq > 0 {
		return false, nil
	}
	s, err := w.run.log.send(stream, m)
	if err == nil {
		w.ahead = append(w.ahead, func(ctx context.Context) error { return await(ctx, s) })
	}
	return true, err
}

// awaitAhead waits until what was sent ahead is stored. If that fails, the run cannot be written any more, since a
// part of it is missing.
//
// The id of a new thread reaches the caller with the first event, so the thread and that event can be stored in any order.
// If the process dies in between, the one that claims the run begins the turn.
//
// A log on disk has no other process that reads a run while it is being created. So the record, the job and the first
// event can be stored in any order too: to wait for each took half of the time until the first event, at 16 callers. If
// the process dies in between, repairRuns deletes or ends the run, whose id no caller has. If only the event was
// stored, it stays until the stream drops its oldest messages.
func (w *writer) awaitAhead(ctx context.Context) error {
	w.awaiting.Lock() // an acknowledgement has one receiver
	defer w.awaiting.Unlock()
	w.mu.Lock()
	ahead := w.ahead
	w.mu.Unlock()
	var failed error
	for _, await := range ahead { // all of them, or a later one could be stored after the run was deleted
		failed = errors.Join(failed, await(ctx))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ahead = w.ahead[len(ahead):]
	if failed != nil {
		w.revokeLocked(failed)
	}
	return failed
}
