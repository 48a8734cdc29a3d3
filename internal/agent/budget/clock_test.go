package budget

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/memory"
)

func callUnguarded(f func()) { f() }

// newRun returns a log with the run r, which has begun, and the writer of its events.
func newRun(t *testing.T) (*memory.Log, *event.Writer) {
	t.Helper()
	log := memory.New(memory.Options{})
	if err := log.Create(t.Context(), event.Run{ID: "r"}); err != nil {
		t.Fatal(err)
	}
	out := event.NewWriter(log, "r")
	if err := out.Append(t.Context(), event.Start{}); err != nil {
		t.Fatal(err)
	}
	return log, out
}

func TestClockPausesUntilEveryPauseIsResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, out := newRun(t)
		began := time.Now()
		var c Clock
		ctx := c.Start(t.Context(), 10, out, callUnguarded)
		defer c.Stop()
		<-time.After(7 * time.Second)
		c.Pause()
		c.Pause()
		<-time.After(time.Hour)
		c.Resume()
		<-time.After(time.Hour)
		c.Resume()
		tools := c.ToolContext()
		<-tools.Done()
		if got, want := time.Since(began), 2*time.Hour+8*time.Second; got != want || context.Cause(tools) != ErrToolTimeUsed {
			t.Errorf("the tools' context ended after %s with %v, want %s and %v", got, context.Cause(tools), want, ErrToolTimeUsed)
		}
		<-ctx.Done()
		if got, want := time.Since(began), 2*time.Hour+10*time.Second; got != want || !errors.Is(context.Cause(ctx), ErrTimeUsed) {
			t.Errorf("the run's context ended after %s with %v, want %s and %v", got, context.Cause(ctx), want, ErrTimeUsed)
		}
	})
}

// A process reported the end of the time, and died before the run ended.
func TestClockReportsNoLevelTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, out := newRun(t)
		var c Clock
		c.Restore(10*time.Second, 100)
		ctx := c.Start(t.Context(), 10, out, callUnguarded)
		defer c.Stop()
		<-ctx.Done()
		page, err := log.After(t.Context(), "r", 1)
		if err != nil || len(page.Events) != 0 {
			t.Errorf("got %d events and the error %v after the start, want none", len(page.Events), err)
		}
	})
}

func TestClockReachesNoMilestoneAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		ctx := c.Start(t.Context(), 10, nil, callUnguarded) // reaching a milestone would panic
		c.Pause()
		c.Stop()
		c.Resume()
		<-time.After(time.Hour)
		if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
			t.Errorf("the context's cause = %v, want %v", cause, context.Canceled)
		}
	})
}

// A person may raise the limit to any number up to 2^53, which is more seconds than a time.Duration has.
func TestClockIsRaisedToAnyNumberOfSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		ctx := c.Start(t.Context(), 10, nil, callUnguarded)
		defer c.Stop()
		for _, seconds := range []float64{1e10, 1 << 53} {
			c.Raise(seconds, nil)
			<-time.After(time.Hour)
			if ctx.Err() != nil || c.ToolContext().Err() != nil {
				t.Fatalf("raised to %g: the contexts ended with %v, want more time", seconds, context.Cause(ctx))
			}
		}
	})
}
