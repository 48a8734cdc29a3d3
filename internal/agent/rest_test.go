package agent

import (
	"testing"
	"testing/synctest"
)

func TestRestIsReachedOnceHoweverOftenItIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRest()
		waiting := true
		go func() {
			<-r.reached
			waiting = false
		}()
		synctest.Wait()
		if !waiting {
			t.Fatal("rest before anything ended")
		}
		r.reach()
		r.reach() // a run that has ended is retired, too
		synctest.Wait()
		if waiting {
			t.Error("nobody was told of the rest")
		}
	})
}
