package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/memory"
)

// While a run waits for a person, be it for several answers at a time, its clock
// stands still.
func TestThePatienceOfAPersonCostsARunNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memory.New(memory.Options{})
		if err := log.Create(t.Context(), event.Run{ID: "r"}); err != nil {
			t.Fatal(err)
		}
		out := event.NewWriter(log, "r")
		if err := out.Append(t.Context(), event.Start{}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var c clock
		c.start(t.Context(), 10, out)
		defer c.stop()
		<-time.After(7 * time.Second)
		c.hold()
		c.hold()
		<-time.After(time.Hour)
		c.resume()
		<-time.After(time.Hour)
		c.resume()
		<-c.tools.Done()
		if took := time.Since(began); took != 2*time.Hour+8*time.Second || context.Cause(c.tools) != errToolTime {
			t.Errorf("tools had %s, %v", took, context.Cause(c.tools))
		}
		<-c.ctx.Done()
		if took := time.Since(began); took != 2*time.Hour+10*time.Second || !errors.Is(context.Cause(c.ctx), errSeconds) {
			t.Errorf("the run had %s, %v", took, context.Cause(c.ctx))
		}
	})
}

func TestAStoppedClockReachesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c clock
		c.start(t.Context(), 10, nil) // to write would panic
		c.hold()
		c.stop()
		c.resume()
		<-time.After(time.Hour)
		if cause := context.Cause(c.ctx); !errors.Is(cause, context.Canceled) {
			t.Error(cause)
		}
	})
}
