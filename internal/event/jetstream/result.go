package jetstream

import (
	"context"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

// SaveResult implements event.Log.
func (l *Log) SaveResult(ctx context.Context, id, call string, result []byte) error {
	if len(result) > event.MaxResult {
		return event.ErrTooLarge
	}
	w, err := l.writerFor(ctx, id)
	if err != nil {
		return err
	}
	if err := w.checkWritable(); err != nil {
		return err
	}
	return l.savePayload(ctx, id, resultToken+"."+digest(call), result)
}

// savePayload publishes a payload to a subject of a run, where the newest one counts.
func (l *Log) savePayload(ctx context.Context, id, tokens string, payload []byte) error {
	m := nats.NewMsg(runSubject(id, tokens))
	m.Header.Set(writerHeader, writerID{instance: l.instanceID, attempt: 1}.String())
	if err := l.setPayload(ctx, id, m, payload); err != nil {
		return err
	}
	return l.publishUnordered(ctx, "save in the log", m, nil)
}

// Result implements event.Log.
func (l *Log) Result(ctx context.Context, id, call string) ([]byte, error) {
	if _, err := l.Run(ctx, id); err != nil {
		return nil, err
	}
	m, err := l.readLast(ctx, runsName, runSubject(id, resultToken+"."+digest(call)))
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, event.ErrNotFound
	}
	return l.readPayload(ctx, *m)
}
