package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/event"
)

// While a run waits for a person, be it for several answers at a time, its clock
// stands still.
func TestThePatienceOfAPersonCostsARunNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := event.NewMemory(event.MemoryOptions{})
		if err := log.Create(t.Context(), event.Run{ID: "r"}); err != nil {
			t.Fatal(err)
		}
		out := event.NewWriter(log, "r")
		if err := out.Append(t.Context(), event.Start{}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		c := startClock(t.Context(), 10, out)
		defer c.stop()
		<-time.After(7 * time.Second)
		first, second := c.pause(), c.pause()
		<-time.After(time.Hour)
		first()
		<-time.After(time.Hour)
		second()
		<-c.tools.Done()
		if took := time.Since(began); took != 2*time.Hour+8*time.Second || context.Cause(c.tools) != errToolTime {
			t.Errorf("tools had %s, %v", took, context.Cause(c.tools))
		}
		<-c.run.Done()
		if took := time.Since(began); took != 2*time.Hour+10*time.Second || !errors.Is(context.Cause(c.run), errSeconds) {
			t.Errorf("the run had %s, %v", took, context.Cause(c.run))
		}
	})
}

func TestAStoppedClockReachesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startClock(t.Context(), 10, nil) // to write would panic
		resume := c.pause()
		c.stop()
		resume()
		<-time.After(time.Hour)
		if cause := context.Cause(c.run); !errors.Is(cause, context.Canceled) {
			t.Error(cause)
		}
	})
}
