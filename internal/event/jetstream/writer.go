package jetstream

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

const (
	// deltaInterval separates two appends of deltas. Deltas that arrive meanwhile are joined. At
	// 50 tokens a second, an event has two or three tokens.
	deltaInterval = 40 * time.Millisecond
	// maxPendingDelta bounds the delta that waits to be appended, in bytes.
	maxPendingDelta = 1 << 10
)

// writer holds the right of this instance to append to a run. The right ends when another
// instance claims the run, which the writer notices at its next append.
type writer struct {
	run     *run
	attempt int
	lost    chan struct{} // closed when err is set

	mu        sync.Mutex // held across an append, because each append expects the one before
	head      uint64     // pos of the run's last message
	last      event.Event
	err       error      // why appends are refused; nil while they are allowed
	pending   event.Body // joined deltas that wait to be appended
	lastDelta time.Time  // when the last delta was appended
	timer     *time.Timer
}

func newWriter(r *run, head uint64, last event.Event, attempt int) *writer {
	return &writer{run: r, attempt: attempt, lost: make(chan struct{}), head: head, last: last}
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
	return w.appendOrJoin(ctx, b)
}

// checkWritable returns the error that an append would get, nil if appends are allowed.
func (w *writer) checkWritable() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checkWritableLocked()
}

func (w *writer) checkWritableLocked() error {
	if w.err == nil && w.last.Terminal() {
		return event.ErrEnded
	}
	return w.err
}

// appendOrJoin appends b. A delta may stay pending, to be joined with the next ones. Any other body is
// appended after the pending delta.
func (w *writer) appendOrJoin(ctx context.Context, b event.Body) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.checkWritableLocked(); err != nil {
		return 0, err
	}
	joined, isDelta := event.JoinDeltas(w.pending, b)
	if isDelta && event.DeltaSize(joined) <= maxPendingDelta {
		w.pending = joined
		if wait := deltaInterval - time.Since(w.lastDelta); wait > 0 {
			w.scheduleFlushLocked(wait)
			return w.last.Seq + 1, nil
		}
		return w.last.Seq + 1, w.flushPendingLocked(ctx)
	}
	if err := w.flushPendingLocked(ctx); err != nil {
		return 0, err
	}
	err := w.appendEventLocked(ctx, b)
	if event.DeltaSize(b) > 0 {
		w.lastDelta = time.Now()
	}
	return w.last.Seq, err
}

// scheduleFlushLocked starts a timer that appends the pending delta after wait.
func (w *writer) scheduleFlushLocked(wait time.Duration) {
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
		_ = w.flushPendingLocked(l.ctx) // the next append repeats it and returns its error
	})
}

// flushPendingLocked appends the pending delta. If that fails, the delta stays pending.
func (w *writer) flushPendingLocked(ctx context.Context) error {
	if w.timer != nil && w.timer.Stop() {
		w.timer = nil
		w.run.log.wg.Done()
	}
	if w.pending == nil || w.err != nil {
		return w.err
	}
	if err := w.appendEventLocked(ctx, w.pending); err != nil {
		return err
	}
	w.pending, w.lastDelta = nil, time.Now()
	return nil
}

// flushAllPending appends the pending deltas of all runs. Close calls it last.
func (l *Log) flushAllPending() {
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
	for _, w := range writers {
		w.mu.Lock()
		_ = w.flushPendingLocked(ctx) // no later append can repeat it
		w.mu.Unlock()
	}
}

// appendEventLocked appends one event and returns when it is acknowledged.
func (w *writer) appendEventLocked(ctx context.Context, b event.Body) error {
	r := w.run
	// The time of a run's events does not go back, although two servers' clocks may differ.
	now := max(r.log.Now().UnixMilli(), w.last.Time)
	e, err := event.Encode(r.id, w.last.Seq+1, now, b)
	if err != nil {
		return err
	}
	by := writerID{instance: r.log.instanceID, attempt: w.attempt, seq: e.Seq}
	pos, err := w.publishLocked(ctx, nats.NewMsg(runSubject(r.id, eventToken)), by, e.JSON)
	if err != nil {
		return err
	}
	previous := w.head
	w.head, w.last = pos, e
	r.mu.Lock()
	r.appendTailLocked(e, pos, previous, by)
	r.mu.Unlock()
	return nil
}

// appendControlLocked appends a control message, which repeats the last event (see the kinds).
func (w *writer) appendControlLocked(ctx context.Context, kind string, header nats.Header) error {
	r := w.run
	m := nats.NewMsg(runSubject(r.id, eventToken))
	maps.Copy(m.Header, header)
	by := writerID{instance: r.log.instanceID, attempt: w.attempt, seq: w.last.Seq, kind: kind}
	pos, err := w.publishLocked(ctx, m, by, w.last.JSON)
	if err != nil {
		return err
	}
	w.head = pos
	r.mu.Lock()
	r.advanceHeadLocked(pos, by)
	r.mu.Unlock()
	return nil
}

// publishLocked publishes a message after the run's last one. If another writer's message is
// last, this writer loses the right to append.
func (w *writer) publishLocked(ctx context.Context, m *nats.Msg, by writerID, payload []byte) (uint64, error) {
	r := w.run
	m.Header.Set(writerHeader, by.String())
	if err := r.log.setPayload(ctx, r.id, m, payload); err != nil {
		return 0, err
	}
	pos, err := r.log.publishAfter(ctx, runsName, m, w.head, appendTimeout)
	if errors.Is(err, event.ErrFenced) || errors.Is(err, event.ErrGone) {
		w.revokeLocked(err)
	}
	return pos, err
}

// revokeLocked ends the right to append: later appends return why.
func (w *writer) revokeLocked(why error) {
	if w.err != nil {
		return
	}
	w.err, w.pending = why, nil
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

// relinquish appends the pending delta and a control message that gives the run up, and ends the
// right to append.
func (w *writer) relinquish(ctx context.Context, kind string, header nats.Header) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.checkWritableLocked()
	if err == nil {
		err = w.flushPendingLocked(ctx)
	}
	if err == nil {
		err = w.appendControlLocked(ctx, kind, header)
	}
	w.revokeLocked(event.ErrFenced)
	return err
}

// AddNote implements event.Journal. A note is stored as a control message, which orders it among
// the events and refuses it from a writer that was replaced.
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

func (w *writer) addNote(ctx context.Context, note []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.checkWritableLocked(); err != nil {
		return err
	}
	if err := w.flushPendingLocked(ctx); err != nil {
		return err
	}
	return w.appendControlLocked(ctx, kindNote, nats.Header{noteHeader: {base64.StdEncoding.EncodeToString(note)}})
}

// Notes implements event.Journal. It reads up to the run's last message that is known here, even if
// it gets only a part of them from a server that lags behind. A process that takes the run over
// would repeat a call if it did not know the note about it.
func (l *Log) Notes(ctx context.Context, id string) (notes []event.Note, err error) {
	if _, err := l.Run(ctx, id); err != nil {
		return nil, err
	}
	r, err := l.getRun(id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	head := r.head
	r.mu.Unlock()
	for from := uint64(1); ; {
		found, more, err := l.readNext(ctx, runSubject(id, eventToken), from, maxBatch)
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			from = m.pos + 1
			by, err := parseWriterID(m.header)
			if err != nil {
				return nil, err
			}
			if by.kind != kindNote {
				continue
			}
			data, err := base64.StdEncoding.DecodeString(m.header.Get(noteHeader))
			if err != nil {
				return nil, fmt.Errorf("decode a note: %w", err)
			}
			notes = append(notes, event.Note{After: by.seq, Data: data})
		}
		if !more && from > head || len(found) == 0 {
			return notes, nil
		}
	}
}

// SaveResult implements event.Log.
func (l *Log) SaveResult(ctx context.Context, id, call string, result []byte) error {
	if len(result) > event.MaxResult {
		return event.ErrTooLarge
	}
	w, err := l.writerFor(ctx, id)
	if err != nil {
		return err
	}
	if err := w.checkWritable(); err != nil {
		return err
	}
	return l.savePayload(ctx, id, resultToken+"."+subjectDigest(call), result)
}

// savePayload publishes a payload to a subject of a run. Readers use the newest one.
func (l *Log) savePayload(ctx context.Context, id, tokens string, payload []byte) error {
	m := nats.NewMsg(runSubject(id, tokens))
	m.Header.Set(writerHeader, writerID{instance: l.instanceID, attempt: 1}.String())
	if err := l.setPayload(ctx, id, m, payload); err != nil {
		return err
	}
	return l.publishUnordered(ctx, "save in the log", m, nil)
}

// Result implements event.Log.
func (l *Log) Result(ctx context.Context, id, call string) ([]byte, error) {
	if _, err := l.Run(ctx, id); err != nil {
		return nil, err
	}
	m, err := l.readLast(ctx, runsName, runSubject(id, resultToken+"."+subjectDigest(call)))
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, event.ErrNotFound
	}
	return l.readPayload(ctx, *m)
}
