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

// maxParkDelay bounds how long the message of a parked job is delayed at a time. When the delay ends, an instance
// checks the run and delays the message again.
const maxParkDelay = 24 * time.Hour

// firstAttempt is the event.Job.Attempt of the instance that creates a run.
const firstAttempt = 1

// job implements event.Job. Until Done, the work queue holds a message for the job (jobPrefix). While the run is
// executed, that message is delivered to this instance, which extends its lease, or to another instance, which finds
// out that the run is executed here (isClaimedBy). While the run is parked, the message is delayed. An input adds a
// second message (wakePrefix), which is delivered at once.
type job struct {
	log     *Log
	writer  *writer
	id      string
	request []byte // the request passed to CreateJob; nil if the log has lost it (repairRuns)

	mu         sync.Mutex           // guards deliveries
	deliveries map[string]*delivery // the job's messages that were delivered to this instance, by subject
}

// CreateJob implements event.Jobs. It also returns event.ErrFenced if this instance already executes the run.
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
	// Register the job first, because another instance that gets the message asks whether this instance executes the
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

// maxJobRequest is the largest request, in bytes, that is stored in its job's message. It is small, because the queue
// for all jobs gets only a sixteenth of MaxBytes.
const maxJobRequest = 2 << 10

// enqueueRequest adds the job of a run to the queue. A small request is stored in the job's message. A larger one is
// stored first, in a message of the run. If no other process uses the log, enqueueRequest only sends the job's message,
// and the run's first append waits until it is stored (sendAhead).
func (l *Log) enqueueRequest(ctx context.Context, w *writer, request []byte) error {
	id := w.run.id
	msg := nats.NewMsg(jobPrefix + id)
	if l.batches && len(request) <= maxJobRequest {
		msg.Data = request
		msg.Header.Set(writerHeader, messageInfo{instance: l.instanceID, attempt: firstAttempt}.String())
	} else if err := l.savePayload(ctx, id, requestToken, request); err != nil {
		return err
	}
	if l.alone {
		isEarly, err := w.sendAhead(jobsName, msg, l.awaitSent)
		if isEarly {
			return err
		}
	}
	return l.publishUnordered(ctx, "enqueue a run", msg, isDuplicate)
}

// readRequest returns the message that holds a run's request. This is the job's message, or a message of the run if the
// request is large or was stored by an older version of answerd. It returns nil if the log has no request.
func (c *client) readRequest(ctx context.Context, id string) (*message, error) {
	m, err := c.readLastFromLeader(ctx, jobsName, jobPrefix+id)
	hasRequest := m != nil && m.Header.Get(writerHeader) != "" // enqueueRequest sets the header only with a request
	if err != nil || hasRequest {
		return m, err
	}
	return c.readLast(ctx, runsName, runSubject(id, requestToken))
}

// addJob registers a job that this instance executes. It returns false if a job is already registered for the run.
func (l *Log) addJob(j *job) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs[j.id] != nil {
		return false
	}
	l.jobs[j.id] = j
	return true
}

// removeJob removes the registration of j, unless another job is registered for the run by now.
func (l *Log) removeJob(j *job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs[j.id] == j {
		delete(l.jobs, j.id)
	}
}

// activeJob returns the job of a run that this instance executes. It returns nil if this instance does not execute the
// run, or has lost it to another instance.
func (l *Log) activeJob(id string) *job {
	l.mu.Lock()
	j := l.jobs[id]
	l.mu.Unlock()
	if j == nil || j.writer.isLost() {
		return nil
	}
	return j
}

// addDelivery registers a message of the job, replacing an earlier delivery of the same message. extendLeases extends
// its lease from now on.
func (j *job) addDelivery(d *delivery) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.deliveries[d.subject] = d
}

// deliveryOf returns the delivered message of the job whose subject starts with prefix, which is jobPrefix or
// wakePrefix. It returns nil if that message was not delivered to this instance.
func (j *job) deliveryOf(prefix string) *delivery {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.deliveries[prefix+j.id]
}

// extendLeases extends the leases of the job's messages, unless this instance has lost the job.
func (j *job) extendLeases() {
	if j.writer.isLost() {
		return // another instance executes the run; if that one dies, the leases must end
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, d := range j.deliveries {
		_ = d.extendLease() // heartbeatLoop tries three times per lease, so one attempt may fail
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

// Done implements event.Job. A message that was delivered to another instance stays in the queue until that instance
// sees that the run has ended and removes the message.
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

// Release implements event.Job. It stores all events of the run first.
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
	// The messages were delivered to other instances, which delayed them because the run was executed here. Replace the
	// wake message with a new one, which is delivered at once.
	return errors.Join(err, j.log.removeJobMessage(ctx, wakePrefix+j.id), j.log.enqueueJob(ctx, wakePrefix+j.id))
}

// Park implements event.Job. It delays the job's message instead of removing it, so that the queue always holds the
// job. The parkRecord is stored in a control message, which becomes the run's last message.
func (j *job) Park(ctx context.Context, seen int64, until time.Time) error {
	p := parkRecord{seen: seen, until: until}
	err := j.writer.relinquish(ctx, kindParked, p.toHeader())
	j.log.removeJob(j)
	if errors.Is(err, event.ErrFenced) {
		return nil // another instance has claimed the run
	}
	if d := j.deliveryOf(jobPrefix); d != nil {
		err = errors.Join(err, d.returnAfter(p.remainingDelay(j.log.Now())))
	}
	if d := j.deliveryOf(wakePrefix); d != nil {
		err = errors.Join(err, d.acknowledge(ctx))
	}
	if err != nil {
		return err
	}
	return j.log.wakeIfInput(ctx, j.id, seen)
}

// wakeIfInput wakes a parked run if it has an input after the position seen. Call it after a wake message was
// acknowledged. The instance that added the input may have found that message still in the queue, and may therefore
// have added none itself.
func (l *Log) wakeIfInput(ctx context.Context, id string, seen int64) error {
	inputs, err := l.readInputs(ctx, id, seen)
	if err == nil && len(inputs) > 0 {
		err = l.enqueueJob(ctx, wakePrefix+id)
	}
	return err
}

// parkRecord says what a parked run waits for. It is stored in the headers of the run's last message.
type parkRecord struct {
	seen  int64     // an input after this position wakes the run
	until time.Time // the run is also woken at this time; the zero time means never
}

// toHeader returns the headers that store p. parseParkRecord reads them.
func (p parkRecord) toHeader() nats.Header {
	h := nats.Header{seenHeader: {strconv.FormatInt(p.seen, 10)}}
	if !p.until.IsZero() {
		h.Set(untilHeader, strconv.FormatInt(p.until.UnixMilli(), 10))
	}
	return h
}

// parseParkRecord parses the headers that toHeader returns. Without these headers it returns a zero parkRecord. It
// treats a malformed time as one in the past.
func parseParkRecord(header nats.Header) (p parkRecord) {
	p.seen, _ = strconv.ParseInt(header.Get(seenHeader), 10, 64)
	if until := header.Get(untilHeader); until != "" {
		ms, _ := strconv.ParseInt(until, 10, 64)
		p.until = time.UnixMilli(ms)
	}
	return p
}

// remainingDelay returns the time from now until the run must be woken: at least 1 ms, and at most maxParkDelay.
func (p parkRecord) remainingDelay(now time.Time) time.Duration {
	if p.until.IsZero() {
		return maxParkDelay
	}
	return min(max(p.until.Sub(now), time.Millisecond), maxParkDelay)
}
