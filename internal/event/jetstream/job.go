package jetstream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
)

// job is an event.Job. Its message in the work queue stays while the run is executed:
// delivered to this log and kept alive, or on its way to somebody who will ask whether
// the run is held here and leave it.
type job struct {
	log     *Log
	writer  *writer
	id      string
	request []byte

	mu    sync.Mutex // guards lease
	lease js.Msg     // nil until the message was delivered to this log
}

// Hold implements event.Jobs.
func (l *Log) Hold(ctx context.Context, run string, request []byte) (event.Job, error) {
	if len(request) > event.MaxResult {
		return nil, event.ErrTooLarge
	}
	w, err := l.writing(ctx, run)
	if err != nil {
		return nil, err
	}
	if err := w.open(); err != nil {
		return nil, err
	}
	j := &job{log: l, writer: w, id: run, request: request}
	l.mu.Lock()
	if l.held[run] != nil {
		l.mu.Unlock()
		return nil, event.ErrFenced
	}
	l.held[run] = j // before anybody can be told of the job and ask
	l.mu.Unlock()
	if err = l.put(ctx, run, reqKind, request); err == nil {
		err = l.enqueue(ctx, run)
	}
	if err != nil {
		l.drop(j)
		return nil, err
	}
	return j, nil
}

// enqueue makes the job of a run, unless there is one.
func (l *Log) enqueue(ctx context.Context, run string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, event.ErrUnavailable)
	defer cancel()
	m := nats.NewMsg(jobRoot + run)
	for {
		_, err := l.tryPublish(ctx, m)
		switch {
		case err == nil, limited(err): // it is there, or an earlier attempt of ours
			return nil
		case refused(err):
			return fmt.Errorf("enqueue a run: %w", err)
		}
		select {
		case <-time.After(tryInterval):
		case <-ctx.Done():
			return unavailable("enqueue a run", err)
		case <-l.ctx.Done():
			return unavailable("enqueue a run", err)
		}
	}
}

func (l *Log) drop(j *job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[j.id] == j {
		delete(l.held, j.id)
	}
}

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
		if err != nil {
			l.logger.WarnContext(ctx, "a run could not be claimed", "run_id", lastToken(m.Subject()), "error", err)
			// Whatever it was, it may be over then; and the lease brings it back as well.
			_ = m.NakWithDelay(l.lease)
			continue
		}
		if j != nil {
			return j, nil
		}
	}
}

// fetch waits a moment for a job's message.
func (l *Log) fetch(ctx context.Context) js.Msg {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	batch, err := l.workers.Fetch(1, js.FetchContext(ctx))
	if err == nil {
		if m := <-batch.Messages(); m != nil {
			return m
		}
		if batch.Error() == nil {
			return nil
		}
	}
	select { // the server is away, or the question could not be asked
	case <-time.After(tryInterval):
	case <-ctx.Done():
	}
	return nil
}

// take makes a job of its message, or returns nil where it is not to be executed by
// this call.
func (l *Log) take(ctx context.Context, m js.Msg) (event.Job, error) {
	id := lastToken(m.Subject())
	l.mu.Lock()
	mine := l.held[id]
	l.mu.Unlock()
	if mine != nil {
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
			return nil, m.Ack()
		case err != nil:
			return nil, err
		case run.by.log != l.name && l.holds(ctx, run.by.log, id, m):
			return nil, m.NakWithDelay(l.lease/2 + rand.N(l.lease/2)) // whoever holds it may get it then
		}
		j, err := l.claim(ctx, id, run, m)
		if !errors.Is(err, event.ErrFenced) {
			return j, err
		}
		// Its owner wrote meanwhile, unheard; look again.
	}
	return nil, event.ErrFenced
}

// state is where a run stands.
type state struct {
	record *record
	last   event.Event
	at     uint64
	by     writerID
	parts  string // of the last event
	data   []byte
}

func (l *Log) state(ctx context.Context, id string, last *message) (s state, err error) {
	if s.record, err = l.readRecord(ctx, id); err != nil {
		return s, err
	}
	if s.record.Gone {
		return s, event.ErrGone
	}
	if last == nil {
		return s, nil
	}
	s.at, s.data, s.parts = last.at, last.data, last.header.Get(partsHeader)
	s.last, s.by, err = l.event(ctx, *last)
	return s, err
}

// claim appends at the head of a run, which fences whoever wrote it before.
func (l *Log) claim(ctx context.Context, id string, s state, m js.Msg) (event.Job, error) {
	request, err := l.last(ctx, runsName, runRoot+runSubject(id)+"."+reqKind)
	if err != nil {
		return nil, err
	}
	j := &job{log: l, id: id, lease: m}
	if request != nil {
		if j.request, err = l.unpack(ctx, *request); err != nil {
			return nil, err
		}
	}
	by := writerID{log: l.name, attempt: s.by.attempt + 1, seq: s.last.Seq, claim: true}
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
			if !s.by.claim && s.last.Seq > 0 {
				r.tail, r.tailAt, r.bytes = []event.Event{s.last}, []uint64{s.at}, len(s.last.JSON)
			}
		}
		r.last, r.at, r.by, r.loaded, r.stale = s.last, at, by, true, false
		l.held[id] = j
		r.wakeLocked()
	})
	return j, nil
}

// holds asks a log whether it holds a run. A server that restarts forgets leases that
// were kept alive, and redelivers jobs whose owners are well. Nobody answering can mean
// a log that is just connecting again, so that is asked twice.
func (l *Log) holds(ctx context.Context, log, run string, m js.Msg) bool {
	if log == "" {
		return false
	}
	for try := range 2 {
		l.mu.Lock()
		dead := time.Since(l.dead[log]) < l.lease
		l.mu.Unlock()
		if dead {
			return false
		}
		asked, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		answer, err := l.read.RequestWithContext(asked, heldRoot+log, []byte(run))
		cancel()
		if err == nil {
			return string(answer.Data) == "1"
		}
		if try == 1 {
			break
		}
		_ = m.InProgress() // if not, the lease ends and somebody else asks
		select {
		case <-time.After(l.lease / 5):
		case <-ctx.Done():
			return true
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.dead) > 1000 { // names of logs that died in the course of time
		clear(l.dead)
	}
	l.dead[log] = time.Now()
	return false
}

// answerHeld answers such questions.
func (l *Log) answerHeld() error {
	_, err := l.read.Subscribe(heldRoot+l.name, func(m *nats.Msg) {
		l.mu.Lock()
		held := l.held[string(m.Data)] != nil
		l.mu.Unlock()
		answer := []byte("0")
		if held {
			answer = []byte("1")
		}
		_ = m.Respond(answer) // whoever asked asks again
	})
	if err != nil {
		return unavailable("listen for questions", err)
	}
	return nil
}

// heartbeat keeps the leases of all jobs that are held.
func (l *Log) heartbeat() {
	tick := time.NewTicker(l.lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.mu.Lock()
			held := make([]*job, 0, len(l.held))
			for _, j := range l.held {
				held = append(held, j)
			}
			l.mu.Unlock()
			for _, j := range held {
				j.mu.Lock()
				if j.lease != nil {
					_ = j.lease.InProgress() // the next one may get through
				}
				j.mu.Unlock()
			}
		case <-l.ctx.Done():
			return
		}
	}
}

// keep takes the job's message: the first time, or again after its lease was forgotten.
func (j *job) keep(m js.Msg) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lease = m
}

// Run implements event.Job.
func (j *job) Run() string { return j.id }

// Request implements event.Job.
func (j *job) Request() []byte { return j.request }

// Attempt implements event.Job.
func (j *job) Attempt() int { return j.writer.attempt }

// Lost implements event.Job.
func (j *job) Lost() <-chan struct{} { return j.writer.lost }

// Done implements event.Job.
func (j *job) Done(ctx context.Context) error {
	defer j.log.drop(j)
	return j.remove(ctx)
}

// Release implements event.Job. What is held back is appended first.
func (j *job) Release(ctx context.Context) error {
	err := j.writer.give(ctx, event.ErrFenced)
	j.log.drop(j)
	if errors.Is(err, event.ErrFenced) {
		return nil // somebody has taken it already
	}
	j.mu.Lock()
	lease := j.lease
	j.mu.Unlock()
	if lease != nil {
		if nak := lease.Nak(); nak == nil {
			return err
		}
	}
	// The message is with somebody who was told to leave the run alone for a while.
	return errors.Join(err, j.remove(ctx), j.log.enqueue(ctx, j.id))
}

// Park implements event.Job.
func (j *job) Park(ctx context.Context, seen int64) error {
	err := j.writer.give(ctx, event.ErrFenced)
	j.log.drop(j)
	if errors.Is(err, event.ErrFenced) {
		return nil
	}
	if err := errors.Join(err, j.remove(ctx)); err != nil {
		return err
	}
	// Something may have come between the executor's last look and now; whoever gave it
	// was told that the run has a job.
	page, err := j.log.inputs(ctx, j.id, seen)
	if err == nil && len(page) > 0 {
		err = j.log.enqueue(ctx, j.id)
	}
	return err
}

// remove takes the job out of the queue.
func (j *job) remove(ctx context.Context) error {
	j.mu.Lock()
	lease := j.lease
	j.mu.Unlock()
	if lease != nil {
		acked, cancel := context.WithTimeout(ctx, tryTimeout)
		defer cancel()
		if lease.DoubleAck(acked) == nil {
			return nil
		}
	}
	return j.log.forget(ctx, jobsName, jobRoot+j.id)
}
