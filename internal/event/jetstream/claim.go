package jetstream

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

// How one instance takes a run over from another
//
// A delivery from the work queue does not entitle an instance to execute the run. A server that restarts forgets
// leases, and delivers jobs again although their executors are alive. So the instance that gets a delivery reads who
// wrote the run's last message, and asks that instance whether it still executes the run (isClaimedBy). If it answers
// yes, the delivery is delayed. If it answers no, or does not answer for half a lease, the asking instance appends a
// claim after the run's last message.
//
// The append of the claim expects the last message that was read. If the old executor has
// written since, the claim fails. If the claim succeeds, the old executor's next append fails
// (ErrFenced). So only one instance can write, even if two of them execute the run for a while.

const (
	// claimAttempts bounds the claims that are tried for one delivery while the run's old executor keeps writing.
	claimAttempts = 20
	// ownerQueries bounds how often isClaimedBy asks the last writer of a run, and ownerQueryTimeout how
	// long each answer may take.
	ownerQueries      = 3
	ownerQueryTimeout = 500 * time.Millisecond
	// maxUnresponsive bounds Log.unresponsive.
	maxUnresponsive = 1000
)

// Claim implements event.Jobs. It pulls one message at a time, because a message that was pulled in advance would wait
// here until its lease ends. The pull requests expire soon, because the server loses them when it restarts.
func (l *Log) Claim(ctx context.Context) (event.Job, error) {
	for {
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case l.ctx.Err() != nil:
			return nil, unavailableError("claim a run", l.ctx.Err())
		}
		msg := l.waitForDelivery(ctx)
		if msg == nil {
			continue
		}
		j, err := l.claimDelivery(ctx, msg)
		switch {
		case err != nil && ctx.Err() != nil:
			_ = msg.returnAfter(0) // so that another instance claims the run at once
		case err != nil:
			l.logger.WarnContext(ctx, "a run could not be claimed", "run_id", lastToken(msg.subject), "error", err)
			_ = msg.returnAfter(l.lease) // if this fails, the end of the lease has the same effect
		case j != nil:
			return j, nil
		}
	}
}

// waitForDelivery waits for a job's message, usually up to pullTimeout, and returns nil if there was none. It does not
// pull messages while the disk of an embedded log is full, because no run can be claimed then.
func (l *Log) waitForDelivery(ctx context.Context) *delivery {
	if !l.diskFull.Load() {
		d, err := l.pullDelivery(ctx)
		if err == nil || errors.Is(err, errNoJob) {
			return d
		}
		if errors.Is(err, errNoConsumer) {
			l.restoreConsumer(ctx)
		}
	}
	l.pause(ctx, retryInterval) // the server cannot be reached, or its disk is full
	return nil
}

// claimDelivery claims the run of a delivery and returns its job. It returns nil if the run must not be claimed: it has
// ended, is parked, or is executed by this or another instance. The delivery is then delayed, acknowledged, or added to
// the job of this instance. After an error, the caller must return the delivery to the queue. The error is
// event.ErrFenced if the old executor has written during each of claimAttempts claims.
func (l *Log) claimDelivery(ctx context.Context, msg *delivery) (event.Job, error) {
	id := lastToken(msg.subject)
	if !l.beginClaim(id) {
		return nil, msg.returnAfter(retryInterval)
	}
	defer l.endClaim(id)
	if active := l.activeJob(id); active != nil {
		active.addDelivery(msg)
		return nil, nil
	}
	for range claimAttempts {
		state, err := l.readRunState(ctx, id)
		switch {
		case errors.Is(err, event.ErrGone), errors.Is(err, event.ErrNotFound), err == nil && state.last.Terminal():
			return nil, msg.acknowledge(ctx)
		case err != nil:
			return nil, err
		}
		if hasExecutor, err := l.deferToExecutor(ctx, id, state, msg); hasExecutor || err != nil {
			return nil, err
		}
		j, err := l.appendClaim(ctx, id, state, msg)
		if !errors.Is(err, event.ErrFenced) {
			return j, err
		}
		// The old executor did not answer, but has written since readRunState.
	}
	return nil, event.ErrFenced
}

// beginClaim reserves a run for one call of Claim, until endClaim. It reports false if another call examines the run. A
// job can have two messages, and the call that gets one of them must not claim the run from the call that got the
// other.
func (l *Log) beginClaim(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.claiming[id] {
		return false
	}
	l.claiming[id] = true
	return true
}

// endClaim ends the reservation of beginClaim.
func (l *Log) endClaim(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.claiming, id)
}

// runState is the state of a run on which a claim depends.
type runState struct {
	record *record
	last   event.Event // the last event; its Seq is 0 if there is none
	by     writerID    // of the run's last message, or of its job if it has no message
	head   uint64      // the pos of the run's last message, 0 if there is none
	park   parkRecord  // set if by.kind is kindParked

	// The claim repeats the last event. If the event is in parts, parts is the partsHeader that refers to them;
	// otherwise data is the JSON of the event.
	data  []byte
	parts string
}

// readRunState reads the record and the last message of a run. It returns event.ErrGone if the run was deleted, and
// event.ErrNotFound if there is no record.
func (l *Log) readRunState(ctx context.Context, id string) (state runState, err error) {
	last, err := l.readLastFromLeader(ctx, runsName, runSubject(id, eventToken))
	if err != nil {
		return state, err
	}
	if state.record, err = l.readRecord(ctx, id); err != nil {
		return state, err
	}
	if state.record.Gone {
		return state, event.ErrGone
	}
	if last == nil { // the run's creator has not written its first event yet
		request, err := l.readRequest(ctx, id)
		if err == nil && request != nil {
			state.by, err = parseWriterID(request.header)
		}
		return state, err
	}
	state.head = last.pos
	state.data = last.data
	state.parts = last.header.Get(partsHeader)
	state.park = parseParkRecord(last.header)
	state.last, state.by, err = l.readEvent(ctx, *last)
	if state.by.inBatch { // the payload of a batch is not just the event
		state.data = state.last.JSON
		state.parts = ""
	}
	return state, err
}

// deferToExecutor reports whether the run must not be claimed, because it stays parked or another instance executes it.
// It has then delayed or removed the delivery. It blocks while it asks the other instance (isClaimedBy).
func (l *Log) deferToExecutor(ctx context.Context, id string, state runState, msg *delivery) (hasExecutor bool, _ error) {
	switch {
	case state.by.kind == kindReleased:
		return false, nil
	case state.by.kind == kindParked:
		return l.keepParked(ctx, id, state.park, msg)
	case state.by.instance == l.instanceID:
		return false, nil // claimDelivery has found no job of the run here: this instance does not execute it any more
	}
	// Delay the delivery before asking. If the executor releases the run right after its answer,
	// the message that it then adds to the queue takes precedence. If this process dies, the job
	// is delivered again sooner than after a lease.
	delay := l.lease/2 + rand.N(l.lease/2)
	if err := msg.requestReply(ctx, nakPayload(delay)); err != nil {
		return false, err
	}
	if l.isClaimedBy(ctx, state.by.instance, id) {
		return true, nil
	}
	return false, msg.extendLease() // instead of the delay
}

// keepParked reports whether a parked run stays parked: its wake time has not come, and it has no input that its
// executor had not read. It has then delayed the delivery, or removed it if it is a wake message.
func (l *Log) keepParked(ctx context.Context, id string, parked parkRecord, msg *delivery) (staysParked bool, _ error) {
	if !parked.until.IsZero() && !l.Now().Before(parked.until) {
		return false, nil
	}
	inputs, err := l.readInputs(ctx, id, parked.seen)
	if err != nil || len(inputs) > 0 {
		return false, err
	}
	if msg.subject != wakePrefix+id {
		return true, msg.returnAfter(parked.remainingDelay(l.Now()))
	}
	if err := msg.acknowledge(ctx); err != nil {
		return true, err
	}
	return true, l.wakeIfInput(ctx, id, parked.seen)
}

// appendClaim appends a claim after the run's last message, makes this instance the writer of the run, and returns the
// job, to which it adds the delivery. It returns event.ErrFenced if the run has a message that is newer than state.
func (l *Log) appendClaim(ctx context.Context, id string, state runState, d *delivery) (event.Job, error) {
	j, err := l.newClaimedJob(ctx, id, d)
	if err != nil {
		return nil, err
	}
	by := writerID{instance: l.instanceID, attempt: state.by.attempt + 1, seq: state.last.Seq, kind: kindClaim}
	m := nats.NewMsg(runSubject(id, eventToken))
	m.Header.Set(writerHeader, by.String())

	if state.parts != "" {
		m.Header.Set(partsHeader, state.parts)
	} else if err := l.setPayload(ctx, id, m, state.data); err != nil {
		return nil, err
	}

	pos, err := l.publishAfter(ctx, runsName, m, state.head, appendTimeout)
	if err != nil {
		return nil, err
	}
	r, err := l.getRun(id)
	if err != nil {
		return nil, err
	}
	j.writer = newWriter(r, pos, state.last, by.attempt)

	l.updateRun(r, func() {
		r.record = state.record
		r.writer = j.writer
		if tailIsCurrent := r.loaded && r.head == state.head; !tailIsCurrent { // otherwise keep its events for readers
			r.setTailLocked(state.last, state.head, state.by)
		}
		r.last = state.last
		r.head = pos
		r.loaded = true
		r.stale = false
		l.jobs[id] = j // l.mu is held
		r.wakeReadersLocked()
	})
	return j, nil
}

// newClaimedJob returns the job of a run that this instance is about to claim, with its request, if the log has one,
// and the delivery. The job has no writer yet.
func (l *Log) newClaimedJob(ctx context.Context, id string, d *delivery) (*job, error) {
	j := &job{log: l, id: id, deliveries: map[string]*delivery{d.subject: d}}
	request, err := l.readRequest(ctx, id)
	if err != nil || request == nil {
		return j, err
	}
	j.request, err = l.readPayload(ctx, *request)
	return j, err
}

// isClaimedBy asks an instance whether it executes a run. An instance that does not answer may be dead or reconnecting.
// So isClaimedBy asks up to ownerQueries times, a quarter of a lease apart, before it reports false. It reports true if
// ctx ends, or if no request could be sent because the connection of this process is lost: then the run must not be
// claimed.
func (l *Log) isClaimedBy(ctx context.Context, instance, id string) bool {
	if instance == "" || l.embedded != nil { // the earlier processes of an embedded log have ended
		return false
	}
	sent := false // whether at least one request was sent
	for query := range ownerQueries {
		if l.isUnresponsive(instance) {
			return false
		}
		attempt, cancel := context.WithTimeout(ctx, ownerQueryTimeout)
		answer, err := l.read.RequestWithContext(attempt, claimedPrefix+instance, []byte(id))
		cancel()
		if err == nil {
			return string(answer.Data) == "1"
		}
		sent = sent || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrNoResponders)
		if query == ownerQueries-1 {
			break
		}
		select {
		case <-time.After(l.lease / 4):
		case <-ctx.Done():
			return true
		}
	}
	if !sent {
		return true
	}
	l.setUnresponsive(instance)
	return false
}

// isUnresponsive reports whether an instance has left requests of isClaimedBy unanswered less than a lease ago. All its
// runs are then claimed without asking it again.
func (l *Log) isUnresponsive(instance string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.unresponsive[instance]) < l.lease
}

// setUnresponsive records that an instance did not answer. It clears a full map: an instance that is forgotten is asked
// again.
func (l *Log) setUnresponsive(instance string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.unresponsive) > maxUnresponsive {
		clear(l.unresponsive)
	}
	l.unresponsive[instance] = time.Now()
}

// answerOwnerQueries subscribes to the requests that isClaimedBy of other instances sends. They are answered until
// Close.
func (l *Log) answerOwnerQueries() error {
	_, err := l.read.Subscribe(claimedPrefix+l.instanceID, func(m *nats.Msg) {
		defer l.recoverPanic("answer whether a run is executed here")
		answer := []byte("0")
		if l.activeJob(string(m.Data)) != nil {
			answer = []byte("1")
		}
		_ = m.Respond(answer) // if the answer is lost, the other instance asks again
	})
	if err != nil {
		return unavailableError("subscribe to queries", err)
	}
	return nil
}

// heartbeatLoop extends the leases of all jobs that this instance executes, three times per lease, until Close.
func (l *Log) heartbeatLoop() {
	tick := time.NewTicker(l.lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.mu.Lock()
			jobs := slices.Collect(maps.Values(l.jobs))
			l.mu.Unlock()
			for _, j := range jobs {
				l.extendLeases(j)
			}
		case <-l.ctx.Done():
			return
		}
	}
}

// extendLeases extends the leases of one job. After a panic, heartbeatLoop continues with the next job.
func (l *Log) extendLeases(j *job) {
	defer l.recoverPanic("keep a lease")
	j.extendLeases()
}
