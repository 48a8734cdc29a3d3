package jetstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

// job is an event.Job. Its message in the work queue stays while the run is executed:
// delivered to this log and kept alive, or on its way to somebody who will ask whether
// the run is held here and leave it. While the run is parked it is put off, until the
// time that the run waits for at most. The second message that a job can have is the one
// that an input brings, which is there at once.
type job struct {
	log     *Log
	writer  *writer
	id      string
	request []byte

	mu     sync.Mutex           // guards leases
	leases map[string]*delivery // the messages that were delivered to this log, by subject
}

// CreateJob implements event.Jobs.
func (l *Log) CreateJob(ctx context.Context, run string, request []byte) (event.Job, error) {
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
	j := &job{log: l, writer: w, id: run, request: request, leases: make(map[string]*delivery)}
	l.mu.Lock()
	if l.held[run] != nil {
		l.mu.Unlock()
		return nil, event.ErrFenced
	}
	l.held[run] = j // before anybody can be told of the job and ask
	l.mu.Unlock()
	if err = l.put(ctx, run, reqKind, request); err == nil {
		err = l.enqueue(ctx, jobRoot+run)
	}
	if err != nil {
		l.drop(j)
		return nil, err
	}
	return j, nil
}

// enqueue makes a message of a job, unless there is one.
func (l *Log) enqueue(ctx context.Context, subject string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, event.ErrUnavailable)
	defer cancel()
	m := nats.NewMsg(subject)
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

// keep takes a message of the job: the first time, or again after its lease was
// forgotten.
func (j *job) keep(m *delivery) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.leases[m.subject] = m
}

// lease is the job's message of a subject, nil if it was not delivered to this log.
func (j *job) lease(root string) *delivery {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.leases[root+j.id]
}

// Run implements event.Job.
func (j *job) Run() string { return j.id }

// Request implements event.Job.
func (j *job) Request() []byte { return j.request }

// Attempt implements event.Job.
func (j *job) Attempt() int { return j.writer.attempt }

// Lost implements event.Job.
func (j *job) Lost() <-chan struct{} { return j.writer.lost }

// Done implements event.Job. A message that is with somebody else stays: he finds that the
// run has ended.
func (j *job) Done(ctx context.Context) error {
	defer j.log.drop(j)
	if j.isLost() {
		return nil // it is somebody else's
	}
	return errors.Join(j.acknowledge(ctx, jobRoot), j.acknowledge(ctx, wakeRoot))
}

// Release implements event.Job. What is held back is appended first.
func (j *job) Release(ctx context.Context) error {
	err := j.writer.give(ctx, released, nil)
	j.log.drop(j)
	if errors.Is(err, event.ErrFenced) {
		return nil // somebody has taken it already
	}
	here := false
	for _, root := range []string{jobRoot, wakeRoot} {
		if lease := j.lease(root); lease != nil && lease.giveBack(0) == nil {
			here = true
		}
	}
	if here {
		return err
	}
	// The messages that there are, are with others, who were told to leave the run alone
	// for a while. A new one is there at once.
	return errors.Join(err, j.log.forgetJob(ctx, wakeRoot+j.id), j.log.enqueue(ctx, wakeRoot+j.id))
}

// Park implements event.Job. The message is put off, so that it is never not there; who
// gets one finds in the run until when.
func (j *job) Park(ctx context.Context, seen int64, until time.Time) error {
	p := parking{seen: seen, until: until}
	err := j.writer.give(ctx, parked, p.header())
	j.log.drop(j)
	if errors.Is(err, event.ErrFenced) {
		return nil
	}
	if lease := j.lease(jobRoot); lease != nil {
		err = errors.Join(err, lease.giveBack(p.left()))
	}
	if err := errors.Join(err, j.acknowledge(ctx, wakeRoot)); err != nil {
		return err
	}
	return j.log.rouse(ctx, j.id, seen)
}

// rouse wakes a parked run for which something came between the last look and now:
// whoever gave it may have found a message there that is gone now.
func (l *Log) rouse(ctx context.Context, run string, seen int64) error {
	page, err := l.inputs(ctx, run, seen)
	if err == nil && len(page) > 0 {
		err = l.enqueue(ctx, wakeRoot+run)
	}
	return err
}

// acknowledge takes one message of the job out of the queue, if this log has it.
func (j *job) acknowledge(ctx context.Context, root string) error {
	lease := j.lease(root)
	if lease == nil {
		return nil
	}
	return lease.done(ctx)
}
