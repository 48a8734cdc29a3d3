package eventtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"answerd/internal/event"
)

// claimTime bounds how long a suite waits for a job that must come.
const claimTime = 30 * time.Second

func claim(t *testing.T, log event.Log) event.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), claimTime)
	defer cancel()
	job, err := log.Claim(ctx)
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	return job
}

// noClaim fails if there is a job to claim now.
func noClaim(t *testing.T, log event.Log) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if job, err := log.Claim(ctx); err == nil {
		t.Fatalf("a job of %s, attempt %d", job.Run(), job.Attempt())
	} else if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("claim: %v", err)
	}
}

func hold(t *testing.T, log event.Log, run string) event.Job {
	t.Helper()
	job, err := log.CreateJob(t.Context(), run, []byte("what "+run+" was asked"))
	if err != nil {
		t.Fatal(err)
	}
	return job
}

func aHeldRunIsNobodyElses(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	job := hold(t, log, "run_a")
	if job.Run() != "run_a" || job.Attempt() != 1 || string(job.Request()) != "what run_a was asked" {
		t.Errorf("job of %s, attempt %d, %q", job.Run(), job.Attempt(), job.Request())
	}
	if _, err := log.CreateJob(t.Context(), "run_a", nil); !errors.Is(err, event.ErrFenced) {
		t.Errorf("hold it twice: %v", err)
	}
	noClaim(t, log)
	add(t, log, "run_a", event.Start{})
	add(t, log, "run_a", event.FinalAnswer{})
	if err := job.Done(t.Context()); err != nil {
		t.Fatal(err)
	}
	noClaim(t, log)
	if _, err := log.CreateJob(t.Context(), "run_a", nil); !errors.Is(err, event.ErrEnded) {
		t.Errorf("hold a run that has ended: %v", err)
	}
	if _, err := log.CreateJob(t.Context(), "run_b", nil); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("hold an unknown run: %v", err)
	}
	create(t, log, "run_c")
	if _, err := log.CreateJob(t.Context(), "run_c", make([]byte, event.MaxResult+1)); !errors.Is(err, event.ErrTooLarge) {
		t.Errorf("hold with too much: %v", err)
	}
}

func aReleasedRunGoesOn(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	job := hold(t, log, "run_a")
	add(t, log, "run_a", event.Start{})
	add(t, log, "run_a", step(1))
	for attempt := 2; attempt < 5; attempt++ {
		if err := job.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := log.Append(t.Context(), "run_a", step(1)); !errors.Is(err, event.ErrFenced) {
			t.Fatalf("append to a released run: %v", err)
		}
		if job = claim(t, log); job.Run() != "run_a" || job.Attempt() != attempt || string(job.Request()) != "what run_a was asked" {
			t.Fatalf("job of %s, attempt %d, %q", job.Run(), job.Attempt(), job.Request())
		}
		noClaim(t, log)
		w, err := event.ResumeWriter(t.Context(), log, "run_a")
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Append(t.Context(), event.StepReset{Step: 1, Reason: "taken over"}); err != nil {
			t.Fatal(err)
		}
	}
	add(t, log, "run_a", event.RunError{})
	if err := job.Done(t.Context()); err != nil {
		t.Fatal(err)
	}
	noClaim(t, log)
	if n, err := readAll(t.Context(), log, "run_a"); n != 6 || err != nil {
		t.Errorf("%d events, %v", n, err)
	}
}

// Where a job is a message, a run that was given up can have two, which two claims can get
// at the same time.
func claimsTakeNoRunFromEachOther(t *testing.T, log event.Log) {
	const runs = 50
	for i := range runs {
		id := fmt.Sprintf("run_%d", i)
		create(t, log, id)
		job := hold(t, log, id)
		add(t, log, id, event.Start{})
		if err := job.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), claimTime)
	jobs := make(chan event.Job, 2*runs)
	var claims sync.WaitGroup
	defer claims.Wait()
	defer stop()
	for range 4 {
		claims.Go(func() {
			for job, err := log.Claim(ctx); err == nil; job, err = log.Claim(ctx) {
				jobs <- job
			}
		})
	}
	taken := make(map[string]bool)
	for range runs {
		select {
		case job := <-jobs:
			if taken[job.Run()] {
				t.Errorf("%s was taken twice", job.Run())
			}
			taken[job.Run()] = true
		case <-ctx.Done():
			t.Fatalf("%d of %d runs were taken", len(taken), runs)
		}
	}
	for id := range taken {
		add(t, log, id, step(1))
	}
}

func aParkedRunWaitsForAnInput(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	job := hold(t, log, "run_a")
	add(t, log, "run_a", event.Start{})
	add(t, log, "run_a", event.Suspended{})
	if err := job.Park(t.Context(), 0, time.Time{}); err != nil {
		t.Fatal(err)
	}
	noClaim(t, log)
	give(t, log, "run_a", "int_1", "yes")
	job = claim(t, log)
	page, err := log.Inputs(t.Context(), "run_a", 0)
	if err != nil || len(page.Inputs) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	// What came between the executor's last look and its parking wakes the run at once.
	give(t, log, "run_a", "int_2", "no")
	if err := job.Park(t.Context(), page.Inputs[0].Pos, time.Time{}); err != nil {
		t.Fatal(err)
	}
	job = claim(t, log)
	if page, err = log.Inputs(t.Context(), "run_a", page.Inputs[0].Pos); err != nil || len(page.Inputs) != 1 || page.Inputs[0].ID != "int_2" {
		t.Fatalf("%+v, %v", page, err)
	}
	if err := job.Park(t.Context(), page.Inputs[0].Pos, time.Time{}); err != nil {
		t.Fatal(err)
	}
	noClaim(t, log)
	if err := log.Delete(t.Context(), "run_a"); err != nil {
		t.Fatal(err)
	}
	noClaim(t, log)
}

// aParkedRunWakesWhenItsTimeComes, and not before, also when it was woken in between.
func aParkedRunWakesWhenItsTimeComes(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	job := hold(t, log, "run_a")
	add(t, log, "run_a", event.Start{})
	for range 2 {
		until := time.Now().Add(time.Second)
		if err := job.Park(t.Context(), 0, until); err != nil {
			t.Fatal(err)
		}
		noClaim(t, log)
		job = claim(t, log)
		if early := time.Until(until); early > 0 {
			t.Fatalf("%v too early", early)
		}
	}
	if err := job.Park(t.Context(), 0, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	give(t, log, "run_a", "int_1", "yes")
	job = claim(t, log)
	if err := job.Park(t.Context(), 1<<60, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	job = claim(t, log)
	add(t, log, "run_a", event.FinalAnswer{})
	if err := job.Done(t.Context()); err != nil {
		t.Fatal(err)
	}
	noClaim(t, log)
}

func give(t *testing.T, log event.Log, run, id, data string) {
	t.Helper()
	if err := log.AddInput(t.Context(), run, id, []byte(data)); err != nil {
		t.Fatalf("give %s to %s: %v", id, run, err)
	}
}

func theFirstAnswerWins(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	create(t, log, "run_b")
	won := make(chan error, 8)
	for range cap(won) {
		go func() { won <- log.AddInput(t.Context(), "run_a", "int_1", []byte("mine")) }()
	}
	var errs []error
	for range cap(won) {
		errs = append(errs, <-won)
	}
	wins := 0
	for _, err := range errs {
		if err == nil {
			wins++
		} else if !errors.Is(err, event.ErrDuplicateInput) {
			t.Errorf("one that did not win: %v", err)
		}
	}
	if wins != 1 {
		t.Errorf("%d won", wins)
	}
	give(t, log, "run_b", "int_1", "another run's")
	for _, id := range []string{"", "a.b", "*", ">", "a b", "é"} {
		if err := log.AddInput(t.Context(), "run_a", id, nil); !errors.Is(err, event.ErrNotFound) {
			t.Errorf("give %q: %v", id, err)
		}
	}
	if err := log.AddInput(t.Context(), "run_c", "int_1", nil); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("give to an unknown run: %v", err)
	}
	add(t, log, "run_a", event.Cancelled{})
	if err := log.AddInput(t.Context(), "run_a", event.CancelID, nil); !errors.Is(err, event.ErrEnded) {
		t.Errorf("cancel a run that has ended: %v", err)
	}
}

func inputsComeInOrderAndWakeWhoWaits(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	var got []string
	page, err := log.Inputs(t.Context(), "run_a", 0)
	if err != nil || len(page.Inputs) != 0 {
		t.Fatalf("%+v, %v", page, err)
	}
	var giver sync.WaitGroup
	defer giver.Wait()
	giver.Go(func() {
		for _, id := range []string{"int_1", "int_2", event.CancelID} {
			if err := log.AddInput(t.Context(), "run_a", id, []byte(id)); err != nil {
				t.Errorf("give %s: %v", id, err)
			}
		}
	})
	for pos := int64(0); len(got) < 3; {
		if page, err = log.Inputs(t.Context(), "run_a", pos); err != nil {
			t.Fatal(err)
		}
		for _, in := range page.Inputs {
			if in.Pos <= pos || string(in.Data) != in.ID {
				t.Errorf("input %+v follows %d", in, pos)
			}
			pos, got = in.Pos, append(got, in.ID)
		}
		if len(page.Inputs) == 0 {
			<-page.More
		}
	}
	if !slices.Equal(got, []string{"int_1", "int_2", event.CancelID}) {
		t.Errorf("inputs %v", got)
	}
	if _, err := log.Inputs(t.Context(), "run_a", -1); !errors.Is(err, event.ErrInvalidPosition) {
		t.Errorf("after -1: %v", err)
	}
	if _, err := log.Inputs(t.Context(), "run_b", 0); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("of an unknown run: %v", err)
	}
}
