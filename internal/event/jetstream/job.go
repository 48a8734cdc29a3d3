package jetstream

import (
	"context"
	"errors"
	"fmt"
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
