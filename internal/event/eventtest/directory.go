package eventtest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"answerd/internal/event"
)

// listRuns returns the ids of the runs on all pages of a filter.
func listRuns(t *testing.T, log event.Log, f event.Filter) (ids []string) {
	t.Helper()
	for pages := 0; ; pages++ {
		page, err := log.Runs(t.Context(), f)
		noError(t, err)
		if len(page.Runs) > f.PageSize() || pages > 100 {
			t.Fatalf("page %d has %d runs, want at most %d, and at most 100 pages", pages, len(page.Runs), f.PageSize())
		}
		for _, r := range page.Runs {
			ids = append(ids, r.ID)
		}
		if page.Next == "" {
			return ids
		}
		f.Before = page.Next
	}
}

// wantRuns checks the ids of the runs on all pages of a filter.
func wantRuns(t *testing.T, log event.Log, f event.Filter, want ...string) {
	t.Helper()
	if got := listRuns(t, log, f); !slices.Equal(got, want) {
		t.Errorf("runs of %+v are %v, want %v", f, got, want)
	}
}

func testRunsAreListedByOwner(t *testing.T, log event.Log) {
	var want []string
	for i := range 30 {
		r := event.Run{ID: fmt.Sprintf("run_%02d", i), Owner: ada, ThreadID: fmt.Sprintf("thr %d.*", i%3), Created: time.Now()}
		noError(t, log.Create(t.Context(), r))
		appendEvent(t, log, r.ID, event.Start{})
		switch i % 5 {
		case 0:
			appendEvent(t, log, r.ID, event.FinalAnswer{})
		case 1:
			appendEvent(t, log, r.ID, event.Suspended{})
		}
		want = append([]string{r.ID}, want...)
		if i%4 == 0 {
			run := event.Run{ID: fmt.Sprintf("bobs_%02d", i), Owner: bob, Created: time.Now(), Metadata: map[string]string{"team": "b"}}
			noError(t, log.Create(t.Context(), run))
		}
	}

	every := func(n, rest int) (ids []string) {
		for i := 29; i >= 0; i-- {
			if i%n == rest {
				ids = append(ids, fmt.Sprintf("run_%02d", i))
			}
		}
		return ids
	}

	wantRuns(t, log, event.Filter{Owner: ada}, want...)
	wantRuns(t, log, event.Filter{Owner: ada, Limit: 7}, want...)
	wantRuns(t, log, event.Filter{Owner: ada, ThreadID: "thr 1.*", Limit: 4}, every(3, 1)...)
	wantRuns(t, log, event.Filter{Owner: ada, Status: event.StatusCompleted, Limit: 2}, every(5, 0)...)
	wantRuns(t, log, event.Filter{Owner: ada, Status: event.StatusSuspended}, every(5, 1)...)
	wantRuns(t, log, event.Filter{Owner: ada, Status: event.StatusFailed})
	wantRuns(t, log, event.Filter{Owner: event.Owner{Subject: "ada"}})

	page, err := log.Runs(t.Context(), event.Filter{Owner: bob, Limit: 1})
	if err != nil || len(page.Runs) != 1 || page.Runs[0].Owner != bob || page.Runs[0].Status() != event.StatusRunning || page.Runs[0].Created.IsZero() || page.Runs[0].Metadata["team"] != "b" {
		t.Errorf("Runs of bob = %+v, %v, want one running run with its metadata", page, err)
	}
	wantError(t, errorOf(log.Runs(t.Context(), event.Filter{Owner: ada, Before: "no position!"})), event.ErrInvalidPosition, "Runs with a malformed Before")
}

// testChildRunsAreListedOnRequest lists a parent run and its child run, and checks the Agent and ParentID of both.
func testChildRunsAreListedOnRequest(t *testing.T, log event.Log) {
	ada := event.Owner{Subject: "ada"}
	parent := event.Run{ID: "run_parent", Owner: ada, ThreadID: "thr", Agent: "support", Created: time.Now()}
	child := event.Run{ID: "run_child", Owner: ada, ThreadID: "thr", Agent: "research", ParentID: parent.ID, Created: time.Now()}
	for _, r := range []event.Run{parent, child} {
		noError(t, log.Create(t.Context(), r))
		appendEvent(t, log, r.ID, event.Start{})
		if got, err := log.Run(t.Context(), r.ID); err != nil || got.Agent != r.Agent || got.ParentID != r.ParentID {
			t.Errorf("Run(%s) = agent %q, parent %q, %v, want %q and %q", r.ID, got.Agent, got.ParentID, err, r.Agent, r.ParentID)
		}
	}
	wantRuns(t, log, event.Filter{Owner: ada, ThreadID: "thr"}, "run_parent")
	wantRuns(t, log, event.Filter{Owner: ada, ThreadID: "thr", Children: true}, "run_child", "run_parent")
}

func testDeletedRunIsGone(t *testing.T, log event.Log) {
	ada := event.Owner{Subject: "ada"}
	createRun(t, log, "run_kept")
	appendEvent(t, log, "run_kept", event.Start{})

	for i, end := range []event.Body{stepStart(1), event.FinalAnswer{}} {
		id := fmt.Sprintf("run_%d", i)
		noError(t, log.Create(t.Context(), event.Run{ID: id, Owner: ada, Key: id, Created: time.Now()}))
		addInput(t, log, id, "int_1", "x")
		saveResult(t, log, id, "call_1", []byte("x"))
		appendEvent(t, log, id, end)
		for range 2 { // the second time changes nothing
			noError(t, log.Delete(t.Context(), id))
		}
		if r, err := log.Run(t.Context(), id); !errors.Is(err, event.ErrGone) || r.Owner != ada {
			t.Errorf("Run of a deleted run = %+v, %v, want its owner and %v", r, err, event.ErrGone)
		}
		wantError(t, errorOf(log.After(t.Context(), id, 0)), event.ErrGone, "After of a deleted run")
		wantError(t, errorOf(log.Append(t.Context(), id, event.FinalAnswer{})), event.ErrGone, "Append to a deleted run")
		wantError(t, errorOf(log.Result(t.Context(), id, "call_1")), event.ErrGone, "Result of a deleted run")
		wantError(t, errorOf(log.Inputs(t.Context(), id, 0)), event.ErrGone, "Inputs of a deleted run")
		wantError(t, log.AddInput(t.Context(), id, "int_2", nil), event.ErrGone, "AddInput to a deleted run")
		wantError(t, log.Create(t.Context(), event.Run{ID: id}), event.ErrExists, "Create with the id of a deleted run")
		wantError(t, errorOf(log.RunByKey(t.Context(), ada, id)), event.ErrNotFound, "RunByKey of a deleted run")
		if err := log.Create(t.Context(), event.Run{ID: id + "_again", Owner: ada, Key: id, Created: time.Now()}); err != nil {
			t.Errorf("Create with the key of a deleted run: %v", err)
		}
		if err := log.Delete(t.Context(), id+"_again"); err != nil {
			t.Error(err)
		}
	}

	wantRuns(t, log, event.Filter{Owner: ada}, "run_kept")
	wantError(t, log.Delete(t.Context(), "run_unknown"), event.ErrNotFound, "Delete of an unknown run")
}

// testKeyRefersToOneRun creates runs with one key concurrently (fault F38).
func testKeyRefersToOneRun(t *testing.T, log event.Log) {
	ada := event.Owner{Subject: "ada"}
	with := func(id string, owner event.Owner, key string, print byte) error {
		return log.Create(t.Context(), event.Run{ID: id, Owner: owner, Key: key, Fingerprint: [32]byte{print}, Created: time.Now()})
	}

	errs := make(chan error, 8)
	for i := range cap(errs) {
		go func() { errs <- with(fmt.Sprintf("run_%d", i), ada, "a key.*", 1) }()
	}

	wins, winner := 0, ""
	for range cap(errs) {
		err := <-errs
		var used *event.KeyError
		switch {
		case err == nil:
			wins++
		case !errors.As(err, &used) || !used.Same || winner != "" && used.Run != winner:
			t.Errorf("Create = %v, %+v, want a KeyError with the run of the first", err, used)
		default:
			winner = used.Run
		}
	}
	if wins != 1 {
		t.Errorf("%d calls of Create succeeded, want 1", wins)
	}
	wantRuns(t, log, event.Filter{Owner: ada}, winner)
	noError(t, errorOf(log.Append(t.Context(), winner, event.Start{}))) // a log may wait for the run's first event
	if r, err := log.RunByKey(t.Context(), ada, "a key.*"); err != nil || r.ID != winner || r.Fingerprint != [32]byte{1} || r.Owner != ada {
		t.Errorf("RunByKey = %+v, %v, want %s of ada", r, err, winner)
	}
	wantError(t, errorOf(log.RunByKey(t.Context(), ada, "an unknown key")), event.ErrNotFound, "RunByKey of an unknown key")
	var used *event.KeyError
	if err := with("run_x", ada, "a key.*", 2); !errors.As(err, &used) || used.Same || used.Run != winner {
		t.Errorf("Create for another request = %v, %+v, want a KeyError that is not Same", err, used)
	}
	if err := with("run_y", event.Owner{Subject: "bob"}, "a key.*", 2); err != nil {
		t.Errorf("Create by another owner: %v", err)
	}
	if err := with("run_z", ada, "another key", 2); err != nil {
		t.Errorf("Create with another key: %v", err)
	}
}
