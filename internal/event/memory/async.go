package memory

import (
	"context"

	"answerd/internal/event"
)

// AppendAsync implements event.Log. The event is stored at once.
func (l *Log) AppendAsync(ctx context.Context, id string, b event.Body) (int64, error) {
	return l.Append(ctx, id, b)
}

// Flush implements event.Log.
func (l *Log) Flush(_ context.Context, id string) error {
	_, err := l.findRun(id)
	return err
}
