package jetstream

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

// Claim implements event.Jobs. One message at a time, and not for long: what is asked
// for in advance would wait here for a lease, and a question does not outlive a restart
// of the server.
func (l *Log) Claim(ctx context.Context) (event.Job, error) {
	for {
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case l.ctx.Err() != nil:
			return nil, unavailable("claim a run", l.ctx.Err())
		}
		m := l.fetch(ctx)
		if m == nil {
			continue
		}
		j, err := l.take(ctx, m)
		switch {
		case err != nil && ctx.Err() != nil:
			_ = m.giveBack(0) // others go on claiming
			continue
		case err != nil:
			l.logger.WarnContext(ctx, "a run could not be claimed", "run_id", lastToken(m.subject), "error", err)
			// Whatever it was, it may be over then; and the lease brings it back as well.
			_ = m.giveBack(l.lease)
			continue
		}
		if j != nil {
			return j, nil
		}
	}
}

// fetch waits a moment for a job's message; nil if there is none.
func (l *Log) fetch(ctx context.Context) *delivery {
	m, err := l.pull(ctx)
	if err == nil || errors.Is(err, errNoJob) {
		return m
	}
	select { // the server is away, or the question could not be asked
	case <-time.After(tryInterval):
	case <-ctx.Done():
	}
	return nil
}

// take makes a job of its message, or returns nil where it is not to be executed by
// this call.
func (l *Log) take(ctx context.Context, m *delivery) (event.Job, error) {
	id := lastToken(m.subject)
	if !l.reserve(id) {
		return nil, m.giveBack(tryInterval)
	}
	defer l.unreserve(id)
	if mine := l.holder(id); mine != nil {
		mine.keep(m)
		return nil, nil
	}
	for range 20 {
		last, err := l.lastAtLeader(ctx, runsName, runRoot+runSubject(id)+"."+evKind)
		if err != nil {
			return nil, err
		}
		run, err := l.state(ctx, id, last)
		switch {
		case errors.Is(err, event.ErrGone), errors.Is(err, event.ErrNotFound), err == nil && run.last.Terminal():
			return nil, m.done(ctx)
		case err != nil:
			return nil, err
		case run.by.kind == released:
		case run.by.kind == parked:
			if stays, err := l.stays(ctx, id, run.parking, m); stays || err != nil {
				return nil, err
			}
		case run.by.log != l.name:
			if held, err := l.leave(ctx, run.by.log, id, m); held || err != nil {
				return nil, err
			}
		}
		j, err := l.claim(ctx, id, run, m)
		if !errors.Is(err, event.ErrFenced) {
			return j, err
		}
		// Its owner wrote meanwhile, unheard; look again.
	}
	return nil, event.ErrFenced
}

// reserve keeps other calls of Claim away from a run: a job can have two messages, and who
// has the second one would take the run from who has the first.
func (l *Log) reserve(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taking[id] {
		return false
	}
	l.taking[id] = true
	return true
}

func (l *Log) unreserve(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.taking, id)
}

// leave puts off the message of a run that another log may hold, and reports whether it
// does: whoever holds it may get it then. It is put off first: if the run is given up
// right after the answer, that has the last word; and if this process dies, somebody
// else has it the sooner.
func (l *Log) leave(ctx context.Context, holder, id string, m *delivery) (bool, error) {
	if err := m.putOff(ctx, l.lease/2+rand.N(l.lease/2)); err != nil {
		return false, err
	}
	if l.holds(ctx, holder, id) {
		return true, nil
	}
	return false, m.keepAlive()
}

// state is where a run stands.
type state struct {
	record *record
	last   event.Event
	at     uint64
	by     writerID
	parts  string // of the last event
	data   []byte

	parking parking // of a run that is parked
}

func (l *Log) state(ctx context.Context, id string, last *message) (s state, err error) {
	if s.record, err = l.readRecord(ctx, id); err != nil {
		return s, err
	}
	if s.record.Gone {
		return s, event.ErrGone
	}
	if last == nil { // but there is somebody who is about to write
		request, err := l.last(ctx, runsName, runRoot+runSubject(id)+"."+reqKind)
		if err == nil && request != nil {
			s.by, err = parseWriter(request.header.Get(writerHeader))
		}
		return s, err
	}
	s.at, s.data, s.parts = last.at, last.data, last.header.Get(partsHeader)
	s.parking = parkingOf(last.header)
	s.last, s.by, err = l.event(ctx, *last)
	return s, err
}

// claim appends at the head of a run, which fences whoever wrote it before.
func (l *Log) claim(ctx context.Context, id string, s state, m *delivery) (event.Job, error) {
	request, err := l.last(ctx, runsName, runRoot+runSubject(id)+"."+reqKind)
	if err != nil {
		return nil, err
	}
	j := &job{log: l, id: id, leases: map[string]*delivery{m.subject: m}}
	if request != nil {
		if j.request, err = l.unpack(ctx, *request); err != nil {
			return nil, err
		}
	}
	by := writerID{log: l.name, attempt: s.by.attempt + 1, seq: s.last.Seq, kind: claimed}
	c := nats.NewMsg(runRoot + runSubject(id) + "." + evKind)
	c.Header.Set(writerHeader, by.String())
	if c.Data = s.data; s.parts != "" {
		c.Header.Set(partsHeader, s.parts)
	}
	at, err := l.publish(ctx, runsName, c, s.at, patience)
	if err != nil {
		return nil, err
	}
	r, err := l.run(id)
	if err != nil {
		return nil, err
	}
	j.writer = newWriter(r, at, s.last, by.attempt)
	l.adopt(r, func() {
		r.record, r.writer = s.record, j.writer
		if r.at != s.at || !r.loaded { // else the tail is up to date
			r.tail, r.tailAt, r.bytes = nil, nil, 0
			if !s.by.silent() && s.last.Seq > 0 {
				r.tail, r.tailAt, r.bytes = []event.Event{s.last}, []uint64{s.at}, len(s.last.JSON)
			}
		}
		r.last, r.at, r.by, r.loaded, r.stale = s.last, at, by, true, false
		l.held[id] = j
		r.wakeLocked()
	})
	return j, nil
}
