package jetstream

import (
	"context"
	"strings"
	"time"

	"answerd/internal/event"
)

// After implements event.Log. What is new in a run comes from its writer, if that is
// here, or from the run's one live subscription; the stream is asked for the rest.
func (l *Log) After(ctx context.Context, id string, seq int64) (event.Page, error) {
	for {
		r, err := l.run(id)
		if err != nil {
			return event.Page{}, err
		}
		r.mu.Lock()
		current := r.currentLocked() && seq <= r.last.Seq
		r.mu.Unlock()
		if !current {
			if err := r.refresh(ctx); err != nil && !r.holds(seq) {
				return event.Page{}, err
			}
		}
		page, next, err := r.page(seq)
		switch {
		case err != nil:
			return event.Page{}, err
		case next == readHistory:
			return r.history(ctx, seq)
		case next == followFirst:
			// Only what is read once the subscription is there is sure to be all.
			if err := r.follow(ctx); err != nil {
				return event.Page{}, err
			}
			continue
		}
		return page, nil
	}
}

// step is what a reader needs first.
type step int

const (
	nothing step = iota
	readHistory
	followFirst
)

// holds reports whether a reader at seq can wait here until the log is back.
func (r *run) holds(seq int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loaded && r.record != nil && r.sub != nil && seq <= r.last.Seq
}

// page is what the tail has for a reader at seq.
func (r *run) page(seq int64) (event.Page, step, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used = time.Now()
	first := r.last.Seq + 1
	if len(r.tail) > 0 {
		first = r.tail[0].Seq
	}
	switch {
	case r.goneLocked():
		return event.Page{}, nothing, event.ErrGone
	case seq < 0, seq > r.last.Seq:
		return event.Page{}, nothing, event.ErrNoPosition
	case seq < first-1:
		return event.Page{}, readHistory, nil
	}
	events := r.tail[seq-first+1:]
	p := event.Page{Events: events[:len(events):len(events)], Ended: r.last.Terminal()}
	if p.Ended || len(events) > 0 {
		return p, nothing, nil
	}
	if r.writer == nil && r.sub == nil {
		return event.Page{}, followFirst, nil
	}
	if r.more == nil {
		r.more = make(chan struct{})
	}
	p.More = r.more
	return p, nothing, nil
}

// follow subscribes to what is appended to the run from now on.
func (r *run) follow(ctx context.Context) error {
	l := r.log
	r.mu.Lock()
	if r.dropped {
		r.mu.Unlock()
		return nil
	}
	if r.sub == nil {
		sub, err := l.read.ChanSubscribe(liveRoot+runSubject(r.id)+"."+evKind, l.live)
		if err != nil {
			r.mu.Unlock()
			return unavailable("follow a run", err)
		}
		r.sub = sub
	}
	r.stale = true
	r.mu.Unlock()
	return l.settle(ctx)
}

// settle returns when the server knows all subscriptions made before.
func (l *Log) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := l.read.FlushWithContext(ctx); err != nil {
		return unavailable("follow a run", err)
	}
	return nil
}

// dispatch takes live messages to their runs. It never waits for anything: what it
// cannot use makes a run stale, and whoever reads that run asks the stream.
func (l *Log) dispatch() {
	for {
		select {
		case m := <-l.live:
			f := strings.Split(m.Subject, ".") // answerd live SHARD ID KIND …
			if len(f) < 5 {
				continue
			}
			if r := l.known(f[3]); r != nil {
				r.deliver(messageOf(m), f[4])
			}
		case <-l.stale:
			l.each(func(r *run) {
				r.stale = true
				r.wakeLocked()
				r.wakeInLocked()
			})
		case <-l.ctx.Done():
			return
		}
	}
}

// hint says that live messages may be missing: the connection was away, or we were too
// slow.
func (l *Log) hint() {
	select {
	case l.stale <- struct{}{}:
	default:
	}
}

// deliver takes in one live message.
func (r *run) deliver(m message, kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if kind == inKind {
		r.wakeInLocked()
		return
	}
	r.seen = max(r.seen, m.at)
	if m.at <= r.at {
		return
	}
	by, err := parseWriter(m.header.Get(writerHeader))
	if err != nil || !r.loaded || m.before != r.at || m.header.Get(partsHeader) != "" {
		r.stale = true
		r.wakeLocked()
		return
	}
	if by.claim {
		r.claimedLocked(m.at, by)
		return
	}
	e, err := event.Decode(m.data)
	if err != nil {
		r.log.logger.Error("an event of the log cannot be read", "run_id", r.id, "error", err)
		r.stale = true
		return
	}
	r.pushLocked(e, m.at, m.before, by)
}

// each calls f with every run, locked.
func (l *Log) each(f func(*run)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.runs {
		r.mu.Lock()
		f(r)
		r.mu.Unlock()
	}
}
