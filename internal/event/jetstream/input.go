package jetstream

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

// AddInput implements event.Inbox. Each input id has its own subject, and the append requires that the subject is
// empty. So only the first input with an id is stored, no matter which instances add it.
func (l *Log) AddInput(ctx context.Context, id, inputID string, data []byte) error {
	if !event.ValidID(inputID) {
		return event.ErrNotFound
	}
	if len(data) > event.MaxResult {
		return event.ErrTooLarge
	}
	run, err := l.Run(ctx, id)
	if err != nil {
		return err
	}
	if run.Last.Terminal() {
		return event.ErrEnded
	}
	m := nats.NewMsg(runSubject(id, inputToken+"."+inputID))
	m.Header.Set(writerHeader, l.instanceID)
	if err := l.setPayload(ctx, id, m, data); err != nil {
		return err
	}
	_, err = l.publishAfter(ctx, runsName, m, 0, appendTimeout)
	wasAddedBefore := errors.Is(err, event.ErrFenced)
	l.wakeExecutor(id) // also after an error, since the input may have been stored
	if !wasAddedBefore {
		l.wakeAgainLater(id)
		if err != nil {
			return err
		}
	}
	// Wake the run even for a duplicate: the process that added the first input may have failed to wake it.
	if err := l.enqueueJob(ctx, wakePrefix+id); err != nil {
		return err
	}
	if wasAddedBefore {
		return event.ErrDuplicateInput
	}
	return nil
}

// wakeExecutor makes the run's executor read its inputs again, if it runs in this instance.
func (l *Log) wakeExecutor(id string) {
	if r := l.cachedRun(id); r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.wakeExecutorLocked()
	}
}

// wakeAgainLater starts a goroutine that wakes a run, and its executor if it runs in this instance, once more after two
// leases. The first wake-up is lost if a process parks the run and dies before it reads an input that has just arrived.
// It is never sent if the queue was full, or if the caller's request ended while the input was being stored. A run that
// has ended ignores the second wake-up. If the run was deleted, its input is removed (purgeIfGone).
func (l *Log) wakeAgainLater(id string) {
	if l.ctx.Err() != nil {
		return
	}
	l.wg.Go(func() {
		defer l.recoverPanic("wake a run")
		if !l.pause(l.ctx, 2*l.lease) {
			return
		}
		l.wakeExecutor(id)
		ctx, cancel := context.WithTimeout(l.ctx, readTimeout)
		defer cancel()
		if run, err := l.Run(ctx, id); err == nil && !run.Last.Terminal() {
			_ = l.enqueueJob(ctx, wakePrefix+id) // after an error, the first wake-up must suffice
		}
		l.purgeIfGone(id)
	})
}

// Inputs implements event.Inbox. An input's position is its stream position.
func (l *Log) Inputs(ctx context.Context, id string, after int64) (event.InputPage, error) {
	if after < 0 {
		return event.InputPage{}, event.ErrInvalidPosition
	}
	if _, err := l.Run(ctx, id); err != nil {
		return event.InputPage{}, err
	}
	r, err := l.getOrAddRun(id)
	if err != nil {
		return event.InputPage{}, err
	}
	if err := r.subscribeInputs(ctx); err != nil {
		return event.InputPage{}, err
	}
	r.mu.Lock()
	if r.moreInput == nil {
		r.moreInput = make(chan struct{})
	}
	more := r.moreInput // taken before the read, so that no wake-up is missed
	// Another process adds an input only after it has read an event of the run.
	isUnshared := l.alone || r.last.Seq == 0
	hasNone := r.hasNoInputs && isUnshared
	r.mu.Unlock()
	if hasNone {
		return event.InputPage{More: more}, nil
	}
	inputs, err := l.readInputs(ctx, id, after)
	if err != nil || len(inputs) > 0 {
		return event.InputPage{Inputs: inputs}, err
	}
	return event.InputPage{More: more}, nil
}

// subscribeInputs subscribes to live messages about the run's inputs, and returns once the subscription is active. It
// does nothing if the subscription exists, if the run was evicted from the cache, or if no other process uses the log,
// because all inputs then come from this process.
func (r *run) subscribeInputs(ctx context.Context) error {
	r.mu.Lock()
	if r.inputSub != nil || r.evicted || r.log.alone {
		r.mu.Unlock()
		return nil
	}
	sub, err := r.log.read.ChanSubscribe(liveSubject(r.id, inputToken+".*"), r.log.live)
	if err == nil {
		r.inputSub = sub
	}
	r.mu.Unlock()
	if err != nil {
		return unavailableError("subscribe to inputs", err)
	}
	return r.log.flushSubscriptions(ctx)
}
