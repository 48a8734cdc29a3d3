package jetstream

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

const (
	// joinFor is the least time between two appends of deltas: what comes meanwhile is
	// joined. At 50 tokens a second it makes an event of two or three.
	joinFor = 40 * time.Millisecond
	// maxJoined bounds the delta that is held back, in bytes.
	maxJoined = 1 << 10
)

// writer is the right of this process to append to a run.
type writer struct {
	run     *run
	attempt int
	lost    chan struct{} // closed with err

	mu      sync.Mutex // held across an append, so that one follows the other
	at      uint64     // number of the run's last message in the stream
	last    event.Event
	err     error      // why nothing may be appended any more
	pending event.Body // deltas that are held back
	deltas  time.Time  // when the last delta was appended
	timer   *time.Timer
}

func newWriter(r *run, at uint64, last event.Event, attempt int) *writer {
	return &writer{run: r, attempt: attempt, lost: make(chan struct{}), at: at, last: last}
}

// writing is the writer of a run, if that is here; else what is to be said of the run.
func (l *Log) writing(ctx context.Context, id string) (*writer, error) {
	if r := l.known(id); r != nil {
		r.mu.Lock()
		w, gone := r.writer, r.record != nil && r.goneLocked()
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
func (l *Log) Append(ctx context.Context, run string, b event.Body) (int64, error) {
	w, err := l.writing(ctx, run)
	if err != nil {
		return 0, err
	}
	return w.append(ctx, b)
}

// open says why nothing may be appended, nil if it may.
func (w *writer) open() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.openLocked()
}

func (w *writer) openLocked() error {
	if w.err == nil && w.last.Terminal() {
		return event.ErrEnded
	}
	return w.err
}

func (w *writer) append(ctx context.Context, b event.Body) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.openLocked(); err != nil {
		return 0, err
	}
	joined, isDelta := event.JoinDeltas(w.pending, b)
	if isDelta && event.DeltaSize(joined) <= maxJoined {
		w.pending = joined
		wait := joinFor - time.Since(w.deltas)
		if wait > 0 {
			w.holdLocked(wait)
			return w.last.Seq + 1, nil
		}
		return w.last.Seq + 1, w.flushLocked(ctx)
	}
	if err := w.flushLocked(ctx); err != nil {
		return 0, err
	}
	err := w.storeLocked(ctx, b)
	if event.DeltaSize(b) > 0 {
		w.deltas = time.Now()
	}
	return w.last.Seq, err
}

// holdLocked sees to it that what is held back is appended after wait.
func (w *writer) holdLocked(wait time.Duration) {
	l := w.run.log
	if w.timer != nil || l.ctx.Err() != nil {
		return
	}
	l.wg.Add(1)
	w.timer = time.AfterFunc(wait, func() {
		defer l.wg.Done()
		defer l.survived("append what was held back")
		w.mu.Lock()
		defer w.mu.Unlock()
		w.timer = nil
		// Whoever appends next tries again, and is told.
		_ = w.flushLocked(l.ctx)
	})
}

// flushLocked appends what is held back. If it cannot, it is held back still.
func (w *writer) flushLocked(ctx context.Context) error {
	if w.timer != nil && w.timer.Stop() {
		w.timer = nil
		w.run.log.wg.Done()
	}
	if w.pending == nil || w.err != nil {
		return w.err
	}
	if err := w.storeLocked(ctx, w.pending); err != nil {
		return err
	}
	w.pending, w.deltas = nil, time.Now()
	return nil
}

// storeLocked appends one event and returns when it is acknowledged.
func (w *writer) storeLocked(ctx context.Context, b event.Body) error {
	r := w.run
	e, err := event.Encode(r.id, w.last.Seq+1, time.Now().UnixMilli(), b)
	if err != nil {
		return err
	}
	by := writerID{log: r.log.name, attempt: w.attempt, seq: e.Seq}
	at, err := w.sendLocked(ctx, nats.NewMsg(r.subject(evKind)), by, e.JSON)
	if err != nil {
		return err
	}
	before := w.at
	w.at, w.last = at, e
	r.mu.Lock()
	r.pushLocked(e, at, before, by)
	r.mu.Unlock()
	return nil
}

// sendLocked appends a message behind the last one of the run.
func (w *writer) sendLocked(ctx context.Context, m *nats.Msg, by writerID, payload []byte) (uint64, error) {
	r := w.run
	m.Header.Set(writerHeader, by.String())
	err := r.log.pack(ctx, r.id, m, payload)
	if err != nil {
		return 0, err
	}
	at, err := r.log.publish(ctx, runsName, m, w.at, patience)
	if errors.Is(err, event.ErrFenced) || errors.Is(err, event.ErrGone) {
		w.loseLocked(err)
	}
	return at, err
}

// loseLocked ends the right to append.
func (w *writer) loseLocked(why error) {
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
		r.wakeLocked()
	}
	r.mu.Unlock()
}

// give ends the right to append in an orderly way, with a message of that kind.
func (w *writer) give(ctx context.Context, kind string, header nats.Header) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.openLocked()
	if err == nil {
		err = w.flushLocked(ctx)
	}
	if err == nil {
		err = w.silentLocked(ctx, kind, header)
	}
	w.loseLocked(event.ErrFenced)
	return err
}

// silentLocked appends a message that is no event.
func (w *writer) silentLocked(ctx context.Context, kind string, header nats.Header) error {
	r := w.run
	m := nats.NewMsg(r.subject(evKind))
	maps.Copy(m.Header, header)
	by := writerID{log: r.log.name, attempt: w.attempt, seq: w.last.Seq, kind: kind}
	at, err := w.sendLocked(ctx, m, by, w.last.JSON)
	if err != nil {
		return err
	}
	w.at = at
	r.mu.Lock()
	r.passLocked(at, by)
	r.mu.Unlock()
	return nil
}

// flushAll appends what is held back in all runs.
func (l *Log) flushAll() {
	ctx, cancel := context.WithTimeout(l.ctx, tryTimeout)
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
		_ = w.flushLocked(ctx) // the last thing that this log does for the run
		w.mu.Unlock()
	}
}
