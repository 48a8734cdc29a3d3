package jetstream_test

import (
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/jetstream"
)

// The clocks of two replicas may differ (F45), here by 26 years: the clock of a synctest bubble
// stays at the beginning of 2000 while goroutines wait for the network. Each replica must read
// correctly what the other wrote: a run that has just ended can be read, a parked run stays parked,
// and the times of a run's events do not jump.
func TestInstancesWhoseClocksDifferReadTheSame(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	b := openLog(t, jetstream.Options{URL: url, Lease: lease})
	appendWholeRun(t, b, "run_b")

	want := b.Now()
	synctest.Test(t, func(t *testing.T) {
		if now := time.Now(); now.Year() != 2000 {
			t.Fatalf("the clock is at %s, want 2000", now)
		}
		a := openLog(t, jetstream.Options{URL: url, Lease: lease})
		if ahead := a.Now().Sub(want); ahead.Abs() > time.Minute {
			t.Errorf("the clock of a log is %s ahead of the other's, want less than a minute", ahead)
		}
		checkWholeRun(t, a, "run_b")
		if err := a.Create(t.Context(), event.Run{ID: "run_created", Created: a.Now()}); err != nil {
			t.Fatal(err)
		}
		appendWholeRun(t, a, "run_a")
		job := startRun(t, a, "run_parked")
		appendEvent(t, a, "run_parked", event.Suspended{})
		if err := job.Park(t.Context(), 0, a.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
	})

	checkWholeRun(t, b, "run_a")
	if run, err := b.Run(t.Context(), "run_created"); err != nil {
		t.Errorf("Run of a run that has just been created = %+v, %v, want the run", run, err)
	}

	jobs := keepClaiming(t, b)
	select {
	case j := <-jobs:
		t.Errorf("run %s was claimed an hour before its wake time, want no claim", j.Run())
	case <-time.After(2 * lease):
	}

	if err := b.AddInput(t.Context(), "run_parked", "int_1", []byte("yes")); err != nil {
		t.Fatal(err)
	}
	j := <-jobs
	appendEvent(t, b, "run_parked", event.FinalAnswer{})
	if err := j.Done(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkWholeRun(t, b, "run_parked")
}

// appendWholeRun writes a run with its terminal event.
func appendWholeRun(t *testing.T, l *jetstream.Log, id string) {
	t.Helper()
	job := startRun(t, l, id)
	appendEvent(t, l, id, event.FinalAnswer{})
	if err := job.Done(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// checkWholeRun checks that a run can be read to its end, and that its events have the log's time.
func checkWholeRun(t *testing.T, l *jetstream.Log, id string) {
	t.Helper()
	if run, err := l.Run(t.Context(), id); err != nil || run.Status() != event.StatusCompleted {
		t.Errorf("Run(%s) = %s, %v, want %s", id, run.Status(), err, event.StatusCompleted)
	}
	all, err := readUntil(t.Context(), l, id, nil)
	if err != nil {
		t.Fatalf("read %s: %v", id, err)
	}
	for i, e := range all {
		if age := l.Now().Sub(time.UnixMilli(e.Time)); age.Abs() > time.Minute || i > 0 && e.Time < all[i-1].Time {
			t.Errorf("event %d of %s is %s old, want less than a minute, and not before the one ahead of it", e.Seq, id, age)
		}
	}
}
