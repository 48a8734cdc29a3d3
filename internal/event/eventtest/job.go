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

// claimTime is how long a test waits for a job that must become available.
const claimTime = 30 * time.Second

func claimJob(t *testing.T, log event.Log) event.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), claimTime)
	defer cancel()
	job, err := log.Claim(ctx)
	if err != nil {
		t.Fatalf("Claim = %v, want a job", err)
	}
	return job
}

// wantNoJob fails the test if a job can be claimed within 100 ms.
func wantNoJob(t *testing.T, log event.Log) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if job, err := log.Claim(ctx); err == nil {
		t.Fatalf("Claim = a job of %s, attempt %d, want none", job.Run(), job.Attempt())
	} else if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Claim = %v, want a job", err)
	}
}

func createJob(t *testing.T, log event.Log, run string) event.Job {
	t.Helper()
	job, err := log.CreateJob(t.Context(), run, []byte("what "+run+" was asked"))
	noError(t, err)
	return job
}

func testJobIsExclusive(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	job := createJob(t, log, "run_a")
	if job.Run() != "run_a" || job.Attempt() != 1 || string(job.Request()) != "what run_a was asked" {
		t.Errorf(`job is of %s, attempt %d, request %q, want run_a, 1 and "what run_a was asked"`, job.Run(), job.Attempt(), job.Request())
	}
	wantError(t, errorOf(log.CreateJob(t.Context(), "run_a", nil)), event.ErrFenced, "a second CreateJob")
	wantNoJob(t, log)
	appendEvent(t, log, "run_a", event.Start{})
	appendEvent(t, log, "run_a", event.FinalAnswer{})
	noError(t, job.Done(t.Context()))
	wantNoJob(t, log)
	wantError(t, errorOf(log.CreateJob(t.Context(), "run_a", nil)), event.ErrEnded, "CreateJob of a run that has ended")
	wantError(t, errorOf(log.CreateJob(t.Context(), "run_b", nil)), event.ErrNotFound, "CreateJob of an unknown run")
	createRun(t, log, "run_c")
	wantError(t, errorOf(log.CreateJob(t.Context(), "run_c", make([]byte, event.MaxResult+1))), event.ErrTooLarge, "CreateJob beyond MaxResult")
}

func testReleasedRunIsClaimed(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	job := createJob(t, log, "run_a")
	appendEvent(t, log, "run_a", event.Start{})
	appendEvent(t, log, "run_a", stepStart(1))
	for attempt := 2; attempt < 5; attempt++ {
		noError(t, job.Release(t.Context()))
		wantError(t, errorOf(log.Append(t.Context(), "run_a", stepStart(1))), event.ErrFenced, "Append to a released run")
		job = claimJob(t, log)
		if job.Run() != "run_a" || job.Attempt() != attempt || string(job.Request()) != "what run_a was asked" {
			t.Fatalf(`job is of %s, attempt %d, request %q, want run_a, %d and "what run_a was asked"`,
				job.Run(), job.Attempt(), job.Request(), attempt)
		}
		wantNoJob(t, log)
		w, err := event.ResumeWriter(t.Context(), log, "run_a")
		noError(t, err)
		noError(t, w.Append(t.Context(), event.StepReset{Step: 1, Reason: "taken over"}))
	}
	appendEvent(t, log, "run_a", event.RunError{})
	noError(t, job.Done(t.Context()))
	wantNoJob(t, log)
	if events, err := readAll(t.Context(), log, "run_a"); len(events) != 6 || err != nil {
		t.Errorf("read %d events, %v, want 6", len(events), err)
	}
}

// If a log stores jobs as messages, a released run can have two messages, which two calls of Claim can get at the same
// time.
func testConcurrentClaimsGetDifferentRuns(t *testing.T, log event.Log) {
	const runs = 50
	for i := range runs {
		id := fmt.Sprintf("run_%d", i)
		createRun(t, log, id)
		job := createJob(t, log, id)
		appendEvent(t, log, id, event.Start{})
		noError(t, job.Release(t.Context()))
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
				t.Errorf("%s was claimed twice, want once", job.Run())
			}
			taken[job.Run()] = true
		case <-ctx.Done():
			t.Fatalf("%d runs were claimed, want %d", len(taken), runs)
		}
	}

	for id := range taken {
		appendEvent(t, log, id, stepStart(1))
	}
}

func testParkedRunWakesForAnInput(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	job := createJob(t, log, "run_a")
	appendEvent(t, log, "run_a", event.Start{})
	appendEvent(t, log, "run_a", event.Suspended{})
	noError(t, job.Park(t.Context(), 0, time.Time{}))
	wantNoJob(t, log)
	addInput(t, log, "run_a", "int_1", "yes")
	job = claimJob(t, log)
	page, err := log.Inputs(t.Context(), "run_a", 0)
	if err != nil || len(page.Inputs) != 1 {
		t.Fatalf("Inputs = %+v, %v, want 1 Inputs, no error", page, err)
	}
	// An input that arrives between the executor's last read and Park wakes the run at once.
	addInput(t, log, "run_a", "int_2", "no")
	noError(t, job.Park(t.Context(), page.Inputs[0].Pos, time.Time{}))
	job = claimJob(t, log)
	if page, err = log.Inputs(t.Context(), "run_a", page.Inputs[0].Pos); err != nil || len(page.Inputs) != 1 || page.Inputs[0].ID != "int_2" {
		t.Fatalf("Inputs = %+v, %v, want 1 Inputs with ID int_2, no error", page, err)
	}
	noError(t, job.Park(t.Context(), page.Inputs[0].Pos, time.Time{}))
	wantNoJob(t, log)
	noError(t, log.Delete(t.Context(), "run_a"))
	wantNoJob(t, log)
}

// testParkedRunWakesAtItsTime checks that a parked run wakes at its time and not before, even if it was woken in
// between.
func testParkedRunWakesAtItsTime(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	job := createJob(t, log, "run_a")
	appendEvent(t, log, "run_a", event.Start{})
	for range 2 {
		until := time.Now().Add(time.Second)
		noError(t, job.Park(t.Context(), 0, until))
		wantNoJob(t, log)
		job = claimJob(t, log)
		if early := time.Until(until); early > 0 {
			t.Fatalf("the run was woken %v early, want at its time", early)
		}
	}
	noError(t, job.Park(t.Context(), 0, time.Now().Add(time.Hour)))
	addInput(t, log, "run_a", "int_1", "yes")
	job = claimJob(t, log)
	noError(t, job.Park(t.Context(), 1<<60, time.Now().Add(-time.Hour)))
	job = claimJob(t, log)
	appendEvent(t, log, "run_a", event.FinalAnswer{})
	noError(t, job.Done(t.Context()))
	wantNoJob(t, log)
}

func addInput(t *testing.T, log event.Log, run, id, data string) {
	t.Helper()
	if err := log.AddInput(t.Context(), run, id, []byte(data)); err != nil {
		t.Fatalf("AddInput(%s, %s): %v", run, id, err)
	}
}

func testFirstInputOfAnIDWins(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	createRun(t, log, "run_b")

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
			t.Errorf("AddInput = %v, want nil or %v", err, event.ErrDuplicateInput)
		}
	}
	if wins != 1 {
		t.Errorf("%d calls of AddInput succeeded, want 1", wins)
	}
	addInput(t, log, "run_b", "int_1", "another run's")

	for _, id := range []string{"", "a.b", "*", ">", "a b", "é"} {
		wantError(t, log.AddInput(t.Context(), "run_a", id, nil), event.ErrNotFound, "AddInput with id %q", id)
	}

	wantError(t, log.AddInput(t.Context(), "run_c", "int_1", nil), event.ErrNotFound, "AddInput to an unknown run")
	appendEvent(t, log, "run_a", event.Cancelled{})
	wantError(t, log.AddInput(t.Context(), "run_a", event.CancelID, nil), event.ErrEnded, "AddInput to a run that has ended")
}

func testInputsComeInOrder(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	var got []string
	page, err := log.Inputs(t.Context(), "run_a", 0)
	if err != nil || len(page.Inputs) != 0 {
		t.Fatalf("Inputs = %+v, %v, want 0 Inputs, no error", page, err)
	}
	var giver sync.WaitGroup
	defer giver.Wait()

	giver.Go(func() {
		for _, id := range []string{"int_1", "int_2", event.CancelID} {
			if err := log.AddInput(t.Context(), "run_a", id, []byte(id)); err != nil {
				t.Errorf("AddInput(%s): %v", id, err)
			}
		}
	})

	for pos := int64(0); len(got) < 3; {
		if page, err = log.Inputs(t.Context(), "run_a", pos); err != nil {
			t.Fatal(err)
		}
		for _, in := range page.Inputs {
			if in.Pos <= pos || string(in.Data) != in.ID {
				t.Errorf("input %+v follows position %d, want a higher one and its own id as data", in, pos)
			}
			pos, got = in.Pos, append(got, in.ID)
		}
		if len(page.Inputs) == 0 {
			<-page.More
		}
	}
	if !slices.Equal(got, []string{"int_1", "int_2", event.CancelID}) {
		t.Errorf("inputs are %v, want int_1, int_2 and the cancel request", got)
	}
	wantError(t, errorOf(log.Inputs(t.Context(), "run_a", -1)), event.ErrInvalidPosition, "Inputs after -1")
	wantError(t, errorOf(log.Inputs(t.Context(), "run_b", 0)), event.ErrNotFound, "Inputs of an unknown run")
}
