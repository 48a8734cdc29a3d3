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
// leases, and delivers jobs again although their executors are alive. So the instance that gets a delivery looks up
// which instance wrote the run's last message, and asks that instance whether it still executes the run (isClaimedBy).
// If the answer is yes, the delivery is delayed. If the answer is no, or none comes for half a lease, the asking
// instance appends a claim after the run's last message.
//
// The claim is appended on the condition that the last message is still the one that was read. If the old executor has
// written since, the claim fails. If the claim succeeds, the old executor's next append fails with ErrFenced. So only
// one instance can write, even if two of them execute the run for a while.

const (
	// claimAttempts is how often a claim is tried for one delivery while the run's old executor keeps writing.
	claimAttempts = 20
	// ownerQueries is how often isClaimedBy asks the last writer of a run. ownerQueryTimeout is how long it waits for
	// each answer.
	ownerQueries      = 3
	ownerQueryTimeout = 500 * time.Millisecond
	// maxUnresponsive is the largest number of instances in Log.unresponsive.
	maxUnresponsive = 1000
)

// Claim implements event.Jobs. It pulls one message at a time, because a message pulled in advance would stay here
// until its lease ends, while no instance executes the run. Pull requests expire soon, because the server loses them
// when it restarts.
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

// waitForDelivery waits for the message of a job, usually for up to pullTimeout. It returns nil if none arrived. While
// the disk of an embedded log is full, it pulls no messages, because no run can be claimed then.
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

// claimDelivery claims the run of a delivery and returns its job. It returns a nil job and no error if the run must not
// be claimed: the run has ended, is parked, or is executed by this or another instance. The delivery has then been
// delayed, acknowledged, or added to this instance's job. After an error, the caller must return the delivery to the
// queue. The error is event.ErrFenced if the old executor wrote something during each of claimAttempts claims.
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
		mustNotClaim, err := l.deferToExecutor(ctx, id, state, msg)
		if mustNotClaim || err != nil {
			return nil, err
		}
		j, err := l.appendClaim(ctx, id, state, msg)
		if !errors.Is(err, event.ErrFenced) {
			return j, err
		}
		// The old executor did not answer, but has appended a message since readRunState.
	}
	return nil, event.ErrFenced
}

// beginClaim reserves a run for one call of Claim until endClaim. It returns false if another call already holds the
// reservation. A job can have two messages in the queue. The reservation ensures that the calls that receive them do
// not claim the run from each other.
func (l *Log) beginClaim(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.claiming[id] {
		return false
	}
	l.claiming[id] = true
	return true
}

// endClaim releases the reservation made by beginClaim.
func (l *Log) endClaim(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.claiming, id)
}

// runState holds what a claim needs to know about a run.
type runState struct {
	record  *record
	last    event.Event // the run's newest event; its Seq is 0 if the run has none
	info    messageInfo // who wrote the run's last message, or its job's message if the run has none
	lastPos uint64      // the stream position of the run's last message; 0 if it has none
	park    parkRecord  // set if info.kind is kindParked

	// The claim repeats the last event. If that event is stored in parts, parts is the partsHeader that refers to them.
	// Otherwise data is the event's JSON.
	data  []byte
	parts string
}

// readRunState reads a run's record and its last message from the leader. It returns event.ErrGone if the run was
// deleted, and event.ErrNotFound if the run has no record.
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
			state.info, err = parseMessageInfo(request.Header)
		}
		return state, err
	}
	state.lastPos = last.Pos
	state.park = parseParkRecord(last.Header)
	state.last, state.info, err = l.readEvent(ctx, *last)
	if state.info.inBatch { // the payload of a batch is not just the event
		state.data = state.last.JSON
	} else {
		state.data = last.Data
		state.parts = last.Header.Get(partsHeader)
	}
	return state, err
}

// deferToExecutor reports whether the run must not be claimed, because it stays parked or because another instance
// executes it. If so, it has delayed or removed the delivery. It blocks while it asks the other instance (isClaimedBy).
func (l *Log) deferToExecutor(ctx context.Context, id string, state runState, msg *delivery) (mustNotClaim bool, _ error) {
	switch {
	case state.info.kind == kindReleased:
		return false, nil
	case state.info.kind == kindParked:
		return l.keepParked(ctx, id, state.park, msg)
	case state.info.instance == l.instanceID:
		return false, nil // claimDelivery found no job for the run here, so this instance does not execute it any more
	}
	// Delay the delivery before asking. If the executor releases the run right after it has answered, it adds a new
	// message to the queue, which takes precedence. If this process dies, the job is delivered again sooner than after
	// a lease.
	delay := l.lease/2 + rand.N(l.lease/2)
	if err := msg.requestReply(ctx, nakPayload(delay)); err != nil {
		return false, err
	}
	if l.isClaimedBy(ctx, state.info.instance, id) {
		return true, nil
	}
	return false, msg.extendLease() // instead of the delay
}

// keepParked reports whether a parked run stays parked: its wake time has not come, and it has no input that its
// executor has not read yet. If so, keepParked has delayed the delivery, or removed it if it is a wake message.
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

// appendClaim appends a claim after the run's last message, makes this instance the run's writer, and returns the new
// job, which holds the delivery d. It returns event.ErrFenced if a message was appended to the run since state was
// read.
func (l *Log) appendClaim(ctx context.Context, id string, state runState, d *delivery) (event.Job, error) {
	j, err := l.newClaimedJob(ctx, id, d)
	if err != nil {
		return nil, err
	}
	info := messageInfo{instance: l.instanceID, attempt: state.info.attempt + 1, seq: state.last.Seq, kind: kindClaim}
	m := nats.NewMsg(runSubject(id, eventToken))
	m.Header.Set(writerHeader, info.String())
	if state.parts != "" {
		m.Header.Set(partsHeader, state.parts)
	} else if err := l.setPayload(ctx, id, m, state.data); err != nil {
		return nil, err
	}
	pos, err := l.publishAfter(ctx, runsName, m, state.lastPos, appendTimeout)
	if err != nil {
		return nil, err
	}
	r, err := l.getOrAddRun(id)
	if err != nil {
		return nil, err
	}
	j.writer = newWriter(r, pos, state.last, info.attempt)
	l.updateRun(r, func() {
		r.record = state.record
		r.writer = j.writer
		tailIsCurrent := r.loaded && r.lastPos == state.lastPos
		if !tailIsCurrent { // otherwise keep its events for readers
			r.setTailLocked(state.last, state.lastPos, state.info)
		}
		r.last = state.last
		r.lastPos = pos
		r.loaded = true
		r.stale = false
		l.jobs[id] = j // l.mu is held
		r.wakeReadersLocked()
	})
	return j, nil
}

// newClaimedJob returns the job of a run that this instance is about to claim. The job holds the delivery d, and the
// request if the log still has it. It has no writer yet.
func (l *Log) newClaimedJob(ctx context.Context, id string, d *delivery) (*job, error) {
	j := &job{log: l, id: id, deliveries: map[string]*delivery{d.subject: d}}
	request, err := l.readRequest(ctx, id)
	if err != nil || request == nil {
		return j, err
	}
	j.request, err = l.readPayload(ctx, *request)
	return j, err
}

// isClaimedBy asks an instance whether it executes a run. An instance that does not answer may be dead or may be
// reconnecting. So isClaimedBy asks up to ownerQueries times, a quarter of a lease apart, before it returns false. It
// returns true if the run must not be claimed because the answer is unknown: ctx has ended, or no request could be sent
// because this process has lost its own connection.
func (l *Log) isClaimedBy(ctx context.Context, instance, id string) bool {
	if instance == "" || l.embedded != nil { // the earlier processes of an embedded log have ended
		return false
	}
	anySent := false // whether at least one request was sent
	for queries := 1; ; queries++ {
		if l.isUnresponsive(instance) {
			return false
		}
		isClaimed, err := l.queryOwner(ctx, instance, id)
		if err == nil {
			return isClaimed
		}
		wasSent := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrNoResponders)
		anySent = anySent || wasSent
		if queries == ownerQueries {
			break
		}
		select {
		case <-time.After(l.lease / 4):
		case <-ctx.Done():
			return true
		}
	}
	if anySent {
		l.setUnresponsive(instance)
	}
	return !anySent
}

// Answers to a request of isClaimedBy.
const (
	executedHere    = "1"
	notExecutedHere = "0"
)

// queryOwner asks an instance once whether it executes a run.
func (l *Log) queryOwner(ctx context.Context, instance, id string) (isClaimed bool, _ error) {
	ctx, cancel := context.WithTimeout(ctx, ownerQueryTimeout)
	defer cancel()
	answer, err := l.read.RequestWithContext(ctx, claimedPrefix+instance, []byte(id))
	if err != nil {
		return false, err
	}
	return string(answer.Data) == executedHere, nil
}

// isUnresponsive reports whether an instance failed to answer isClaimedBy less than a lease ago. The runs of such an
// instance are claimed without asking it again.
func (l *Log) isUnresponsive(instance string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.unresponsive[instance]) < l.lease
}

// setUnresponsive records that an instance did not answer. To bound the map, it clears the map when it is full. The
// only effect is that the other instances are asked once more.
func (l *Log) setUnresponsive(instance string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.unresponsive) > maxUnresponsive {
		clear(l.unresponsive)
	}
	l.unresponsive[instance] = time.Now()
}

// answerOwnerQueries subscribes to the requests that other instances send in isClaimedBy, and answers them until Close.
func (l *Log) answerOwnerQueries() error {
	_, err := l.read.Subscribe(claimedPrefix+l.instanceID, func(m *nats.Msg) {
		defer l.recoverPanic("answer whether a run is executed here")
		answer := notExecutedHere
		if l.activeJob(string(m.Data)) != nil {
			answer = executedHere
		}
		_ = m.Respond([]byte(answer)) // if the answer is lost, the other instance asks again
	})
	if err != nil {
		return unavailableError("subscribe to queries", err)
	}
	return nil
}

// heartbeatLoop extends the leases of all jobs that this instance executes. It does so three times per lease until
// Close.
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

// extendLeases extends the leases of one job. It recovers from a panic, so that heartbeatLoop continues with the next
// job.
func (l *Log) extendLeases(j *job) {
	defer l.recoverPanic("keep a lease")
	j.extendLeases()
}
