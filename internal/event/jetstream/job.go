package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

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

	mu     sync.Mutex        // guards leases
	leases map[string]js.Msg // the messages that were delivered to this log, by subject
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
	j := &job{log: l, writer: w, id: run, request: request, leases: make(map[string]js.Msg)}
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

// enqueue makes a message of a job, unless there is one. A header may follow.
func (l *Log) enqueue(ctx context.Context, subject string, header ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, event.ErrUnavailable)
	defer cancel()
	m := nats.NewMsg(subject)
	if len(header) == 2 {
		m.Header.Set(header[0], header[1])
	}
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
func (j *job) keep(m js.Msg) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.leases[m.Subject()] = m
}

// lease is the job's message of a subject, nil if it was not delivered to this log.
func (j *job) lease(root string) js.Msg {
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

// Done implements event.Job.
func (j *job) Done(ctx context.Context) error {
	defer j.log.drop(j)
	if j.isLost() {
		return nil // it is somebody else's
	}
	return j.remove(ctx)
}

// Release implements event.Job. What is held back is appended first.
func (j *job) Release(ctx context.Context) error {
	err := j.writer.give(ctx, event.ErrFenced)
	j.log.drop(j)
	if errors.Is(err, event.ErrFenced) {
		return nil // somebody has taken it already
	}
	if lease := j.lease(jobRoot); lease != nil && lease.Nak() == nil {
		return errors.Join(err, j.acknowledge(ctx, wakeRoot))
	}
	// The message is with somebody who was told to leave the run alone for a while.
	return errors.Join(err, j.remove(ctx), j.log.enqueue(ctx, jobRoot+j.id))
}

// Park implements event.Job. The message is put off, so that it is never not there.
func (j *job) Park(ctx context.Context, seen int64, until time.Time) error {
	err := j.writer.give(ctx, event.ErrFenced)
	j.log.drop(j)
	if errors.Is(err, event.ErrFenced) {
		return nil
	}
	wait := parkedFor
	if !until.IsZero() {
		wait = min(max(time.Until(until), time.Millisecond), parkedFor)
	}
	lease := j.lease(jobRoot)
	if lease == nil || lease.NakWithDelay(wait) != nil {
		// It is with somebody else, who would claim the run when he looks at it again.
		err = errors.Join(err, j.remove(ctx), j.log.enqueue(ctx, jobRoot+j.id, notBeforeHeader, strconv.FormatInt(time.Now().Add(wait).UnixMilli(), 10)))
	}
	if err := errors.Join(err, j.acknowledge(ctx, wakeRoot)); err != nil {
		return err
	}
	// Something may have come between the executor's last look and now; whoever gave it
	// may have found a message there that is gone now.
	page, err := j.log.inputs(ctx, j.id, seen)
	if err == nil && len(page) > 0 {
		err = j.log.enqueue(ctx, wakeRoot+j.id)
	}
	return err
}

// parkedFor is how long a run is parked that no time was said for; it is claimed then
// and can be parked again.
const parkedFor = 24 * time.Hour

// putOff is how much longer a job's message is to be left alone.
func putOff(m js.Msg) time.Duration {
	ms, err := strconv.ParseInt(m.Headers().Get(notBeforeHeader), 10, 64)
	if err != nil {
		return 0
	}
	return time.Until(time.UnixMilli(ms))
}

// remove takes the job out of the queue.
func (j *job) remove(ctx context.Context) error {
	return errors.Join(j.acknowledge(ctx, jobRoot), j.acknowledge(ctx, wakeRoot))
}

// acknowledge takes one message of the job out of the queue.
func (j *job) acknowledge(ctx context.Context, root string) error {
	switch lease := j.lease(root); {
	case lease != nil:
		acked, cancel := context.WithTimeout(ctx, tryTimeout)
		defer cancel()
		if lease.DoubleAck(acked) == nil {
			return nil
		}
	case root == wakeRoot:
		return nil // there is seldom one, and whoever gets it finds out what it is worth
	}
	return j.log.forget(ctx, jobsName, root+j.id)
}
