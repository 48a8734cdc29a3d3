package jetstream

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

// AddInput implements event.Inbox.
func (l *Log) AddInput(ctx context.Context, run, id string, data []byte) error {
	if !event.ValidID(id) {
		return event.ErrNotFound
	}
	if len(data) > event.MaxResult {
		return event.ErrTooLarge
	}
	known, err := l.Run(ctx, run)
	if err != nil {
		return err
	}
	if known.Last.Terminal() {
		return event.ErrEnded
	}
	m := nats.NewMsg(runRoot + runSubject(run) + "." + inKind + "." + id)
	m.Header.Set(writerHeader, l.name)
	if err := l.pack(ctx, run, m, data); err != nil {
		return err
	}
	switch _, err := l.publish(ctx, runsName, m, 0, patience); {
	case errors.Is(err, event.ErrFenced):
		return event.ErrDuplicateInput
	case err != nil:
		return err
	}
	if err := l.enqueue(ctx, wakeRoot+run); err != nil {
		return err
	}
	l.wakeLater(run)
	return nil
}

// wakeLater wakes a run once more after a while. A process that dies exactly between
// parking a run and looking for the inputs that came meanwhile would leave it asleep.
// For a run that is executed, or has ended, it changes nothing.
func (l *Log) wakeLater(run string) {
	l.wg.Go(func() {
		defer l.survived("wake a run")
		select {
		case <-time.After(2 * l.lease):
			ctx, cancel := context.WithTimeout(l.ctx, readTimeout)
			defer cancel()
			if known, err := l.Run(ctx, run); err == nil && !known.Last.Terminal() {
				_ = l.enqueue(ctx, wakeRoot+run) // it was tried before
			}
		case <-l.ctx.Done():
		}
	})
}

// Inputs implements event.Inbox. A position is a number in the stream.
func (l *Log) Inputs(ctx context.Context, run string, after int64) (event.InputPage, error) {
	if after < 0 {
		return event.InputPage{}, event.ErrInvalidPosition
	}
	if _, err := l.Run(ctx, run); err != nil {
		return event.InputPage{}, err
	}
	r, err := l.run(run)
	if err != nil {
		return event.InputPage{}, err
	}
	if err := r.listen(ctx); err != nil {
		return event.InputPage{}, err
	}
	r.mu.Lock()
	if r.moreIn == nil {
		r.moreIn = make(chan struct{})
	}
	more := r.moreIn // from before the look, so that nothing falls between
	r.mu.Unlock()
	found, err := l.inputs(ctx, run, after)
	if err != nil || len(found) > 0 {
		return event.InputPage{Inputs: found}, err
	}
	return event.InputPage{More: more}, nil
}

// listen subscribes to the inputs of the run from now on.
func (r *run) listen(ctx context.Context) error {
	r.mu.Lock()
	if r.inSub != nil || r.dropped {
		r.mu.Unlock()
		return nil
	}
	sub, err := r.log.read.ChanSubscribe(liveRoot+runSubject(r.id)+"."+inKind+".*", r.log.live)
	if err == nil {
		r.inSub = sub
	}
	r.mu.Unlock()
	if err != nil {
		return unavailable("listen for inputs", err)
	}
	return r.log.settle(ctx)
}

// inputs reads the inputs of a run that follow a position.
func (l *Log) inputs(ctx context.Context, run string, after int64) ([]event.Input, error) {
	found, _, err := l.batch(ctx, runsName, query{Next: runRoot + runSubject(run) + "." + inKind + ".*", From: uint64(after) + 1})
	if err != nil {
		return nil, err
	}
	var inputs []event.Input
	for _, m := range found {
		data, err := l.unpack(ctx, m)
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, event.Input{ID: lastToken(m.subject), Pos: int64(m.at), Data: data})
	}
	return inputs, nil
}
