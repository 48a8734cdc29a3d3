package jetstream

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

// maxParkDelay bounds how long the message of a parked job is delayed. When the delay ends, an
// instance checks the run and delays the message again.
const maxParkDelay = 24 * time.Hour

// job implements event.Job. Until Done, the work queue holds a message of the job. While the run
// is executed, the message is delivered to this instance, which extends its lease, or to an
// instance that will find out that the run is executed here. While the run is parked, the
// message is delayed. An input adds a second message (wakePrefix), which is delivered at once.
type job struct {
	log     *Log
	writer  *writer
	id      string
	request []byte

	mu         sync.Mutex           // guards deliveries
	deliveries map[string]*delivery // those delivered to this instance, by subject
}

// CreateJob implements event.Jobs.
func (l *Log) CreateJob(ctx context.Context, id string, request []byte) (event.Job, error) {
	if len(request) > event.MaxResult {
		return nil, event.ErrTooLarge
	}
	w, err := l.writerFor(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := w.checkWritable(); err != nil {
		return nil, err
	}
	j := &job{log: l, writer: w, id: id, request: request, deliveries: make(map[string]*delivery)}
	// Register first, because another instance that gets the message asks whether we execute the
	// run.
	if !l.addJob(j) {
		return nil, event.ErrFenced
	}
	if err = l.enqueueRequest(ctx, w, request); err != nil {
		l.removeJob(j)
		return nil, err
	}
	return j, nil
}

// maxJobRequest is up to how many bytes a request is stored in the message of its job. The queue has a
// sixteenth of MaxBytes for all jobs.
const maxJobRequest = 2 << 10

// enqueueRequest adds the job of a run to the queue, with its request.
func (l *Log) enqueueRequest(ctx context.Context, w *writer, request []byte) error {
	id := w.run.id
	msg := nats.NewMsg(jobPrefix + id)
	if l.batches && len(request) <= maxJobRequest {
		msg.Data = request
		msg.Header.Set(writerHeader, writerID{instance: l.instanceID, attempt: 1}.String())
	} else if err := l.savePayload(ctx, id, requestToken, request); err != nil {
		return err
	}
	if l.alone {
		if sent, err := w.sendAhead(jobsName, msg, l.awaitSent); sent {
			return err
		}
	}
	return l.publishUnordered(ctx, "enqueue a run", msg, isDuplicate)
}

// readRequest returns the message that has the request of a run: that of its job, or one of the run if the
// request is large or an older version stored it. It returns nil if the log has none.
func (c *client) readRequest(ctx context.Context, id string) (*message, error) {
	m, err := c.readLastFromLeader(ctx, jobsName, jobPrefix+id)
	hasRequest := m != nil && m.header.Get(writerHeader) != ""
	if err != nil || hasRequest {
		return m, err
	}
	return c.readLast(ctx, runsName, runSubject(id, requestToken))
}

// addJob registers a job that this instance executes, unless the run has one already.
func (l *Log) addJob(j *job) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs[j.id] != nil {
		return false
	}
	l.jobs[j.id] = j
	return true
}

// removeJob removes a job that this instance no longer executes.
func (l *Log) removeJob(j *job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs[j.id] == j {
		delete(l.jobs, j.id)
	}
}

// activeJob returns the job of a run that this instance executes, or nil.
func (l *Log) activeJob(id string) *job {
	l.mu.Lock()
	j := l.jobs[id]
	l.mu.Unlock()
	if j == nil || j.writer.isLost() {
		return nil
	}
	return j
}

// addDelivery registers a message of the job, so that its lease is extended from now on.
func (j *job) addDelivery(d *delivery) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.deliveries[d.subject] = d
}

// deliveryOf returns the job's message with a prefix, or nil if this instance does not have it.
func (j *job) deliveryOf(prefix string) *delivery {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.deliveries[prefix+j.id]
}

// extendLeases extends the leases of the job's messages.
func (j *job) extendLeases() {
	if j.writer.isLost() {
		return // another instance executes the run; if that dies, its lease must end
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, d := range j.deliveries {
		_ = d.extendLease() // it runs three times in a lease, so one may fail
	}
}

// Run implements event.Job.
func (j *job) Run() string { return j.id }

// Request implements event.Job.
func (j *job) Request() []byte { return j.request }

// Attempt implements event.Job.
func (j *job) Attempt() int { return j.writer.attempt }

// Lost implements event.Job.
func (j *job) Lost() <-chan struct{} { return j.writer.lost }

// Done implements event.Job. A message that another instance has stays in the queue until that
// instance finds that the run has ended and removes it.
func (j *job) Done(ctx context.Context) error {
	defer j.log.removeJob(j)
	if j.writer.isLost() {
		return nil // another instance has the job
	}
	var failed error
	for _, prefix := range []string{jobPrefix, wakePrefix} {
		if d := j.deliveryOf(prefix); d != nil {
			failed = errors.Join(failed, d.acknowledgeEnded(ctx))
		}
	}
	return failed
}

// Release implements event.Job. It first stores the events that wait.
func (j *job) Release(ctx context.Context) error {
	err := j.writer.relinquish(ctx, kindReleased, nil)
	j.log.removeJob(j)
	if errors.Is(err, event.ErrFenced) {
		return nil // another instance has claimed the run
	}
	returned := false
	for _, prefix := range []string{jobPrefix, wakePrefix} {
		if d := j.deliveryOf(prefix); d != nil && d.returnAfter(0) == nil {
			returned = true
		}
	}
	if returned {
		return err
	}
	// Other instances hold the messages, and delayed them because the run was executed here. A
	// new message is delivered at once.
	return errors.Join(err, j.log.removeJobMessage(ctx, wakePrefix+j.id), j.log.enqueueJob(ctx, wakePrefix+j.id))
}

// Park implements event.Job. It delays the message instead of removing it, so that the queue
// always holds the job. The run's last message records until when the run is parked.
func (j *job) Park(ctx context.Context, seen int64, until time.Time) error {
	p := parkRecord{seen: seen, until: until}
	err := j.writer.relinquish(ctx, kindParked, p.toHeader())
	j.log.removeJob(j)
	if errors.Is(err, event.ErrFenced) {
		return nil
	}
	if d := j.deliveryOf(jobPrefix); d != nil {
		err = errors.Join(err, d.returnAfter(p.remainingDelay(j.log.Now())))
	}
	if err := errors.Join(err, j.acknowledgeDelivery(ctx, wakePrefix)); err != nil {
		return err
	}
	return j.log.wakeIfInput(ctx, j.id, seen)
}

// wakeIfInput wakes a parked run that has an input after seen. The instance that added the input
// may have found the old wake message in the queue, which has been acknowledged since, and so
// added none.
func (l *Log) wakeIfInput(ctx context.Context, id string, seen int64) error {
	inputs, err := l.readInputs(ctx, id, seen)
	if err == nil && len(inputs) > 0 {
		err = l.enqueueJob(ctx, wakePrefix+id)
	}
	return err
}

// acknowledgeDelivery removes a message of the job from the queue if this instance has it.
func (j *job) acknowledgeDelivery(ctx context.Context, prefix string) error {
	d := j.deliveryOf(prefix)
	if d == nil {
		return nil
	}
	return d.acknowledge(ctx)
}

// parkRecord records what a parked run waits for. It is stored in the headers of the run's last
// message.
type parkRecord struct {
	seen  int64     // wakes for an input after this position
	until time.Time // or at this time; a zero time means never
}

// toHeader returns the header that stores p.
func (p parkRecord) toHeader() nats.Header {
	h := nats.Header{seenHeader: {strconv.FormatInt(p.seen, 10)}}
	if !p.until.IsZero() {
		h.Set(untilHeader, strconv.FormatInt(p.until.UnixMilli(), 10))
	}
	return h
}

// parseParkRecord parses the headers that header made. A malformed time counts as past.
func parseParkRecord(h nats.Header) (p parkRecord) {
	p.seen, _ = strconv.ParseInt(h.Get(seenHeader), 10, 64)
	if until := h.Get(untilHeader); until != "" {
		ms, _ := strconv.ParseInt(until, 10, 64)
		p.until = time.UnixMilli(ms)
	}
	return p
}

// remainingDelay returns the time from now until the run is to be woken, at most maxParkDelay.
func (p parkRecord) remainingDelay(now time.Time) time.Duration {
	if p.until.IsZero() {
		return maxParkDelay
	}
	return min(max(p.until.Sub(now), time.Millisecond), maxParkDelay)
}
