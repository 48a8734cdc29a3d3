package jetstream

import (
	"context"
	"errors"
	"time"

	"answerd/internal/event"
)

// readPatience is how long a reader waits for a log that is away: a cluster needs a
// moment to find another leader, and a connection another server.
const readPatience = 2 * time.Second

// look refreshes the tail, unless what there is will do.
func (r *run) look(ctx context.Context, willDo func() bool) error {
	until := time.Now().Add(readPatience)
	for {
		err := r.refresh(ctx)
		switch {
		case !errors.Is(err, event.ErrUnavailable):
			return err
		case willDo():
			return nil
		}
		select {
		case <-time.After(tryInterval):
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

// refresh brings the tail up to what the stream has. One caller reads, the others use
// what it found.
func (r *run) refresh(ctx context.Context) error {
	r.fill.Lock()
	defer r.fill.Unlock()
	for try := 0; ; try++ {
		r.mu.Lock()
		rec, seen := r.record, r.seen
		if r.currentLocked() && r.at >= seen {
			r.mu.Unlock()
			return nil
		}
		if time.Since(r.failed) < failedFor {
			r.mu.Unlock()
			return unavailable("read the log", errRecently)
		}
		r.stale = false // what comes from now on makes it stale again
		r.mu.Unlock()
		err := r.load(ctx, rec)
		r.mu.Lock()
		if err != nil {
			r.stale = true
			if errors.Is(err, event.ErrUnavailable) {
				r.failed = time.Now()
			}
			r.mu.Unlock()
			return err
		}
		behind := r.at < r.seen
		r.stale = r.stale || behind
		r.mu.Unlock()
		// A replica that lags behind its leader has not got what we were told of.
		if !behind || try == 20 {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil
		}
	}
}

// load reads the record, unless it is known, and the newest events.
func (r *run) load(ctx context.Context, rec *record) error {
	found, err := r.log.last(ctx, runsName, r.subject(evKind))
	if err != nil {
		return err
	}
	if rec == nil || found == nil { // without an event, it may have been deleted meanwhile
		if rec, err = r.log.readRecord(ctx, r.id); err != nil {
			return err
		}
	}
	if found == nil && !rec.Gone {
		if rec.Gone, err = r.log.dropped(ctx, rec); err != nil {
			return err
		}
	}
	r.mu.Lock()
	r.record, r.checked = rec, time.Now()
	loaded, from := r.loaded, r.at
	gap := uint64(0)
	if found != nil {
		gap = found.at - from
	}
	r.mu.Unlock()
	switch {
	case found == nil:
		r.mu.Lock()
		r.loaded = true
		r.mu.Unlock()
		return nil
	case found.at <= from:
		return nil
	case loaded && gap < 4*maxBatch: // likely few of them ours
		return r.catchUp(ctx, from)
	}
	e, by, err := r.log.event(ctx, *found)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if found.at > r.at {
		r.tail, r.tailAt, r.bytes = nil, nil, 0
		r.last, r.at, r.by, r.loaded = e, found.at, by, true
		if !by.silent() && e.Seq > 0 {
			r.tail, r.tailAt, r.bytes = []event.Event{e}, []uint64{found.at}, len(e.JSON)
		}
		r.wakeLocked()
	}
	return nil
}

// stillborn is how long a run may be without its first event. What begins a run takes
// 30 s at most, so whoever created it has died, or was told that it failed.
const stillborn = time.Minute

// dropped reports whether a run that has no events will never have any, or has lost
// them all in a stream that is full: what is left there is younger than the run.
func (l *Log) dropped(ctx context.Context, rec *record) (bool, error) {
	if time.Since(rec.Created) > stillborn {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	info, err := l.runsStream.Info(ctx)
	if err != nil {
		return false, unavailable("read the log", err)
	}
	return info.State.Bytes > uint64(l.maxBytes)/4*3 && info.State.FirstTime.After(rec.Created), nil
}

// catchUp reads what follows the message at from.
func (r *run) catchUp(ctx context.Context, from uint64) error {
	for {
		found, more, err := r.log.batch(ctx, runsName, query{Next: r.subject(evKind), From: from + 1})
		if err != nil {
			return err
		}
		for _, m := range found {
			e, by, err := r.log.event(ctx, m)
			if err != nil {
				return err
			}
			r.mu.Lock()
			if by.silent() {
				r.passLocked(m.at, by)
			} else {
				r.pushLocked(e, m.at, max(r.at, from), by)
			}
			r.mu.Unlock()
			from = m.at
		}
		if !more || len(found) == 0 {
			return nil
		}
	}
}

// passLocked takes in a message that is no event.
func (r *run) passLocked(at uint64, by writerID) {
	if at > r.at {
		r.at, r.by = at, by
	}
}
