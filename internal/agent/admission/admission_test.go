package admission_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent/admission"
)

// checkRefused checks that err is a refusal for that reason, and returns when to come back.
func checkRefused(t *testing.T, err, reason error) time.Duration {
	t.Helper()
	r, ok := errors.AsType[*admission.Refusal](err)
	if !ok || !errors.Is(err, reason) {
		t.Fatalf("%v, want a refusal: %v", err, reason)
	}
	if r.RetryAfter < time.Second || r.RetryAfter > time.Minute || r.RetryAfter%time.Second != 0 {
		t.Errorf("retry after %s, want whole seconds from 1 s to 1 min", r.RetryAfter)
	}
	return r.RetryAfter
}

// acquireSlot lets a caller in who must not be refused.
func acquireSlot(t *testing.T, g *admission.Gate, name string) *admission.Slot {
	t.Helper()
	p, err := g.Acquire(t.Context(), name, 0)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return p
}

func TestAcquireWaitsTenSecondsAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admission.New(admission.Limits{Max: 1})
		first, began := acquireSlot(t, g, "a"), time.Now()
		_, err := g.Acquire(t.Context(), "b", 0)
		checkRefused(t, err, admission.ErrFull)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("waited %s, want 10 s", took)
		}

		// By now it is known that places don't become free so fast.
		began = time.Now()
		_, err = g.Acquire(t.Context(), "b", 0)
		checkRefused(t, err, admission.ErrFull)
		if took := time.Since(began); took != 0 {
			t.Errorf("waited %s in vain, want 0", took)
		}
		first.Release()
		first.Release() // once is enough, and twice is not two
		acquireSlot(t, g, "b")
	})
}

func TestAcquireSucceedsWhenAnotherRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admission.New(admission.Limits{Max: 1})
		first := acquireSlot(t, g, "a")
		var all sync.WaitGroup
		all.Go(func() { acquireSlot(t, g, "b").Release() })
		synctest.Wait()
		first.Release()
		all.Wait()
	})
}

func TestCallerWhoLeavesLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admission.New(admission.Limits{Max: 1})
		first := acquireSlot(t, g, "a")
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			_, err := g.Acquire(ctx, "b", 0)
			checkRefused(t, err, admission.ErrFull)
		})
		synctest.Wait()
		cancel()
		all.Wait()
		first.Release()
		acquireSlot(t, g, "c")
	})
}

// A caller with many requests delays their own requests, and not those of other callers.
func TestQueueServesCallersInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admission.New(admission.Limits{Max: 1})
		place := acquireSlot(t, g, "noisy")

		var all sync.WaitGroup
		in := make(chan string)
		left := make(chan struct{})
		for _, name := range []string{"noisy", "noisy", "noisy", "ada", "bob", "ada"} {
			all.Go(func() {
				p := acquireSlot(t, g, name)
				in <- name
				<-left
				p.Release()
			})
			synctest.Wait()
		}

		place.Release()
		var order []string
		for range 6 {
			order = append(order, <-in)
			left <- struct{}{}
		}

		all.Wait()
		if got, want := fmt.Sprint(order), "[noisy ada bob noisy ada noisy]"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// A thousand callers of a service with the default limits all get their answers, if those take a second.
func TestQueueHoldsAThousandCallers(t *testing.T) {
	for _, callers := range []int{1, 1024} {
		t.Run(fmt.Sprint(callers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := admission.New(admission.Limits{Max: 512})
				var all sync.WaitGroup
				for i := range 1024 {
					all.Go(func() {
						for range 5 {
							p, err := g.Acquire(t.Context(), fmt.Sprint(i%callers), 0)
							if err != nil {
								t.Errorf("Acquire: %v, want a slot", err)
								return
							}
							<-time.After(time.Second) // of the bubble's clock
							p.Release()
						}
					})
				}
				all.Wait()
			})
		})
	}
}

// A full queue still accepts the first request of a caller. It refuses the newest request of the
// caller who has most in the queue instead.
func TestFullQueueAdmitsACallerThatHasNoneInIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admission.New(admission.Limits{Max: 1})
		place := acquireSlot(t, g, "noisy")

		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		results := make(chan error, 101)
		for range 101 {
			all.Go(func() {
				p, err := g.Acquire(ctx, "noisy", 0)
				if err == nil {
					p.Release()
				}
				results <- err
			})
		}

		synctest.Wait()
		checkRefused(t, <-results, admission.ErrFull) // the queue has 100 places
		all.Go(func() {
			acquireSlot(t, g, "ada").Release()
		})
		synctest.Wait()
		checkRefused(t, <-results, admission.ErrFull) // and gave one of them up
		if len(results) != 0 {
			t.Errorf("%d more left the queue, want 0", len(results))
		}
		place.Release()
		all.Wait()
		cancel()
	})
}

func TestCallerHasALimitedNumberOfSlots(t *testing.T) {
	g := admission.New(admission.Limits{Max: 10, PerCaller: 2})
	a := acquireSlot(t, g, "a")
	acquireSlot(t, g, "a")
	_, err := g.Acquire(t.Context(), "a", 0)
	checkRefused(t, err, admission.ErrTooMany)
	acquireSlot(t, g, "b")
	a.Release()
	acquireSlot(t, g, "a")
}

func TestRateIsATokenBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admission.New(admission.Limits{Max: 100, Rate: admission.Rate{N: 2, Per: 4 * time.Second}})
		acquireAs := func(name string) error {
			p, err := g.Acquire(t.Context(), name, 0)
			if err == nil {
				p.Release() // and is not forgotten
			}
			return err
		}

		for range 2 {
			if err := acquireAs("a"); err != nil {
				t.Fatal(err)
			}
		}

		if after := checkRefused(t, acquireAs("a"), admission.ErrTooFast); after != 2*time.Second {
			t.Errorf("the next is due after %s, want 2 s", after)
		}
		if err := acquireAs("b"); err != nil {
			t.Error(err)
		}
		<-time.After(2 * time.Second) // of the bubble's clock
		if err := acquireAs("a"); err != nil {
			t.Error(err)
		}
		checkRefused(t, acquireAs("a"), admission.ErrTooFast)
	})
}

// A caller who used a part of their rate and has gone does not count when the slots are shared.
func TestCallerIsAloneAfterTheOthersHaveLeft(t *testing.T) {
	for _, rate := range []admission.Rate{{}, {N: 1000, Per: time.Hour}} {
		synctest.Test(t, func(t *testing.T) {
			g := admission.New(admission.Limits{Max: 2, Rate: rate})
			acquireSlot(t, g, "b").Release()
			first := acquireSlot(t, g, "a")
			acquireSlot(t, g, "a")
			<-time.After(6 * time.Second)
			time.AfterFunc(2*time.Second, first.Release)
			if _, err := g.Acquire(t.Context(), "a", 0); err != nil {
				t.Errorf("with the rate %v: got the error %v, want a slot after 2 s", rate, err)
			}
		})
	}
}

// Callers are remembered while there is something to remember, and never without bound.
func TestCallersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admission.New(admission.Limits{Max: 10, Rate: admission.Rate{N: 1, Per: time.Second}})
		acquireAs := func(i int) error {
			p, err := g.Acquire(t.Context(), fmt.Sprint(i), 0)
			if err == nil {
				p.Release()
			}
			return err
		}

		for i := range 1 << 16 {
			if err := acquireAs(i); err != nil {
				t.Fatal(i, err)
			}
		}

		checkRefused(t, acquireAs(1<<16), admission.ErrFull)
		<-time.After(time.Second) // of the bubble's clock
		if err := acquireAs(1 << 16); err != nil {
			t.Error(err)
		}
	})
}

// AcquireOverLimit ignores the limits and the queue, and counts.
func TestAcquireOverLimitCountsAndDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admission.New(admission.Limits{Max: 1, PerCaller: 1, MemoryShort: func() bool { return false }})
		if !g.HasFreeSlot() {
			t.Fatal("HasFreeSlot() = false for an empty gate, want true")
		}
		first := g.AcquireOverLimit("a", 0)
		if g.HasFreeSlot() {
			t.Error("HasFreeSlot() = true with the only slot in use, want false")
		}
		var all sync.WaitGroup
		all.Go(func() { acquireSlot(t, g, "b").Release() })
		synctest.Wait()
		if !g.HasFreeSlot() {
			t.Error("HasFreeSlot() = false with a run above the limit and one waiting, want true")
		}
		second := g.AcquireOverLimit("a", 0)
		if g.HasFreeSlot() {
			t.Error("HasFreeSlot() = true with one run above the limit, want false")
		}
		first.Release()
		synctest.Wait()
		<-g.Freed()
		second.Release()
		all.Wait()
	})
}

// The caller starts neither a run that this process takes over nor the child of a run.
func TestAcquireOverLimitDoesNotCountForTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admission.New(admission.Limits{Max: 9, Rate: admission.Rate{N: 2, Per: time.Hour}})
		acquireSlot(t, g, "a").Release()
		g.AcquireOverLimit("a", 0).Release()
		g.AcquireOverLimit("a", 0).Discard()
		acquireSlot(t, g, "a").Release()
		_, err := g.Acquire(t.Context(), "a", 0)
		checkRefused(t, err, admission.ErrTooFast)
	})
}

func TestClosedGateRefusesWaitingCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admission.New(admission.Limits{Max: 1})
		place := acquireSlot(t, g, "a")

		var all sync.WaitGroup
		all.Go(func() {
			if _, err := g.Acquire(t.Context(), "b", 0); !errors.Is(err, admission.ErrClosed) {
				t.Errorf("error %v, want ErrClosed", err)
			}
		})

		synctest.Wait()
		g.Close()
		all.Wait()
		if _, err := g.Acquire(t.Context(), "c", 0); !errors.Is(err, admission.ErrClosed) {
			t.Errorf("error %v, want ErrClosed", err)
		}
		place.Release()
	})
}

func TestShortMemoryRefusesAllCallers(t *testing.T) {
	short := true
	g := admission.New(admission.Limits{Max: 1, MemoryShort: func() bool { return short }})
	_, err := g.Acquire(t.Context(), "a", 0)
	checkRefused(t, err, admission.ErrMemory)
	short = false
	acquireSlot(t, g, "a")
}

// Three times the load that fits, for five minutes: an admitted request waited at most ten seconds,
// almost no request was refused after a wait, and a caller who asks for a fair share gets it whatever
// another caller does.
// facts/reliability.md L3.
func TestNoisyCallerDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places, seconds = 20, 300
		random := rand.New(rand.NewPCG(1, 2))
		g := admission.New(admission.Limits{Max: places})
		type tally struct{ admitted, refused, refusedLate int }
		var mu sync.Mutex
		tallies := map[string]*tally{"noisy": {}, "quiet": {}}
		var all sync.WaitGroup

		runFor := func(name string, took time.Duration) {
			began := time.Now()
			p, err := g.Acquire(t.Context(), name, 0)
			mu.Lock()
			switch c := tallies[name]; {
			case err == nil:
				c.admitted++
			case time.Since(began) > 50*time.Millisecond:
				c.refusedLate++
				fallthrough
			default:
				c.refused++
			}
			mu.Unlock()
			if err == nil {
				<-time.After(took) // of the bubble's clock
				p.Release()
			}
		}

		// A run takes 2 s on average, so that ten places a second become free. Thirty are
		// asked for.
		for range seconds * 3 {
			for i := range 10 {
				name := "noisy"
				if i == 5 {
					name = "quiet"
				}
				took := time.Duration(random.Int64N(int64(4 * time.Second)))
				all.Go(func() { runFor(name, took) })
				<-time.After(time.Second / 30)
			}
		}

		all.Wait()
		noisy, quiet := tallies["noisy"], tallies["quiet"]
		t.Logf("noisy %+v, quiet %+v", *noisy, *quiet)
		if quiet.refused*100 > quiet.admitted+quiet.refused {
			t.Errorf("%d of %d of the quiet caller were refused, want at most 1 in 100", quiet.refused, quiet.admitted+quiet.refused)
		}
		if refusals := noisy.refused + quiet.refused; (noisy.refusedLate+quiet.refusedLate)*100 > refusals {
			t.Errorf("%d of %d refusals came late, want at most 1 in 100", noisy.refusedLate+quiet.refusedLate, refusals)
		}
		if got := noisy.admitted + quiet.admitted; got < seconds*places/2*9/10 {
			t.Errorf("%d runs were admitted, want at least %d of the possible %d", got, seconds*places/2*9/10, seconds*places/2)
		}
	})
}
