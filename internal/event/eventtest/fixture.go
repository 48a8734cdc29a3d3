package eventtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"answerd/internal/event"
)

func createRun(t *testing.T, log event.Log, id string) {
	t.Helper()
	err := log.Create(t.Context(), event.Run{ID: id, Owner: event.Owner{Subject: "ada"}, Created: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
}

func appendEvent(t *testing.T, log event.Log, id string, b event.Body) int64 {
	t.Helper()
	seq, err := log.Append(t.Context(), id, b)
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

// stepStart returns an event that no log joins with others or delays.
func stepStart(i int) event.Body { return event.StepStart{Step: i} }

// readAll reads a run to its end and returns the number of its events. It returns an error if their numbers have a gap.
func readAll(ctx context.Context, log event.Log, id string) (n int, err error) {
	for pos := int64(0); ; {
		page, err := log.After(ctx, id, pos)
		if err != nil {
			return n, err
		}
		for _, e := range page.Events {
			if e.Seq != pos+1 {
				return n, fmt.Errorf("event %d follows event %d", e.Seq, pos)
			}
			pos = e.Seq
			n++
		}
		if page.Ended {
			return n, nil
		}
		if len(page.Events) > 0 {
			continue
		}
		select {
		case <-page.More:
		case <-ctx.Done():
			return n, ctx.Err()
		}
	}
}
