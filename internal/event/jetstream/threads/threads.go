// Package threads implements event.Threads on NATS JetStream. It is not written yet: every method returns
// event.ErrUnavailable.
package threads

import (
	"context"

	"answerd/internal/event"
)

// Store implements event.Threads.
type Store struct{}

// BeginTurn implements event.Threads.
func (*Store) BeginTurn(context.Context, event.Owner, string, string, string, string) (event.Thread, error) {
	return event.Thread{}, event.ErrUnavailable
}

// EndTurn implements event.Threads.
func (*Store) EndTurn(context.Context, event.Owner, string, string, []byte) error {
	return event.ErrUnavailable
}

// Thread implements event.Threads.
func (*Store) Thread(context.Context, event.Owner, string) (event.Thread, error) {
	return event.Thread{}, event.ErrUnavailable
}

// Turns implements event.Threads.
func (*Store) Turns(context.Context, event.Owner, string, int64, int, int) (event.TurnPage, error) {
	return event.TurnPage{}, event.ErrUnavailable
}

// ListThreads implements event.Threads.
func (*Store) ListThreads(context.Context, event.ThreadFilter) (event.ThreadPage, error) {
	return event.ThreadPage{}, event.ErrUnavailable
}

// RenameThread implements event.Threads.
func (*Store) RenameThread(context.Context, event.Owner, string, string) (event.Thread, error) {
	return event.Thread{}, event.ErrUnavailable
}

// DeleteThread implements event.Threads.
func (*Store) DeleteThread(context.Context, event.Owner, string) error { return event.ErrUnavailable }
