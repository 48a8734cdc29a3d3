package memory

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/event"
)

// A log at its bound drops runs that have ended. As long as there are any, an active run keeps its first events,
// however many runs append at the same time.
func TestRunKeepsItsFirstEventsWhileOthersHaveEnded(t *testing.T) {
	log := New(Options{MaxBytes: 1 << 20})
	appendRun := func(id string) error {
		if err := log.Create(t.Context(), event.Run{ID: id}); err != nil {
			return err
		}
		for i := range 60 {
			var b event.Body = event.TextDelta{PartID: "p", Delta: "word "}
			if i == 0 {
				b = event.Start{}
			}
			if _, err := log.Append(t.Context(), id, b); err != nil {
				return err
			}
		}
		page, err := log.After(t.Context(), id, 0)
		if err != nil {
			return fmt.Errorf("After(%s, 0): %w", id, err)
		}
		if got := page.Events[0].Seq; got != 1 {
			return fmt.Errorf("After(%s, 0) begins with event %d, want 1", id, got)
		}
		_, err = log.Append(t.Context(), id, event.FinalAnswer{})
		return err
	}

	var writers sync.WaitGroup
	for writer := range 8 {
		writers.Go(func() {
			for n := range 400 {
				if err := appendRun(fmt.Sprintf("run_%d_%d", writer, n)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
}

// The race detector reports a list that reads what a drop writes.
func TestRunsAreListedWhileRunsAreDropped(t *testing.T) {
	log := New(Options{MaxBytes: 16 << 10})
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := range 500 {
			id := fmt.Sprintf("run_%d", n)
			if err := log.Create(t.Context(), event.Run{ID: id, Request: []byte(`{"question":"x"}`)}); err != nil {
				t.Error(err)
				return
			}
			if _, err := log.Append(t.Context(), id, event.FinalAnswer{Answer: strings.Repeat("x", 1<<10)}); err != nil {
				t.Error(err)
				return
			}
		}
	})

	for range 500 {
		if _, err := log.Runs(t.Context(), event.Filter{}); err != nil {
			t.Error(err)
			break
		}
	}
	writer.Wait()
}

// Delete comes between a run's terminal event and addEnded. When the retention has passed, the run must not be dropped
// once more, with a key that belongs to another run by then.
func TestDeleteOfARunThatEndsKeepsTheKeyOfALaterRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := New(Options{Retention: time.Minute})
		create := func(id, key string) {
			t.Helper()
			if err := log.Create(t.Context(), event.Run{ID: id, Key: key}); err != nil {
				t.Fatal(err)
			}
		}

		create("run_a", "k")
		deleted, err := log.findRun("run_a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.Append(t.Context(), "run_a", event.FinalAnswer{}); err != nil {
			t.Fatal(err)
		}
		if err := log.Delete(t.Context(), "run_a"); err != nil {
			t.Fatal(err)
		}
		log.addEnded(deleted, 0) // as an Append that Delete overtook
		create("run_b", "k")
		<-time.After(time.Minute)
		create("run_c", "") // drops what has expired
		if got, err := log.RunByKey(t.Context(), event.Owner{}, "k"); err != nil || got.ID != "run_b" {
			t.Errorf("RunByKey = %q, %v, want run_b", got.ID, err)
		}
		if _, err := log.Run(t.Context(), "run_a"); !errors.Is(err, event.ErrGone) {
			t.Errorf("Run of the deleted run = %v, want %v", err, event.ErrGone)
		}
		if got, want := log.bytes.Load(), withLoss(runOverhead)+withLoss(runOverhead+int64(len("k"))); got != want {
			t.Errorf("two runs without events count %d bytes, want %d", got, want)
		}
	})
}

// Runs whose retention has passed use no memory, even if no run is created afterwards.
func TestRunsExpireWithoutANewRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := New(Options{Retention: time.Minute})
		defer log.Close()

		endRun := func(id string) {
			if err := log.Create(t.Context(), event.Run{ID: id}); err != nil {
				t.Fatal(err)
			}
			for _, b := range []event.Body{event.Start{}, event.FinalAnswer{Answer: "yes"}} {
				if _, err := log.Append(t.Context(), id, b); err != nil {
					t.Fatal(err)
				}
			}
		}

		for i := range 10 {
			endRun(fmt.Sprintf("run_%d", i))
			<-time.After(5 * time.Second) // of the bubble's clock
		}

		if log.bytes.Load() == 0 {
			t.Fatal("the log has no bytes before the retention has passed, want some")
		}
		<-time.After(time.Minute - 50*time.Second + 10*time.Second)
		synctest.Wait()
		held := 0
		log.runs.Range(func(any, any) bool { held++; return true })
		if held != 7 {
			t.Errorf("runs in the log when three have expired = %d, want 7", held)
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if got := log.bytes.Load(); got != 0 {
			t.Errorf("bytes after the retention of all runs = %d, want 0", got)
		}
		if log.expiry.timer != nil {
			t.Error("the timer is set without runs, want it not to be")
		}
	})
}

// Close stops the timer, also while other goroutines end runs.
func TestCloseStopsTheExpiryOfRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := New(Options{Retention: time.Minute})
		endRun := func(id string) {
			_ = log.Create(t.Context(), event.Run{ID: id})
			_, _ = log.Append(t.Context(), id, event.Start{})
			_, _ = log.Append(t.Context(), id, event.FinalAnswer{})
		}

		endRun("run_before")
		log.Close()
		log.Close() // once is enough
		endRun("run_after")
		<-time.After(time.Hour)
		synctest.Wait()
		held := 0
		log.runs.Range(func(any, any) bool { held++; return true })
		if held != 2 || log.expiry.timer != nil {
			t.Errorf("an hour after Close, the log holds %d runs, timer %v, want 2 and no timer", held, log.expiry.timer)
		}
	})
}
