package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

func TestOthersTakeOverFromAProcessThatDies(t *testing.T) {
	t.Parallel()
	url := cluster(t)
	gate := eventtest.StartProxy(t, url)
	a := open(t, jetstream.Options{URL: gate.URL(), Lease: lease})
	b := open(t, jetstream.Options{URL: url, Lease: lease})
	claiming(t, a)
	jobs := claiming(t, b)
	const runs = 20
	held := make(map[string]event.Job)
	for i := range runs {
		id := fmt.Sprintf("run_%d", i)
		held[id] = begin(t, a, id)
		add(t, a, id, event.StepStart{Step: 1})
	}
	gate.Stop() // for the others it is dead; and it will find out that it was
	died := time.Now()
	taken := make(map[string]event.Job)
	for len(taken) < runs {
		select {
		case j := <-jobs:
			if taken[j.Run()] != nil || j.Attempt() != 2 || string(j.Request()) != "request" {
				t.Errorf("%s: attempt %d, %q", j.Run(), j.Attempt(), j.Request())
			}
			taken[j.Run()] = j
		case <-t.Context().Done():
			t.Fatal("not all were taken over")
		}
	}
	t.Logf("%d runs taken over within %v of a lease of %v", runs, time.Since(died), lease)
	for id := range taken {
		add(t, b, id, event.StepReset{Step: 1, Reason: "taken over"})
	}
	gate.Resume()
	for id, j := range held {
		if _, err := a.Append(t.Context(), id, event.StepEnd{Step: 1}); !errors.Is(err, event.ErrFenced) {
			t.Errorf("the zombie appends to %s: %v", id, err)
		}
		<-j.Lost()
		if err := j.Done(t.Context()); err != nil { // which is not its to say any more
			t.Error(err)
		}
		if err := j.Release(t.Context()); err != nil {
			t.Errorf("the zombie gives %s up: %v", id, err)
		}
	}
	for id, j := range taken {
		add(t, b, id, event.FinalAnswer{})
		if err := j.Done(t.Context()); err != nil {
			t.Error(err)
		}
		if all, err := read(t.Context(), a, id, nil); len(all) != 4 || err != nil {
			t.Errorf("%s has %d events, %v", id, len(all), err)
		}
	}
}

// Nothing a run's owner does is disturbed by others looking for work.
func TestARunThatIsHeldIsLeftAlone(t *testing.T) {
	t.Parallel()
	url := cluster(t)
	a, b := open(t, jetstream.Options{URL: url, Lease: lease}), open(t, jetstream.Options{URL: url, Lease: lease})
	claiming(t, a)
	jobs := claiming(t, b)
	job := begin(t, a, "run_a")
	select {
	case <-jobs:
		t.Fatal("taken from its owner")
	case <-time.After(3 * lease):
	}
	add(t, a, "run_a", event.Suspended{})
	if err := job.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Between the making of a job and the first event there is nobody whose run it seems to be.
func TestARunThatHasNotBegunIsLeftAlone(t *testing.T) {
	t.Parallel()
	url := cluster(t)
	a, b := open(t, jetstream.Options{URL: url, Lease: lease}), open(t, jetstream.Options{URL: url, Lease: lease})
	jobs := claiming(t, b)
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
			t.Fatal("taken from who is about to begin it")
		case <-time.After(20 * time.Millisecond):
		}
		add(t, a, id, event.Start{})
		add(t, a, id, event.FinalAnswer{})
		if err := job.Done(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// The server's work queue must not forget a job that was given back, whatever becomes of
// other jobs meanwhile.
func TestAJobThatIsGivenBackOutlivesTheEndOfOthers(t *testing.T) {
	t.Parallel()
	url := cluster(t)
	a, b := open(t, jetstream.Options{URL: url, Lease: lease}), open(t, jetstream.Options{URL: url, Lease: lease})
	ctx, stop := context.WithCancel(t.Context())
	kept := make(chan struct{})
	go func() { // takes what messages a's own jobs have
		defer close(kept)
		_, _ = a.Claim(ctx)
	}()
	const runs = 20
	var held []event.Job
	for i := range runs {
		held = append(held, begin(t, a, fmt.Sprintf("run_%d", i)))
		add(t, a, held[i].Run(), event.StepStart{Step: 1})
	}
	<-time.After(lease / 2)
	stop()
	<-kept
	for i, job := range held {
		if i%2 == 0 {
			if err := job.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		add(t, a, job.Run(), event.FinalAnswer{})
		if err := job.Done(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := a.Delete(t.Context(), job.Run()); err != nil {
			t.Fatal(err)
		}
	}
	for range runs / 2 {
		claim(t, b)
	}
}

func TestAReleasedRunIsTakenAtOnceByAnother(t *testing.T) {
	t.Parallel()
	url := cluster(t)
	a := open(t, jetstream.Options{URL: url, Lease: time.Minute})
	b := open(t, jetstream.Options{URL: url, Lease: time.Minute})
	for i := range 10 { // far within a lease
		id := fmt.Sprintf("run_%d", i)
		job := begin(t, a, id)
		add(t, a, id, event.TextDelta{PartID: "p", Delta: "one "})
		add(t, a, id, event.TextDelta{PartID: "p", Delta: "two"}) // held back
		if err := job.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		job = claim(t, b)
		if job.Run() != id {
			t.Fatalf("claimed %s", job.Run())
		}
		add(t, b, id, event.FinalAnswer{})
		if err := job.Done(t.Context()); err != nil {
			t.Fatal(err)
		}
		all, err := read(t.Context(), a, id, nil)
		if err != nil || len(all) != 4 || all[2].Body != (event.TextDelta{PartID: "p", Delta: "two"}) {
			t.Fatalf("%d events, %v", len(all), err)
		}
	}
}
