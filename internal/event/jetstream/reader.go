package jetstream

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

const (
	// readerQueryTimeout is how long HasRemoteReader waits for an answer. Instances without a reader do not answer.
	readerQueryTimeout = time.Second
	// readerQueries is how often HasRemoteReader asks, because core NATS may lose a request.
	readerQueries = 2
)

// pageSource says where After gets a page from.
type pageSource int

const (
	fromTail       pageSource = iota // the page is complete and comes from the tail
	fromHistory                      // the events are older than the tail and must be read from the stream
	afterSubscribe                   // the run needs its live subscription first; After then starts again
)

// After implements event.Log. New events come from the run's writer if this instance is the writer, and otherwise from
// the live subscription that all readers of the run share. Older events are read from the stream.
func (l *Log) After(ctx context.Context, id string, seq int64) (event.Page, error) {
	for {
		r, err := l.getOrAddRun(id)
		if err != nil {
			return event.Page{}, err
		}
		if err := r.refreshForReader(ctx, seq); err != nil {
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

// Settled implements event.Log. It returns the channel only once new events of the run reach this instance, so that the
// end of the run cannot be missed.
func (l *Log) Settled(ctx context.Context, id string) (<-chan struct{}, error) {
	for {
		r, err := l.getOrAddRun(id)
		if err != nil {
			return nil, err
		}
		if err := r.refreshForReader(ctx, 0); err != nil {
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

// settledChannel returns the channel for Settled, which is closed if the run has settled. It returns nil and no error
// if the run needs its live subscription first.
func (r *run) settledChannel() (<-chan struct{}, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastUsed = time.Now()
	if r.isGoneLocked() {
		return nil, event.ErrGone
	}
	if !r.last.Settled() && !r.receivesEventsLocked() {
		return nil, nil
	}
	if r.settled == nil {
		r.settled = make(chan struct{})
	}
	settled := r.settled
	if r.last.Settled() {
		close(settled)
		r.settled = nil
	}
	return settled, nil
}

// refreshForReader brings the cache up to date for a reader at position seq. If the log does not answer, it returns nil
// anyway if the reader can wait for live events with the cache as it is.
func (r *run) refreshForReader(ctx context.Context, seq int64) error {
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

// canWaitAt reports whether a reader at position seq can wait for live events with the cache as it is, although the log
// does not answer.
func (r *run) canWaitAt(seq int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	wasRead := r.loaded && r.record != nil
	return wasRead && r.receivesEventsLocked() && seq <= r.last.Seq
}

// receivesEventsLocked reports whether new events of the run reach this instance without a read. They do if this
// instance is the writer, has a live subscription, or is the log's only instance. The caller holds r.mu.
func (r *run) receivesEventsLocked() bool {
	return r.writer != nil || r.eventSub != nil || r.log.alone
}

// confirmEnd makes sure that the cache has all events up to seq that exist. If seq is beyond the cache, another
// instance may have sent the reader events that the replica which answered this instance does not have yet. So
// confirmEnd asks the stream's leader for the run's last message, and refreshes the cache until it has that message.
func (r *run) confirmEnd(ctx context.Context, seq int64) error {
	r.mu.Lock()
	isConfirmed := seq <= r.last.Seq || r.isGoneLocked()
	r.mu.Unlock()
	if isConfirmed {
		return nil
	}
	m, err := r.log.readLastFromLeader(ctx, runsName, runSubject(r.id, eventToken))
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.stale = true
	if m != nil {
		r.livePos = max(r.livePos, m.Pos) // refreshCache repeats its read until it finds this message
	}
	r.mu.Unlock()
	return r.refreshWithRetry(ctx, nil)
}

// tailPage returns the page for a reader at position seq, if the tail has the reader's next events or the reader is at
// the end of the run. Otherwise the page is empty, and source says what After must do: read the history, or subscribe
// first. For a reader at the end, tailPage also makes the writer store queued events at once, and page.More is closed
// when the run has another event. The run counts as used, so that it is not evicted soon. The error is event.ErrGone if
// the run is gone, or event.ErrInvalidPosition if seq is negative or beyond the last event.
func (r *run) tailPage(seq int64) (_ event.Page, source pageSource, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastUsed = time.Now()
	first := r.last.Seq + 1 // number of the tail's first event, or of the next event if the tail is empty
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
	events := r.tail[seq+1-first:] // from event seq+1 on
	page := event.Page{Events: events[:len(events):len(events)], Ended: r.last.Terminal()}
	if page.Ended || len(events) > 0 {
		return page, fromTail, nil
	}
	if !r.receivesEventsLocked() {
		return event.Page{}, afterSubscribe, nil
	}
	if r.more == nil {
		r.more = make(chan struct{})
	}
	if r.writer != nil {
		r.writer.queue.Hurry() // an event may wait in the queue
	}
	page.More = r.more
	return page, fromTail, nil
}

// subscribeEvents creates the run's live subscription, if it has none, and waits until the server has processed it. It
// marks the run as stale, because events may have been stored before the subscription became active. It does nothing if
// the run was evicted.
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

// flushSubscriptions waits until the server has processed all subscriptions that were made before the call.
func (l *Log) flushSubscriptions(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := l.read.FlushWithContext(ctx); err != nil {
		return unavailableError("follow a run", err)
	}
	return nil
}

// HasRemoteReader implements event.Log. It asks all other instances, and only those with a reader answer. An embedded
// log has no other instances, so the result is false.
func (l *Log) HasRemoteReader(ctx context.Context, id string) bool {
	if l.embedded != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	for queries := 0; queries < readerQueries && ctx.Err() == nil; {
		err := l.queryReaders(ctx, id)
		switch {
		case err == nil:
			return true
		case errors.Is(err, context.DeadlineExceeded): // no instance has a reader, or the request was lost
			queries++
		default: // the request was not sent, because the connection is lost
			if !l.pause(ctx, retryInterval) {
				return false
			}
		}
	}
	return false
}

// queryReaders asks all other instances whether they have a reader of the run. It returns nil if one of them has.
func (l *Log) queryReaders(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, readerQueryTimeout)
	defer cancel()
	m := nats.NewMsg(readerSubject)
	m.Data = []byte(id)
	m.Header.Set(writerHeader, l.instanceID)
	_, err := l.read.RequestMsgWithContext(ctx, m)
	return err
}

// answerReaderQueries subscribes to the requests that other instances send in HasRemoteReader, and answers them until
// Close.
func (l *Log) answerReaderQueries() error {
	_, err := l.read.Subscribe(readerSubject, func(m *nats.Msg) {
		defer l.recoverPanic("answer whether a run is read")
		if m.Header.Get(writerHeader) == l.instanceID {
			return
		}
		if r := l.cachedRun(string(m.Data)); r != nil && r.hasReader() {
			_ = m.Respond(nil) // if the answer is lost, the other instance asks again
		}
	})
	if err != nil {
		return unavailableError("subscribe to queries", err)
	}
	return nil
}

// hasReader reports whether a reader of the run is waiting in this instance, or was less than 2 pollIntervals ago. A
// waiting reader is woken every pollInterval and asks again, which sets lastUsed.
func (r *run) hasReader() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.eventSub != nil && time.Since(r.lastUsed) < 2*pollInterval
}
