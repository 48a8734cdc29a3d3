package jetstream

import (
	"context"
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
			if err := r.look(ctx, func() bool { return r.holds(seq) }); err != nil {
				return event.Page{}, err
			}
			if err := r.reach(ctx, seq); err != nil {
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
	return r.loaded && r.record != nil && (r.sub != nil || r.writer != nil) && seq <= r.last.Seq
}

// reach makes sure that a position which is not known here is none: who asks may have it
// from another process, which was told of it sooner.
func (r *run) reach(ctx context.Context, seq int64) error {
	r.mu.Lock()
	known := seq <= r.last.Seq || r.goneLocked()
	r.mu.Unlock()
	if known {
		return nil
	}
	m, err := r.log.lastAtLeader(ctx, runsName, r.subject(evKind))
	if err != nil {
		return err
	}
	r.mu.Lock()
	if r.stale = true; m != nil {
		r.seen = max(r.seen, m.at) // what is read has to have it
	}
	r.mu.Unlock()
	return r.look(ctx, func() bool { return false })
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
		return event.Page{}, nothing, event.ErrInvalidPosition
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
