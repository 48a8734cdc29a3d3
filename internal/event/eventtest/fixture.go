package eventtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"answerd/internal/event"
)

func createRun(t *testing.T, log event.Log, id string) {
	t.Helper()
	noError(t, log.Create(t.Context(), event.Run{ID: id, Owner: event.Owner{Subject: "ada"}, Created: time.Now()}))
}

func appendEvent(t *testing.T, log event.Log, id string, b event.Body) int64 {
	t.Helper()
	seq, err := log.Append(t.Context(), id, b)
	noError(t, err)
	return seq
}

// noError fails the test at once if err is not nil.
func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError checks that err is want. what is a format with args, and describes the call that returned err.
func wantError(t *testing.T, err, want error, what string, args ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s = %v, want %v", fmt.Sprintf(what, args...), err, want)
	}
}

// errorOf returns the error of a call that returns two values.
func errorOf[T any](_ T, err error) error { return err }

// stepStart returns an event that no log joins with others or delays.
func stepStart(i int) event.Body { return event.StepStart{Step: i} }

// readAll reads a run to its end and returns its events. It returns an error if their numbers have a gap.
func readAll(ctx context.Context, log event.Log, id string) (events []event.Event, err error) {
	for {
		page, err := log.After(ctx, id, int64(len(events)))
		if err != nil {
			return events, err
		}
		for _, e := range page.Events {
			if e.Seq != int64(len(events))+1 {
				return events, fmt.Errorf("event %d follows event %d", e.Seq, len(events))
			}
			events = append(events, e)
		}
		if page.Ended {
			return events, nil
		}
		if len(page.Events) > 0 {
			continue
		}
		select {
		case <-page.More:
		case <-ctx.Done():
			return events, ctx.Err()
		}
	}
}

// wantOpen fails the test if wait is closed. what describes the channel and the time.
func wantOpen(t *testing.T, wait <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-wait:
		t.Fatalf("%s is closed, want open", what)
	default:
	}
}

// wantClosed waits until the channel is closed, and fails the test if that takes too long. what is as in wantOpen.
func wantClosed(t *testing.T, wait <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-wait:
	case <-t.Context().Done():
		t.Fatalf("%s is open, want closed", what)
	}
}
