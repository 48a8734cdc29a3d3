package jetstream

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

// readerQueryTimeout limits how long the other instances may take to report a reader. Instances
// without a reader do not answer.
const readerQueryTimeout = time.Second

// pageSource tells where a reader's page can be read.
type pageSource int

const (
	fromTail       pageSource = iota
	fromHistory               // the events are older than the tail
	afterSubscribe            // ask again once the run's live subscription is active
)

// After implements event.Log. New events come from the run's writer, if this instance is the
// writer, or else from the one live subscription of the run that all readers share. Older events
// are read from the stream.
func (l *Log) After(ctx context.Context, id string, seq int64) (event.Page, error) {
	for {
		r, err := l.getRun(id)
		if err != nil {
			return event.Page{}, err
		}
		if err := r.updateFor(ctx, seq); err != nil {
			return event.Page{}, err
		}
		page, source, err := r.tailPage(seq)
		switch {
		case err != nil:
			return event.Page{}, err
		case source == fromHistory:
			return r.readHistory(ctx, seq)
		case source == fromTail:
			return page, nil
		}
		// Only a read that starts after the subscription is active cannot miss an event.
		if err := r.subscribeEvents(ctx); err != nil {
			return event.Page{}, err
		}
	}
}

// Settled implements event.Log.
func (l *Log) Settled(ctx context.Context, id string) (<-chan struct{}, error) {
	for {
		r, err := l.getRun(id)
		if err != nil {
			return nil, err
		}
		if err := r.updateFor(ctx, 0); err != nil {
			return nil, err
		}
		if settled, err := r.settledChannel(); settled != nil || err != nil {
			return settled, err
		}
		if err := r.subscribeEvents(ctx); err != nil {
			return nil, err
		}
	}
}

// settledChannel returns the channel of Settled, or nil if the run needs its live subscription first.
func (r *run) settledChannel() (<-chan struct{}, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastUsed = time.Now()
	if r.isGoneLocked() {
		return nil, event.ErrGone
	}
	if !r.last.Settled() && !r.hearsOfEventsLocked() {
		return nil, nil
	}
	if r.settled == nil {
		r.settled = make(chan struct{})
	}
	settled := r.settled
	if r.last.Settled() { // callers that wait for any event are not woken
		close(settled)
		r.settled = nil
	}
	return settled, nil
}

// updateFor brings the cache up to date for a reader at seq.
func (r *run) updateFor(ctx context.Context, seq int64) error {
	r.mu.Lock()
	current := r.isCurrentLocked() && seq <= r.last.Seq
	r.mu.Unlock()
	if current {
		return nil
	}
	if err := r.refreshWithRetry(ctx, func() bool { return r.canWaitAt(seq) }); err != nil {
		return err
	}
	return r.confirmEnd(ctx, seq)
}

// canWaitAt reports whether a reader at seq can wait for events while the log does not
// answer.
func (r *run) canWaitAt(seq int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	isRead := r.loaded && r.record != nil
	return isRead && r.hearsOfEventsLocked() && seq <= r.last.Seq
}

// hearsOfEventsLocked reports whether new events of the run reach this instance without a read: it appends them
// itself, has a live subscription, or is the only one that uses the log.
func (r *run) hearsOfEventsLocked() bool {
	return r.writer != nil || r.eventSub != nil || r.log.alone
}

// confirmEnd reads from the stream's leader when seq is beyond the last known event. Another
// instance may have sent the reader events that our replica does not have yet.
func (r *run) confirmEnd(ctx context.Context, seq int64) error {
	r.mu.Lock()
	known := seq <= r.last.Seq || r.isGoneLocked()
	r.mu.Unlock()
	if known {
		return nil
	}
	m, err := r.log.readLastFromLeader(ctx, runsName, runSubject(r.id, eventToken))
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.stale = true
	if m != nil {
		r.liveHead = max(r.liveHead, m.pos) // refresh repeats its read until it finds this message
	}
	r.mu.Unlock()
	return r.refreshWithRetry(ctx, func() bool { return false })
}

// tailPage returns the events of the tail that follow seq.
func (r *run) tailPage(seq int64) (event.Page, pageSource, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastUsed = time.Now()
	first := r.last.Seq + 1
	if len(r.tail) > 0 {
		first = r.tail[0].Seq
	}
	switch {
	case r.isGoneLocked():
		return event.Page{}, fromTail, event.ErrGone
	case seq < 0, seq > r.last.Seq:
		return event.Page{}, fromTail, event.ErrInvalidPosition
	case seq < first-1:
		return event.Page{}, fromHistory, nil
	}
	events := r.tail[seq-first+1:]
	page := event.Page{Events: events[:len(events):len(events)], Ended: r.last.Terminal()}
	if page.Ended || len(events) > 0 {
		return page, fromTail, nil
	}
	if r.writer == nil && r.eventSub == nil && !r.log.alone {
		return event.Page{}, afterSubscribe, nil
	}
	if r.more == nil {
		r.more = make(chan struct{})
	}
	if r.writer != nil {
		r.writer.queue.Hurry()
	}
	page.More = r.more
	return page, fromTail, nil
}

// subscribeEvents makes the run's live subscription, and returns when the subscription is
// active.
func (r *run) subscribeEvents(ctx context.Context) error {
	log := r.log
	r.mu.Lock()
	if r.evicted {
		r.mu.Unlock()
		return nil
	}
	if r.eventSub == nil {
		sub, err := log.read.ChanSubscribe(liveSubject(r.id, eventToken), log.live)
		if err != nil {
			r.mu.Unlock()
			return unavailableError("follow a run", err)
		}
		r.eventSub = sub
	}
	r.stale = true
	r.mu.Unlock()
	return log.flushSubscriptions(ctx)
}

// flushSubscriptions returns when the server has processed all subscriptions made before.
func (l *Log) flushSubscriptions(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := l.read.FlushWithContext(ctx); err != nil {
		return unavailableError("follow a run", err)
	}
	return nil
}

// HasRemoteReader implements event.Log.
func (l *Log) HasRemoteReader(ctx context.Context, id string) bool {
	if l.embedded != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	for asked := 0; asked < 2 && ctx.Err() == nil; { // core NATS may lose a request
		attempt, cancel := context.WithTimeout(ctx, readerQueryTimeout)
		m := nats.NewMsg(readerSubject)
		m.Data = []byte(id)
		m.Header.Set(writerHeader, l.instanceID)
		_, err := l.read.RequestMsgWithContext(attempt, m)
		cancel()
		switch {
		case err == nil:
			return true
		case errors.Is(err, context.DeadlineExceeded):
			asked++
		default: // the request was not sent, because the connection is lost
			select {
			case <-time.After(retryInterval):
			case <-ctx.Done():
			case <-l.ctx.Done():
				return false
			}
		}
	}
	return false
}

// answerReaderQueries answers the requests of HasRemoteReader of other instances.
func (l *Log) answerReaderQueries() error {
	_, err := l.read.Subscribe(readerSubject, func(m *nats.Msg) {
		defer l.recoverPanic("answer whether a run is read")
		if m.Header.Get(writerHeader) == l.instanceID {
			return
		}
		if r := l.cachedRun(string(m.Data)); r != nil && r.hasReader() {
			_ = m.Respond(nil) // the other instance asks twice
		}
	})
	if err != nil {
		return unavailableError("subscribe to queries", err)
	}
	return nil
}

// hasReader reports whether the run has a reader here. A waiting reader is woken every
// pollInterval and asks again, which sets lastUsed.
func (r *run) hasReader() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.eventSub != nil && time.Since(r.lastUsed) < 2*pollInterval
}
