package admission_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent/admission"
)

const mib = 1 << 20

// acquireAll acquires slots until one is refused for lack of memory, and at most limit.
func acquireAll(t *testing.T, g *admission.Gate, limit int) (slots []*admission.Slot) {
	t.Helper()
	for len(slots) < limit {
		p, err := g.Acquire(t.Context(), "a", 0)
		if errors.Is(err, admission.ErrMemory) {
			break
		}
		if err != nil {
			t.Fatalf("error %v, want none or ErrMemory", err)
		}
		slots = append(slots, p)
	}
	return slots
}

func newGate(capacity int64) *admission.Gate {
	return admission.New(admission.Limits{Max: 1000, Memory: admission.NewMemory(capacity)})
}

func TestMemoryAdmitsAsManyRunsAsFitByTheirAverage(t *testing.T) {
	g := newGate(20 * mib)
	first := acquireAll(t, g, 1000)
	if len(first) != 8 {
		t.Errorf("%d runs before any has ended, want 8 of 2.5 MiB each", len(first))
	}

	for _, p := range first {
		p.Release()
	}

	for range 100 { // runs that hold little
		acquireSlot(t, g, "a").Release()
	}

	small := acquireAll(t, g, 1000)
	if len(small) < 100 || len(small) > 160 {
		t.Errorf("%d runs at a time after 100 that held 128 KiB, want 100 to 160", len(small))
	}

	for _, p := range small {
		p.Release()
	}

	for range 100 { // runs that hold much
		p := acquireSlot(t, g, "a")
		p.Memory.Hold(4 * mib)
		p.Release()
	}

	if large := acquireAll(t, g, 1000); len(large) != 4 {
		t.Errorf("%d runs at a time after 100 that held 4 MiB, want 4", len(large))
	}
}

// Otherwise one run of that size would keep all others out for long.
func TestMemoryReservesHalfOfTheCapacityAtMost(t *testing.T) {
	g := newGate(2 * mib)
	if got := acquireAll(t, g, 1000); len(got) != 2 {
		t.Errorf("%d runs, want 2", len(got))
	}
}

func TestMemoryCountsTheRequest(t *testing.T) {
	g := newGate(20 * mib)
	p, err := g.Acquire(t.Context(), "a", 30*mib)
	if err != nil {
		t.Fatalf("the only run: %v, want no error, whatever its size", err)
	}
	_, err = g.Acquire(t.Context(), "a", 0)
	checkRefused(t, err, admission.ErrMemory)
	p.Release()
	acquireSlot(t, g, "a")
	_, err = g.Acquire(t.Context(), "a", 18*mib)
	checkRefused(t, err, admission.ErrMemory)
}

func TestMemoryEndsTheRunThatNeedsMoreThanIsLeft(t *testing.T) {
	g := newGate(20 * mib)
	a, b := acquireSlot(t, g, "a"), acquireSlot(t, g, "b")
	if !a.Memory.Hold(12*mib) || !b.Memory.Hold(6*mib) {
		t.Fatal("Hold() = false for runs that fit, want true")
	}
	if a.Memory.Hold(4 * mib) {
		t.Error("Hold() = true beyond the capacity, want false")
	}
	if !a.Memory.Hold(100 * mib) {
		t.Error("Hold() = false for a run that ends already, want true")
	}
	if !b.Memory.Hold(12 * mib) {
		t.Error("Hold() = false after the other run's part was given back, want true")
	}
	a.Release()
	if b.Memory.Hold(4 * mib) {
		t.Error("Hold() = true beyond the capacity after a second release, want false")
	}
}

func TestMemoryOfASuspendedRunIsWhatItHolds(t *testing.T) {
	g := newGate(20 * mib)
	for _, p := range acquireAll(t, g, 1000) {
		p.Memory.HoldOnly()
	}
	if got := acquireAll(t, g, 1000); len(got) < 7 {
		t.Errorf("%d runs beside 8 suspended ones, want 7", len(got))
	}
}

func TestMemoryCountsWhatIsOutsideOfRuns(t *testing.T) {
	memory := admission.NewMemory(20 * mib)
	g := admission.New(admission.Limits{Max: 10, Memory: memory})
	body, ok := memory.Open(19 * mib)
	if !ok || !body.Hold(19*mib) {
		t.Fatal("19 of 20 MiB are refused, want them held")
	}
	if _, ok := memory.Open(2 * mib); ok {
		t.Error("Open() = true for more than is left, want false")
	}
	if _, ok := memory.Open(0); !ok {
		t.Error("Open() = false for nothing, want true")
	}
	_, err := g.Acquire(t.Context(), "a", 0)
	checkRefused(t, err, admission.ErrMemory)
	body.Release()
	body.Release() // once is enough, and twice is not two
	if got := acquireAll(t, g, 1000); len(got) != 8 {
		t.Errorf("%d runs, want 8: the average is of runs only", len(got))
	}
}

// A run of another process continues here, but none is claimed while memory is short.
func TestMemoryOfAcquireOverLimitCounts(t *testing.T) {
	g := newGate(20 * mib)
	g.AcquireOverLimit("a", 30*mib)
	if g.HasFreeSlot() {
		t.Error("HasFreeSlot() = true without memory, want false")
	}
	_, err := g.Acquire(t.Context(), "a", 0)
	checkRefused(t, err, admission.ErrMemory)
}

func TestMemoryWithoutCapacityHasNoBound(t *testing.T) {
	g := newGate(0)
	for _, p := range acquireAll(t, g, 500) {
		if !p.Memory.Hold(1 << 40) {
			t.Fatal("Hold() = false without a bound, want true")
		}
		p.Memory.HoldOnly()
		p.Release()
	}
}

// Memory may get short while a request waits for its slot. The request is refused then, and is not one of its caller's starts.
func TestRequestRefusedForMemoryAfterItsWaitIsNotCountedForTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := admission.NewMemory(8 * mib)
		gate := admission.New(admission.Limits{Max: 1, Rate: admission.Rate{N: 1, Per: time.Hour}, Memory: memory})
		other := admission.New(admission.Limits{Max: 10, Memory: memory})
		first := acquireSlot(t, gate, "ann")
		refused := make(chan error)
		go func() {
			_, err := gate.Acquire(t.Context(), "bob", 0)
			refused <- err
		}()
		synctest.Wait()
		runs := []*admission.Slot{other.AcquireOverLimit("eve", 0), other.AcquireOverLimit("eve", 0), other.AcquireOverLimit("eve", 0)}
		first.Release()
		if err := <-refused; !errors.Is(err, admission.ErrMemory) {
			t.Errorf("Acquire = %v, want %v", err, admission.ErrMemory)
		}
		for _, run := range runs {
			run.Release()
		}
		acquireSlot(t, gate, "bob")
	})
}
