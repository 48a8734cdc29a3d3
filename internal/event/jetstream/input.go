package jetstream

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

// AddInput implements event.Inbox. The append expects that the input's subject has no
// message, so the first input of an id wins on any instance.
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
	repeated := errors.Is(err, event.ErrFenced)
	l.wakeExecutor(id) // also after an error, since the input may be stored
	if !repeated {
		l.wakeAgainLater(id)
	}
	if err != nil && !repeated {
		return err
	}

	// Even if it is repeated: whoever gave it first may not have been able to wake the run.
	if err := l.enqueueJob(ctx, wakePrefix+id); err != nil {
		return err
	}
	if repeated {
		return event.ErrDuplicateInput
	}
	return nil
}

// wakeExecutor makes the executor of a run ask for inputs, if it is in this process.
func (l *Log) wakeExecutor(id string) {
	if r := l.cachedRun(id); r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.wakeExecutorLocked()
	}
}

// wakeAgainLater wakes a run once more after two leases. The first wake-up does not suffice if a process parks the run
// and dies before it looks for inputs that arrived meanwhile. It is missing if the queue was full, or if the caller's
// request ended while the input was being stored. The executor then looks for the input too. A run that has ended ignores
// the second wake-up.
func (l *Log) wakeAgainLater(id string) {
	if l.ctx.Err() != nil {
		return
	}
	l.wg.Go(func() {
		defer l.recoverPanic("wake a run")
		select {
		case <-time.After(2 * l.lease):
		case <-l.ctx.Done():
			return
		}
		l.wakeExecutor(id)
		ctx, cancel := context.WithTimeout(l.ctx, readTimeout)
		defer cancel()
		if run, err := l.Run(ctx, id); err == nil && !run.Last.Terminal() {
			_ = l.enqueueJob(ctx, wakePrefix+id) // the first message was enqueued
		}
		l.purgeIfGone(id)
	})
}

// Inputs implements event.Inbox. The position of an input is its number in the stream.
func (l *Log) Inputs(ctx context.Context, id string, after int64) (event.InputPage, error) {
	if after < 0 {
		return event.InputPage{}, event.ErrInvalidPosition
	}
	if _, err := l.Run(ctx, id); err != nil {
		return event.InputPage{}, err
	}
	r, err := l.getRun(id)
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
	// Another process can add an input only after it has read an event of the run.
	isUnshared := l.alone || r.last.Seq == 0
	none := r.hasNoInputs && isUnshared
	r.mu.Unlock()
	if none {
		return event.InputPage{More: more}, nil
	}
	inputs, err := l.readInputs(ctx, id, after)
	if err != nil || len(inputs) > 0 {
		return event.InputPage{Inputs: inputs}, err
	}
	return event.InputPage{More: more}, nil
}

// subscribeInputs makes a live subscription to the inputs of the run, and returns when the
// subscription is active.
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
