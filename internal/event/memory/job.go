package memory

import (
	"context"
	"sync"
	"time"
)

// jobQueue holds the jobs that wait for a Claim, in the order in which they were released or woken.
type jobQueue struct {
	mu   sync.Mutex // guards the fields below; locked after a run's own mutex
	jobs []*job
	more chan struct{} // closed when a job is added; nil while no caller waits
}

// job implements event.Job. It is in one of three states: claimed by this process, parked, or in the queue. A claimed
// job is never lost, because no other process can read the log.
type job struct {
	queue   *jobQueue
	run     *run
	request []byte

	// The run's mutex guards the fields below.
	claimed bool
	parked  bool
	timer   *time.Timer // wakes the parked run; nil if only an input can wake it
	attempt int
}

// size estimates the size of j, in bytes.
func (j *job) size() int64 { return int64(cap(j.request)) + entryOverhead }

// removeFirst removes and returns the first job of the queue. If the queue is empty, it returns nil and a channel that
// is closed when a job is added.
func (q *jobQueue) removeFirst() (*job, <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.jobs) == 0 {
		return nil, waitChannel(&q.more)
	}
	j := q.jobs[0]
	q.jobs = q.jobs[1:]
	return j, nil
}

// addJob adds a job to the end of the queue and wakes the callers of Claim.
func (q *jobQueue) addJob(j *job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.jobs = append(q.jobs, j)
	wakeWaiters(&q.more)
}

// markClaimed marks the job as claimed by this process. It returns false if the run has ended or was dropped.
func (j *job) markClaimed() bool {
	j.run.mu.Lock()
	defer j.run.mu.Unlock()
	if j.run.dropped || !j.run.ended.IsZero() {
		return false
	}
	j.claimed, j.attempt = true, j.attempt+1
	return true
}

// Run implements event.Job.
func (j *job) Run() string { return j.run.record.ID }

// Request implements event.Job.
func (j *job) Request() []byte { return j.request }

// Attempt implements event.Job.
func (j *job) Attempt() int {
	j.run.mu.Lock()
	defer j.run.mu.Unlock()
	return j.attempt
}

// Lost implements event.Job. The channel is nil, because no other process can claim the run.
func (j *job) Lost() <-chan struct{} { return nil }

// Done implements event.Job. It also stops counting the request's size.
func (j *job) Done(context.Context) error {
	r := j.run
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.job == j && !r.dropped {
		r.otherBytes -= j.size()
		r.usage.count(r.countLocked())
	}
	r.job = nil
	return nil
}

// Release implements event.Job. It adds the job to the queue.
func (j *job) Release(context.Context) error {
	j.run.mu.Lock()
	j.claimed = false
	j.run.mu.Unlock()
	j.queue.addJob(j)
	return nil
}

// Park implements event.Job. The job is woken by an input, or at the time until if that is not zero. If the run already
// has an input after seen, or was dropped, the job goes into the queue at once.
func (j *job) Park(_ context.Context, seen int64, until time.Time) error {
	j.run.mu.Lock()
	j.claimed = false
	j.parked = int64(len(j.run.inbox.inputs)) <= seen && !j.run.dropped
	if j.parked && !until.IsZero() {
		j.timer = time.AfterFunc(time.Until(until), j.wakeIfParked)
	}
	parked := j.parked
	j.run.mu.Unlock()
	if !parked {
		j.queue.addJob(j)
	}
	return nil
}

// wakeIfParked moves the job into the queue if it is parked.
func (j *job) wakeIfParked() {
	j.run.mu.Lock()
	wasParked := j.parked
	j.parked = false
	j.stopTimerLocked()
	j.run.mu.Unlock()
	if wasParked {
		j.queue.addJob(j)
	}
}

// stopTimerLocked stops the timer of a parked job, if one is set. The caller holds the run's mutex.
func (j *job) stopTimerLocked() {
	if j.timer != nil {
		j.timer.Stop()
		j.timer = nil
	}
}
