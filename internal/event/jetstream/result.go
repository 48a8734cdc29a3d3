package jetstream

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

// SaveResult implements event.Log.
func (l *Log) SaveResult(ctx context.Context, run, call string, result []byte) error {
	if len(result) > event.MaxResult {
		return event.ErrTooLarge
	}
	w, err := l.writing(ctx, run)
	if err != nil {
		return err
	}
	if err := w.open(); err != nil {
		return err
	}
	return l.put(ctx, run, resKind+"."+digest(call), result)
}

// put keeps a payload on a subject of a run; the newest one counts.
func (l *Log) put(ctx context.Context, run, kind string, payload []byte) error {
	m := nats.NewMsg(runRoot + runSubject(run) + "." + kind)
	m.Header.Set(writerHeader, writerID{log: l.name, attempt: 1}.String())
	if err := l.pack(ctx, run, m, payload); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, event.ErrUnavailable)
	defer cancel()
	for {
		_, err := l.tryPublish(ctx, m) // twice is as good as once
		if err == nil {
			return nil
		}
		if refused(err) {
			return fmt.Errorf("keep in the log: %w", err)
		}
		select {
		case <-time.After(tryInterval):
		case <-ctx.Done():
			return unavailable("keep in the log", err)
		case <-l.ctx.Done():
			return unavailable("keep in the log", err)
		}
	}
}

// Result implements event.Log.
func (l *Log) Result(ctx context.Context, run, call string) ([]byte, error) {
	if _, err := l.Run(ctx, run); err != nil {
		return nil, err
	}
	m, err := l.last(ctx, runsName, runRoot+runSubject(run)+"."+resKind+"."+digest(call))
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, event.ErrNotFound
	}
	return l.unpack(ctx, *m)
}
