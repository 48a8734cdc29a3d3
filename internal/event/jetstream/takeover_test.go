package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

func TestClaimTakesRunsOverFromADeadInstance(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	proxy := eventtest.StartProxy(t, url)
	a := openLog(t, jetstream.Options{URL: proxy.URL(), Lease: lease})
	b := openLog(t, jetstream.Options{URL: url, Lease: lease})
	keepClaiming(t, a)
	jobs := keepClaiming(t, b)

	const runs = 20
	lost := make(map[string]event.Job)
	for i := range runs {
		id := fmt.Sprintf("run_%d", i)
		lost[id] = startRun(t, a, id)
		appendEvent(t, a, id, event.StepStart{Step: 1})
	}

	proxy.Stop() // the other instance believes that a is dead
	stopped := time.Now()

	taken := make(map[string]event.Job)
	for len(taken) < runs {
		select {
		case j := <-jobs:
			if taken[j.Run()] != nil || j.Attempt() != 2 || string(j.Request()) != "request" {
				t.Errorf("claimed %s with attempt %d, request %q, want each run once, 2, request", j.Run(), j.Attempt(), j.Request())
			}
			taken[j.Run()] = j
		case <-t.Context().Done():
			t.Fatalf("%d runs were taken over, want %d", len(taken), runs)
		}
	}

	t.Logf("%d runs taken over within %v of a lease of %v", runs, time.Since(stopped), lease)
	for id := range taken {
		appendEvent(t, b, id, event.StepReset{Step: 1, Reason: "taken over"})
	}

	proxy.Resume()
	for id, j := range lost {
		if _, err := a.Append(t.Context(), id, event.StepEnd{Step: 1}); !errors.Is(err, event.ErrFenced) {
			t.Errorf("Append of the replaced instance to %s = %v, want %v", id, err, event.ErrFenced)
		}
		<-j.Lost()
		if err := j.Done(t.Context()); err != nil { // has no effect on the other instance's job
			t.Error(err)
		}
		if err := j.Release(t.Context()); err != nil {
			t.Errorf("Release of %s by the replaced instance: %v", id, err)
		}
	}

	for id, j := range taken {
		appendEvent(t, b, id, event.FinalAnswer{})
		if err := j.Done(t.Context()); err != nil {
			t.Error(err)
		}
		if all, err := readUntil(t.Context(), a, id, nil); len(all) != 4 || err != nil {
			t.Errorf("%s has %d events, %v, want 4", id, len(all), err)
		}
	}
}

// Instances that look for jobs must not take a run from an instance that executes it.
func TestClaimLeavesAnExecutedRunAlone(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	a, b := openLog(t, jetstream.Options{URL: url, Lease: lease}), openLog(t, jetstream.Options{URL: url, Lease: lease})
	keepClaiming(t, a)
	jobs := keepClaiming(t, b)
	job := startRun(t, a, "run_a")
	select {
	case <-jobs:
		t.Fatal("another instance claimed a run that is executed, want no claim")
	case <-time.After(3 * lease):
	}
	appendEvent(t, a, "run_a", event.Suspended{})
	if err := job.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Between CreateJob and the first event, no message of the run says who its writer is.
func TestClaimLeavesARunWithoutEventsAlone(t *testing.T) {
	t.Parallel()
	url := startCluster(t)

	a, b := openLog(t, jetstream.Options{URL: url, Lease: lease}), openLog(t, jetstream.Options{URL: url, Lease: lease})
	jobs := keepClaiming(t, b)
	for i := range 20 {
		id := fmt.Sprintf("run_%d", i)
		if err := a.Create(t.Context(), event.Run{ID: id, Created: time.Now()}); err != nil {
			t.Fatal(err)
		}
		job, err := a.CreateJob(t.Context(), id, nil)
		if err != nil {
			t.Fatal(err)
		}

		select {
		case <-jobs:
			t.Fatal("another instance claimed a run that is about to begin, want no claim")
		case <-time.After(20 * time.Millisecond):
		}

		appendEvent(t, a, id, event.Start{})
		appendEvent(t, a, id, event.FinalAnswer{})
		if err := job.Done(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// The server's work queue must not forget a released job when other jobs are removed.
func TestReleasedJobSurvivesTheRemovalOfOthers(t *testing.T) {
	t.Parallel()
	url := startCluster(t)

	a, b := openLog(t, jetstream.Options{URL: url, Lease: lease}), openLog(t, jetstream.Options{URL: url, Lease: lease})
	ctx, stop := context.WithCancel(t.Context())
	claimed := make(chan struct{})
	go func() { // takes the messages of a's own jobs
		defer close(claimed)
		_, _ = a.Claim(ctx)
	}()

	const runs = 20
	var jobs []event.Job
	for i := range runs {
		jobs = append(jobs, startRun(t, a, fmt.Sprintf("run_%d", i)))
		appendEvent(t, a, jobs[i].Run(), event.StepStart{Step: 1})
	}

	<-time.After(lease / 2)
	stop()
	<-claimed

	for i, job := range jobs {
		if i%2 == 0 {
			if err := job.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		appendEvent(t, a, job.Run(), event.FinalAnswer{})
		if err := job.Done(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := a.Delete(t.Context(), job.Run()); err != nil {
			t.Fatal(err)
		}
	}

	for range runs / 2 {
		claimJob(t, b)
	}
}

func TestReleasedRunIsClaimedWithinTheLease(t *testing.T) {
	t.Parallel()
	url := startCluster(t)

	a := openLog(t, jetstream.Options{URL: url, Lease: time.Minute})
	b := openLog(t, jetstream.Options{URL: url, Lease: time.Minute})
	for i := range 10 { // the lease is far longer than the test
		id := fmt.Sprintf("run_%d", i)
		job := startRun(t, a, id)
		appendEvent(t, a, id, event.TextDelta{PartID: "p", Delta: "one "})
		appendEvent(t, a, id, event.TextDelta{PartID: "p", Delta: "two"}) // stays pending
		if err := job.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		job = claimJob(t, b)
		if job.Run() != id {
			t.Fatalf("claimed %s, want %s", job.Run(), id)
		}
		appendEvent(t, b, id, event.FinalAnswer{})
		if err := job.Done(t.Context()); err != nil {
			t.Fatal(err)
		}
		all, err := readUntil(t.Context(), a, id, nil)
		if err != nil || len(all) != 4 || all[2].Body != (event.TextDelta{PartID: "p", Delta: "two"}) {
			t.Fatalf("the run has %d events, %v, want 4 with the second delta", len(all), err)
		}
	}
}

// Notes that come together repeat the event before them, in the same message. That event may be so large that the
// message is stored in parts. A process that takes the run over must find both.
func TestClaimFindsALargeEventAndTheNotesAfterIt(t *testing.T) {
	t.Parallel()
	url := "file:" + t.TempDir()
	first, err := jetstream.Open(t.Context(), jetstream.Options{URL: url, Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	startRun(t, first, "run_a")
	large := event.LogMessage{Data: []byte(`"` + strings.Repeat("x", 700<<10) + `"`)}
	appendEvent(t, first, "run_a", large)

	for _, note := range []string{"sent c", "sent d"} {
		if err := first.AddNote(t.Context(), "run_a", []byte(note)); err != nil {
			t.Fatal(err)
		}
	}

	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := openLog(t, jetstream.Options{URL: url, Lease: lease})
	job := claimJob(t, second)
	appendEvent(t, second, "run_a", event.FinalAnswer{})
	if err := job.Done(t.Context()); err != nil {
		t.Error(err)
	}
	if all, err := readUntil(t.Context(), second, "run_a", nil); err != nil || len(all) != 3 || !reflect.DeepEqual(all[1].Body, event.Body(large)) {
		t.Errorf("the run has %d events, %v, want 3 with the large one", len(all), err)
	}
	if notes, err := second.Notes(t.Context(), "run_a"); err != nil || len(notes) != 2 {
		t.Errorf("Notes = %d, %v, want both", len(notes), err)
	}
}
