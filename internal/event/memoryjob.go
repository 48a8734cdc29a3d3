package event

import (
	"context"
	"sync"
	"time"
)

// memoryJobs are the runs of a Memory log that nobody executes and somebody should.
type memoryJobs struct {
	mu     sync.Mutex // guards the fields below; taken after a run's own mutex
	queue  []*memoryJob
	queued chan struct{} // closed when the queue is no longer empty; nil when nobody waits
}

// memoryJob is a Job. The process that holds it is the only one there is, so it is
// never lost; what is not held is in the queue, or parked.
type memoryJob struct {
	log     *Memory
	run     *memoryRun
	request []byte

	// What follows is guarded by the run's mutex.
	held    bool
	parked  bool
	alarm   *time.Timer // wakes the parked run; nil where nothing will
	attempt int
}

// CreateJob implements Jobs.
func (m *Memory) CreateJob(_ context.Context, run string, request []byte) (Job, error) {
	if len(request) > MaxResult {
		return nil, ErrTooLarge
	}
	r, err := m.run(run)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case m.expired(r):
		return nil, ErrGone
	case !r.ended.IsZero():
		return nil, ErrEnded
	case r.job != nil:
		return nil, ErrFenced
	}
	r.job = &memoryJob{log: m, run: r, request: request, held: true, attempt: 1}
	return r.job, nil
}

// Claim implements Jobs.
func (m *Memory) Claim(ctx context.Context) (Job, error) {
	for {
		job, queued := m.jobs.take()
		if job != nil {
			if job.claim() {
				return job, nil
			}
			continue // the run was deleted meanwhile
		}
		select {
		case <-queued:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// take returns the first job of the queue, or what is closed once there is one.
func (q *memoryJobs) take() (*memoryJob, <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		if q.queued == nil {
			q.queued = make(chan struct{})
		}
		return nil, q.queued
	}
	job := q.queue[0]
	q.queue = q.queue[1:]
	return job, nil
}

func (q *memoryJobs) put(j *memoryJob) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = append(q.queue, j)
	wake(&q.queued)
}

func (j *memoryJob) claim() bool {
	j.run.mu.Lock()
	defer j.run.mu.Unlock()
	if j.run.gone || !j.run.ended.IsZero() {
		return false
	}
	j.held, j.attempt = true, j.attempt+1
	return true
}

// Run implements Job.
func (j *memoryJob) Run() string { return j.run.run.ID }

// Request implements Job.
func (j *memoryJob) Request() []byte { return j.request }

// Attempt implements Job.
func (j *memoryJob) Attempt() int {
	j.run.mu.Lock()
	defer j.run.mu.Unlock()
	return j.attempt
}

// Lost implements Job: there is nobody to whom a memory log could lose a run.
func (j *memoryJob) Lost() <-chan struct{} { return nil }

// Done implements Job.
func (j *memoryJob) Done(context.Context) error {
	j.run.mu.Lock()
	defer j.run.mu.Unlock()
	j.run.job = nil
	return nil
}

// Release implements Job.
func (j *memoryJob) Release(context.Context) error {
	j.run.mu.Lock()
	j.held = false
	j.run.mu.Unlock()
	j.log.jobs.put(j)
	return nil
}

// Park implements Job.
func (j *memoryJob) Park(_ context.Context, seen int64, until time.Time) error {
	j.run.mu.Lock()
	j.held = false
	j.parked = int64(len(j.run.inbox.inputs)) <= seen && !j.run.gone
	queue := !j.parked
	if j.parked && !until.IsZero() {
		j.alarm = time.AfterFunc(time.Until(until), j.wake)
	}
	j.run.mu.Unlock()
	if queue {
		j.log.jobs.put(j)
	}
	return nil
}

// wake puts a parked job into the queue.
func (j *memoryJob) wake() {
	j.run.mu.Lock()
	woken := j.parked
	j.parked = false
	j.disarmLocked()
	j.run.mu.Unlock()
	if woken {
		j.log.jobs.put(j)
	}
}

func (j *memoryJob) disarmLocked() {
	if j.alarm != nil {
		j.alarm.Stop()
		j.alarm = nil
	}
}
