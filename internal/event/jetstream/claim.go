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
// A delivery from the work queue does not entitle an instance to execute the run. A server that
// restarts forgets leases, and delivers jobs again although their executors are alive. So the
// instance that gets a delivery reads who wrote the run's last message, and asks that instance
// whether it still executes the run (isClaimedBy). If it does, the delivery is delayed. If it
// does not, or does not answer for half a lease, the asking instance appends a claim after the
// run's last message.
//
// The append of the claim expects the last message that was read. If the old executor has
// written since, the claim fails. If the claim succeeds, the old executor's next append fails
// (ErrFenced). So only one instance can write, whatever the instances believe about each other.

const (
	// claimAttempts bounds how often one delivery is tried while the run's executor keeps
	// writing.
	claimAttempts = 20
	// ownerQueries bounds how often the last writer of a run is asked, and ownerQueryTimeout how
	// long each answer may take.
	ownerQueries      = 3
	ownerQueryTimeout = 500 * time.Millisecond
	// maxUnresponsive bounds Log.unresponsive.
	maxUnresponsive = 1000
)

// Claim implements event.Jobs. It pulls one message at a time, with a short expiry. A message
// pulled in advance would wait here until its lease ends, and a pull request does not survive a
// restart of the server.
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
			_ = msg.returnAfter(0) // another instance may claim it now
		case err != nil:
			l.logger.WarnContext(ctx, "a run could not be claimed", "run_id", lastToken(msg.subject), "error", err)
			_ = msg.returnAfter(l.lease) // if this fails, the end of the lease has the same effect
		case j != nil:
			return j, nil
		}
	}
}

// waitForDelivery waits up to pullTimeout for a job's message, and returns nil if none came.
func (l *Log) waitForDelivery(ctx context.Context) *delivery {
	if !l.diskFull.Load() { // no run can be claimed on a full disk
		d, err := l.pullDelivery(ctx)
		if err == nil || errors.Is(err, errNoJob) {
			return d
		}
		if errors.Is(err, errNoConsumer) {
			l.restoreConsumer(ctx)
		}
	}
	select { // the server cannot be reached, or its disk is full
	case <-time.After(retryInterval):
	case <-ctx.Done():
	}
	return nil
}

// claimDelivery claims the run of a delivery. It returns nil if the run has ended or another
// instance executes it.
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
		// The old executor did not answer, but has written meanwhile.
	}
	return nil, event.ErrFenced
}

// beginClaim excludes other calls of Claim from a run. A job can have two messages, and the call
// that gets the second one must not claim the run from the call that got the first.
func (l *Log) beginClaim(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.claiming[id] {
		return false
	}
	l.claiming[id] = true
	return true
}

func (l *Log) endClaim(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.claiming, id)
}

// runState holds the facts about a run that a claim depends on.
type runState struct {
	record *record
	last   event.Event
	by     writerID   // of the run's last message
	park   parkRecord // set if by.kind is kindParked

	// The claim repeats the last event: data is its JSON, unless it is in parts, which are those of the last message. head
	// is the pos of that message.
	head  uint64
	data  []byte
	parts string
}

// readRunState reads the record and the last message of a run. It returns ErrGone if the run was
// deleted.
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
	if state.by.inBatch { // its payload has more than the event
		state.data, state.parts = state.last.JSON, ""
	}
	return state, err
}

// deferToExecutor reports whether the run must not be claimed now, because it stays parked or
// another instance executes it. It then delays or removes the delivery.
func (l *Log) deferToExecutor(ctx context.Context, id string, state runState, msg *delivery) (bool, error) {
	switch {
	case state.by.kind == kindReleased:
		return false, nil
	case state.by.kind == kindParked:
		return l.keepParked(ctx, id, state.park, msg)
	case state.by.instance == l.instanceID:
		return false, nil // activeJob did not find it: this instance has lost the run
	}
	// Delay the delivery before asking. If the executor releases the run right after its answer,
	// the message that it then adds to the queue takes precedence. If this process dies, the job
	// is delivered again sooner than after a lease.
	delay := l.lease/2 + rand.N(l.lease/2)
	if err := msg.returnAfterConfirmed(ctx, delay); err != nil {
		return false, err
	}
	if l.isClaimedBy(ctx, state.by.instance, id) {
		return true, nil
	}
	return false, msg.extendLease()
}

// keepParked reports whether a run stays parked: its wake time has not come, and it has no new
// input. It then delays the delivery, or removes it if it is a wake message.
func (l *Log) keepParked(ctx context.Context, id string, parked parkRecord, msg *delivery) (bool, error) {
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

// appendClaim appends a claim at the head of a run and makes this instance its writer. It
// returns ErrFenced if the head has changed since the state was read.
func (l *Log) appendClaim(ctx context.Context, id string, state runState, d *delivery) (event.Job, error) {
	request, err := l.readRequest(ctx, id)
	if err != nil {
		return nil, err
	}

	j := &job{log: l, id: id, deliveries: map[string]*delivery{d.subject: d}}
	if request != nil {
		if j.request, err = l.readPayload(ctx, *request); err != nil {
			return nil, err
		}
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
		r.record, r.writer = state.record, j.writer
		if tailIsCurrent := r.loaded && r.head == state.head; !tailIsCurrent {
			r.setTailLocked(state.last, state.head, state.by)
		}
		r.last = state.last
		r.head = pos
		r.headBy = by
		r.loaded = true
		r.stale = false
		l.jobs[id] = j // l.mu is held
		r.wakeReadersLocked()
	})
	return j, nil
}

// isClaimedBy asks an instance whether it executes a run. An instance that does not answer may
// be dead or reconnecting, so it is asked again for half a lease. If this process could not send
// a request because its connection is lost, isClaimedBy returns true, so that the delivery is delayed.
func (l *Log) isClaimedBy(ctx context.Context, instance, id string) bool {
	if instance == "" || l.embedded != nil { // the earlier processes of an embedded log have ended
		return false
	}
	sent := false
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

// isUnresponsive reports whether an instance did not answer within the last lease. Its other
// runs are then claimed without asking it again.
func (l *Log) isUnresponsive(instance string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.unresponsive[instance]) < l.lease
}

// setUnresponsive notes that an instance did not answer. The oldest notes are not needed for long, so a full map is
// cleared.
func (l *Log) setUnresponsive(instance string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.unresponsive) > maxUnresponsive {
		clear(l.unresponsive)
	}
	l.unresponsive[instance] = time.Now()
}

// answerOwnerQueries answers the requests of isClaimedBy of other instances.
func (l *Log) answerOwnerQueries() error {
	_, err := l.read.Subscribe(claimedPrefix+l.instanceID, func(m *nats.Msg) {
		defer l.recoverPanic("answer whether a run is executed here")
		answer := []byte("0")
		if l.activeJob(string(m.Data)) != nil {
			answer = []byte("1")
		}
		_ = m.Respond(answer) // the other instance asks again
	})
	if err != nil {
		return unavailableError("subscribe to queries", err)
	}
	return nil
}

// heartbeatLoop extends the leases of all jobs that this instance executes, three times in a
// lease.
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

// extendLeases extends the leases of one job. A panic over it must not end the leases of the
// others.
func (l *Log) extendLeases(j *job) {
	defer l.recoverPanic("keep a lease")
	j.extendLeases()
}
