package memory

import (
	"context"

	"answerd/internal/event"
)

// BeginThread implements event.Log. The thread is stored when it returns.
func (l *Log) BeginThread(ctx context.Context, r event.Run, title string) error {
	_, err := l.BeginTurn(ctx, r.Owner, r.ThreadID, r.ID, r.Agent, title)
	return err
}

// BeginTurn implements event.Threads. It then drops runs that have ended if the log exceeds its limit, because runs and
// threads share the limit.
func (l *Log) BeginTurn(ctx context.Context, owner event.Owner, id, run, agent, title string) (event.Thread, error) {
	begun, err := l.Store.BeginTurn(ctx, owner, id, run, agent, title)
	l.dropEndedAboveLimit()
	return begun, err
}

// EndTurn implements event.Threads. It then drops runs that have ended if the log exceeds its limit, because runs and
// threads share the limit.
func (l *Log) EndTurn(ctx context.Context, owner event.Owner, id, run string, data []byte) error {
	err := l.Store.EndTurn(ctx, owner, id, run, data)
	l.dropEndedAboveLimit()
	return err
}

// dropEndedAboveLimit drops runs that have ended while the log exceeds its limit. Most calls take no lock.
func (l *Log) dropEndedAboveLimit() {
	if l.bytes.Load() <= l.maxBytes {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.bytes.Load() > l.maxBytes && len(l.ended) > 0 {
		l.dropLocked(l.ended[0])
	}
}
