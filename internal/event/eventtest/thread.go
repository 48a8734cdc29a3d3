package eventtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/event"
)

// Threads runs the suite for event.Threads. open must return an empty log and release it with t.Cleanup.
func Threads(t *testing.T, open func(t *testing.T) event.Log) {
	for _, c := range []struct {
		name string
		test func(*testing.T, event.Log)
	}{
		{"TurnBeginsAndEnds", testTurnBeginsAndEnds},
		{"NewThreadBeginsWithItsRun", testNewThreadBeginsWithItsRun},
		{"NewThreadReplacesADeletedOne", testNewThreadReplacesADeletedOne},
		{"NewThreadIsRefusedWhileOneIsActive", testNewThreadIsRefusedWhileOneIsActive},
		{"TurnEndsOnce", testTurnEndsOnce},
		{"OneOfManyBegins", testOneOfManyBegins},
		{"DeletedThreadIsGone", testDeletedThreadIsGone},
		{"OwnersAreIsolated", testOwnersAreIsolated},
		{"AnyIDIsKept", testAnyIDIsKept},
		{"TitlesAreCut", testTitlesAreCut},
		{"ThreadsAreListedByUpdate", testThreadsAreListedByUpdate},
		{"ThreadsAreFoundByTitle", testThreadsAreFoundByTitle},
		{"TurnsAreReadInPages", testTurnsAreReadInPages},
		{"LargeTurnIsKeptUnchanged", testLargeTurnIsKeptUnchanged},
		{"ConcurrentTurnsAreAllKept", testConcurrentTurnsAreAllKept},
		{"EndedContextReturns", testEndedContextReturns},
	} {
		t.Run(c.name, func(t *testing.T) { t.Parallel(); c.test(t, open(t)) })
	}
}

var ada, bob = event.Owner{Issuer: "i", Subject: "ada"}, event.Owner{Issuer: "i", Subject: "bob"}

func beginTurn(t *testing.T, log event.Log, owner event.Owner, thread, run string) event.Thread {
	t.Helper()
	begun, err := log.BeginTurn(t.Context(), owner, thread, run, "support", "About "+thread)
	noError(t, err)
	return begun
}

func endTurn(t *testing.T, log event.Log, owner event.Owner, thread, run string, data []byte) {
	t.Helper()
	noError(t, log.EndTurn(t.Context(), owner, thread, run, data))
}

// addTurn begins and ends a turn.
func addTurn(t *testing.T, log event.Log, owner event.Owner, thread, run, data string) {
	t.Helper()
	beginTurn(t, log, owner, thread, run)
	endTurn(t, log, owner, thread, run, []byte(data))
}

func getThread(t *testing.T, log event.Log, owner event.Owner, thread string) event.Thread {
	t.Helper()
	got, err := log.Thread(t.Context(), owner, thread)
	noError(t, err)
	return got
}

// wantBusy checks that err is a BusyError with the active run run. what is a format with args, and describes the call
// that returned err.
func wantBusy(t *testing.T, err error, run, what string, args ...any) {
	t.Helper()
	busy, ok := errors.AsType[*event.BusyError](err)
	if !ok || busy.Run != run {
		t.Errorf("%s = %v, %+v, want a BusyError with %s", fmt.Sprintf(what, args...), err, busy, run)
	}
}

func testTurnBeginsAndEnds(t *testing.T, log event.Log) {
	before := log.Now().Add(-time.Second)
	wantError(t, errorOf(log.Thread(t.Context(), ada, "thr_a")), event.ErrNotFound, "Thread of an unknown id")
	begun := beginTurn(t, log, ada, "thr_a", "run_1")
	want := event.Thread{
		ID:      "thr_a",
		Owner:   ada,
		Title:   "About thr_a",
		Agent:   "support",
		Active:  "run_1",
		Created: begun.Created,
		Updated: begun.Updated,
	}
	if begun != want || begun.Created.Before(before) || begun.Updated.Before(before) {
		t.Errorf("BeginTurn = %+v, want %+v of now", begun, want)
	}
	if got := getThread(t, log, ada, "thr_a"); !sameThread(got, begun) {
		t.Errorf("Thread = %+v, want %+v as BeginTurn returned it", got, begun)
	}
	if again := beginTurn(t, log, ada, "thr_a", "run_1"); !sameThread(again, begun) {
		t.Errorf("BeginTurn of the active run = %+v, want %+v", again, begun)
	}
	wantBusy(t, errorOf(log.BeginTurn(t.Context(), ada, "thr_a", "run_2", "other", "other")), "run_1", "BeginTurn while run_1 is active")
	endTurn(t, log, ada, "thr_a", "run_1", []byte("first"))
	ended := getThread(t, log, ada, "thr_a")
	if ended.Active != "" || ended.Turns != 1 || ended.LastRun != "run_1" || ended.Updated.Before(begun.Updated) || !ended.Created.Equal(begun.Created) {
		t.Errorf("Thread after EndTurn = %+v, want one turn of run_1 and no active run", ended)
	}
	if begun, err := log.BeginTurn(t.Context(), ada, "thr_a", "run_2", "research", "another title"); err != nil || begun.Title != "About thr_a" || begun.Agent != "research" || begun.LastRun != "run_1" {
		t.Errorf("BeginTurn of a second run = %+v, %v, want the new agent and the title of the first turn", begun, err)
	}
	endTurn(t, log, ada, "thr_a", "run_2", nil)
	if got := getThread(t, log, ada, "thr_a"); got.Active != "" || got.Turns != 1 || got.LastRun != "run_1" {
		t.Errorf("Thread after EndTurn without data = %+v, want one turn of run_1 and no active run", got)
	}
	addTurn(t, log, ada, "thr_a", "run_3", "")
	wantTurns(t, log, ada, "thr_a", "first", "")
}

// sameThread compares threads, even if their times have lost the monotonic clock readings.
func sameThread(a, b event.Thread) bool {
	same := a.Created.Equal(b.Created) && a.Updated.Equal(b.Updated)
	b.Created, b.Updated = a.Created, a.Updated
	return same && a == b
}

// startThread creates a run with a new thread, and appends the start event. It returns an error of BeginThread or
// Append.
func startThread(t *testing.T, log event.Log, thread, run string) error {
	t.Helper()
	r := event.Run{ID: run, ThreadID: thread, Owner: ada, Created: log.Now(), Agent: "support"}
	noError(t, log.Create(t.Context(), r))
	if err := log.BeginThread(t.Context(), r, "About "+thread); err != nil {
		return err
	}
	_, err := log.Append(t.Context(), run, event.Start{})
	return err
}

// wantActive checks that the thread is listed, can be read, and has the active run run.
func wantActive(t *testing.T, log event.Log, thread, run string) {
	t.Helper()
	page, err := log.ListThreads(t.Context(), event.ThreadFilter{Owner: ada})
	got := getThread(t, log, ada, thread) // after ListThreads, because reading the thread may add it to the list
	if got.Active != run || got.Title != "About "+thread || got.Agent != "support" || got.Turns != 0 {
		t.Errorf("Thread = %+v, want the new one with the active run %s", got, run)
	}
	if err != nil || len(page.Threads) != 1 || !sameThread(page.Threads[0], got) {
		t.Errorf("ListThreads = %+v, %v, want %+v", page.Threads, err, got)
	}
}

func testNewThreadBeginsWithItsRun(t *testing.T, log event.Log) {
	noError(t, startThread(t, log, "thr_a", "run_1"))
	wantActive(t, log, "thr_a", "run_1")
	wantBusy(t, errorOf(log.BeginTurn(t.Context(), ada, "thr_a", "run_2", "", "")), "run_1", "BeginTurn while run_1 is active")
	endTurn(t, log, ada, "thr_a", "run_1", []byte("first"))
	addTurn(t, log, ada, "thr_a", "run_2", "second")
	wantTurns(t, log, ada, "thr_a", "first", "second")
}

// testNewThreadReplacesADeletedOne is needed because a durable log may still have parts of the deleted thread.
func testNewThreadReplacesADeletedOne(t *testing.T, log event.Log) {
	addTurn(t, log, ada, "thr_a", "run_1", "old")
	noError(t, log.DeleteThread(t.Context(), ada, "thr_a"))
	noError(t, startThread(t, log, "thr_a", "run_2"))
	wantActive(t, log, "thr_a", "run_2")
}

func testNewThreadIsRefusedWhileOneIsActive(t *testing.T, log event.Log) {
	beginTurn(t, log, ada, "thr_a", "run_1")
	wantBusy(t, startThread(t, log, "thr_a", "run_2"), "run_1", "BeginThread and Append")
	if got := getThread(t, log, ada, "thr_a"); got.Active != "run_1" {
		t.Errorf("the active run of the thread is %q, want run_1", got.Active)
	}
}

func testTurnEndsOnce(t *testing.T, log event.Log) {
	addTurn(t, log, ada, "thr_a", "run_1", "first")
	endTurn(t, log, ada, "thr_a", "run_1", []byte("again"))
	beginTurn(t, log, ada, "thr_a", "run_2")
	endTurn(t, log, ada, "thr_a", "run_1", []byte("again"))
	endTurn(t, log, ada, "thr_a", "run_1", nil)
	if got := getThread(t, log, ada, "thr_a"); got.Active != "run_2" || got.Turns != 1 {
		t.Errorf("Thread after a second EndTurn of run_1 = %+v, want run_2 active and one turn", got)
	}
	// A process that considers run_2 dead lets run_3 begin. run_2 ends after all.
	endTurn(t, log, ada, "thr_a", "run_2", nil)
	beginTurn(t, log, ada, "thr_a", "run_3")
	endTurn(t, log, ada, "thr_a", "run_2", []byte("second"))
	if got := getThread(t, log, ada, "thr_a"); got.Active != "run_3" || got.Turns != 2 || got.LastRun != "run_2" {
		t.Errorf("Thread after the late EndTurn of run_2 = %+v, want run_3 active and two turns", got)
	}
	endTurn(t, log, ada, "thr_a", "run_3", []byte("third"))
	wantTurns(t, log, ada, "thr_a", "first", "second", "third")
	wantError(t, log.EndTurn(t.Context(), ada, "thr_a", "run_4", []byte("x")), event.ErrNotFound, "EndTurn of a run that began no turn")
	wantError(t, log.EndTurn(t.Context(), ada, "thr_b", "run_3", []byte("x")), event.ErrNotFound, "EndTurn of an unknown thread")
}

// testOneOfManyBegins lets several runs race for one thread, in several rounds.
func testOneOfManyBegins(t *testing.T, log event.Log) { RaceBeginTurn(t, log) }

// RaceBeginTurn lets runs race for one thread, in several rounds. logs are used in turn, and may share their storage.
func RaceBeginTurn(t *testing.T, logs ...event.Log) {
	const rounds, runs = 5, 8
	for round := range rounds {
		var all sync.WaitGroup
		errs := make([]error, runs)
		for n := range runs {
			all.Go(func() {
				_, errs[n] = logs[n%len(logs)].BeginTurn(t.Context(), ada, "thr_race", fmt.Sprintf("run_%d_%d", round, n), "", "race")
			})
		}
		all.Wait()
		winner := slices.IndexFunc(errs, func(err error) bool { return err == nil })
		if winner < 0 {
			t.Fatalf("round %d: BeginTurn = %v, want one without an error", round, errs)
		}
		run := fmt.Sprintf("run_%d_%d", round, winner)
		for n, err := range errs {
			if n != winner {
				wantBusy(t, err, run, "round %d: BeginTurn of run %d", round, n)
			}
		}
		// Each log ends the turn, as two processes may do after a takeover.
		for _, log := range logs {
			endTurn(t, log, ada, "thr_race", run, fmt.Appendf(nil, "%d", round))
		}
	}
	for _, log := range logs {
		if got, want := readTurns(t, log, ada, "thr_race", 2, 1<<20), []string{"0", "1", "2", "3", "4"}; !slices.Equal(got, want) {
			t.Errorf("turns = %q, want %q", got, want)
		}
	}
}

func testDeletedThreadIsGone(t *testing.T, log event.Log) {
	addTurn(t, log, ada, "thr_a", "run_1", "secret")
	addTurn(t, log, ada, "thr_kept", "run_k", "kept")
	beginTurn(t, log, ada, "thr_a", "run_2")
	noError(t, log.DeleteThread(t.Context(), ada, "thr_a"))

	checkGone := func() {
		t.Helper()
		wantError(t, errorOf(log.Thread(t.Context(), ada, "thr_a")), event.ErrNotFound, "Thread of a deleted thread")
		if page, err := log.Turns(t.Context(), ada, "thr_a", 0, 10, 1<<20); !errors.Is(err, event.ErrNotFound) {
			t.Errorf("Turns of a deleted thread = %+v, %v, want %v", page, err, event.ErrNotFound)
		}
		wantError(t, errorOf(log.RenameThread(t.Context(), ada, "thr_a", "x")), event.ErrNotFound, "RenameThread of a deleted thread")
		wantError(t, log.DeleteThread(t.Context(), ada, "thr_a"), event.ErrNotFound, "DeleteThread of a deleted thread")
		wantThreads(t, log, event.ThreadFilter{Owner: ada}, "thr_kept")
	}

	checkGone()
	wantError(t, log.EndTurn(t.Context(), ada, "thr_a", "run_2", []byte("late")), event.ErrNotFound, "EndTurn after the deletion")
	checkGone()

	// A new thread with that id has nothing of the deleted one, and the deleted one's runs cannot end in it.
	if begun := beginTurn(t, log, ada, "thr_a", "run_3"); begun.Turns != 0 || begun.LastRun != "" {
		t.Errorf("BeginTurn after the deletion = %+v, want a new thread", begun)
	}

	for _, run := range []string{"run_1", "run_2"} {
		wantError(t, log.EndTurn(t.Context(), ada, "thr_a", run, []byte("late")), event.ErrNotFound, "EndTurn of %s of the deleted thread", run)
	}

	endTurn(t, log, ada, "thr_a", "run_3", []byte("new"))
	wantTurns(t, log, ada, "thr_a", "new")
	wantTurns(t, log, ada, "thr_kept", "kept")
}

func testOwnersAreIsolated(t *testing.T, log event.Log) {
	owners := []event.Owner{ada, bob, {Subject: "ada"}, {}, {Issuer: "ia", Subject: "da"}}
	for i, owner := range owners {
		addTurn(t, log, owner, "thr", fmt.Sprintf("run_%d", i), fmt.Sprint("of ", i))
	}
	for i, owner := range owners {
		wantTurns(t, log, owner, "thr", fmt.Sprint("of ", i))
		wantThreads(t, log, event.ThreadFilter{Owner: owner}, "thr")
	}
	addTurn(t, log, ada, "adas", "run_x", "x")
	for _, err := range []error{
		errorOf(log.Thread(t.Context(), bob, "adas")), errorOf(log.Turns(t.Context(), bob, "adas", 0, 1, 1)),
		errorOf(log.RenameThread(t.Context(), bob, "adas", "x")), log.DeleteThread(t.Context(), bob, "adas"),
		log.EndTurn(t.Context(), bob, "adas", "run_x", nil),
	} {
		if !errors.Is(err, event.ErrNotFound) {
			t.Errorf("a method for another owner = %v, want %v", err, event.ErrNotFound)
		}
	}
	if got := getThread(t, log, ada, "adas"); got.Title != "About adas" {
		t.Errorf("Thread = %+v, want it unchanged", got)
	}
}

func testAnyIDIsKept(t *testing.T, log event.Log) {
	ids := []string{"a.b.*", ">", "*", "with space\n\x00", "é\u2028", strings.Repeat("x", event.MaxThreadID), "../../etc", "$JS.API.>", "A", "a"}
	for i, id := range ids {
		addTurn(t, log, ada, id, fmt.Sprintf("run_%d", i), id)
	}
	for _, id := range ids {
		wantTurns(t, log, ada, id, id)
	}
	slices.Reverse(ids)
	wantThreads(t, log, event.ThreadFilter{Owner: ada, Limit: 3}, ids...)
	for _, id := range []string{"", "\xff", strings.Repeat("x", event.MaxThreadID+1)} {
		for _, err := range []error{
			errorOf(log.BeginTurn(t.Context(), ada, id, "run_x", "", "")), log.EndTurn(t.Context(), ada, id, "run_x", nil),
			errorOf(log.Thread(t.Context(), ada, id)), errorOf(log.Turns(t.Context(), ada, id, 0, 1, 1)),
			errorOf(log.RenameThread(t.Context(), ada, id, "x")), log.DeleteThread(t.Context(), ada, id),
		} {
			if !errors.Is(err, event.ErrNotFound) {
				t.Errorf("a method for the invalid id %.10q = %v, want %v", id, err, event.ErrNotFound)
			}
		}
	}
}

func testTitlesAreCut(t *testing.T, log event.Log) {
	long := strings.Repeat("ä", event.MaxTitle)
	begun, err := log.BeginTurn(t.Context(), ada, "thr_a", "run_1", "", "x"+long)
	if err != nil || len(begun.Title) != event.MaxTitle-1 || !strings.HasPrefix(begun.Title, "xää") {
		t.Errorf("BeginTurn with a long title = %q, %v, want its first %d bytes", begun.Title, err, event.MaxTitle-1)
	}
	for title, want := range map[string]string{long: long[:event.MaxTitle], "": "", "a\xffb": "a\uFFFDb", "<b>\n": "<b>\n"} {
		if renamed, err := log.RenameThread(t.Context(), ada, "thr_a", title); err != nil || renamed.Title != want || renamed.Active != "run_1" {
			t.Errorf("RenameThread(%.10q) = %+v, %v, want title %.10q", title, renamed, err, want)
		}
		if got := getThread(t, log, ada, "thr_a"); got.Title != want {
			t.Errorf("title = %.10q, want %.10q", got.Title, want)
		}
	}
}

func testLargeTurnIsKeptUnchanged(t *testing.T, log event.Log) {
	large := bytes.Repeat([]byte{0, 1, 255, '"'}, event.MaxTurn/4)
	for i := range 4 {
		addTurn(t, log, ada, "thr_a", fmt.Sprintf("run_%d", i), string(large))
	}
	page, err := log.Turns(t.Context(), ada, "thr_a", 0, 10, 4*event.MaxTurn)
	if err != nil || len(page.Turns) != 4 {
		t.Fatalf("Turns = %d turns, %v, want 4", len(page.Turns), err)
	}
	for _, turn := range page.Turns {
		if !bytes.Equal(turn.Data, large) {
			t.Errorf("turn %d has %d bytes that differ, want the same %d", turn.Number, len(turn.Data), len(large))
		}
	}
	beginTurn(t, log, ada, "thr_a", "run_5")
	wantError(t, log.EndTurn(t.Context(), ada, "thr_a", "run_5", append(large, 1)), event.ErrTooLarge, "EndTurn beyond MaxTurn")
	if got := getThread(t, log, ada, "thr_a"); got.Active != "run_5" || got.Turns != 4 {
		t.Errorf("Thread after the refused EndTurn = %+v, want run_5 active and four turns", got)
	}
}

// testConcurrentTurnsAreAllKept adds turns to threads of two owners while the threads are being listed and renamed.
func testConcurrentTurnsAreAllKept(t *testing.T, log event.Log) {
	const turns = 10
	owners := map[string]event.Owner{"thr_0": ada, "thr_1": bob, "thr_2": ada, "thr_3": bob, "thr_4": ada, "thr_5": bob}
	var all sync.WaitGroup
	for thread, owner := range owners {
		all.Go(func() {
			for n := range turns {
				run := fmt.Sprintf("run_%s_%d", thread, n)
				if _, err := log.BeginTurn(t.Context(), owner, thread, run, "", thread); err != nil {
					t.Error(err)
				}
				if err := log.EndTurn(t.Context(), owner, thread, run, fmt.Append(nil, n)); err != nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			for n := range turns {
				_, err := log.RenameThread(t.Context(), owner, thread, fmt.Sprint("name ", n))
				if err != nil && !errors.Is(err, event.ErrNotFound) {
					t.Errorf("RenameThread = %v, want no error or %v", err, event.ErrNotFound)
				}
				if _, err := log.ListThreads(t.Context(), event.ThreadFilter{Owner: owner}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for thread, owner := range owners {
		if got := readTurns(t, log, owner, thread, 100, 1<<20); len(got) != turns || !slices.IsSorted(got) {
			t.Errorf("turns of %s = %q, want %d in order", thread, got, turns)
		}
		if got := getThread(t, log, owner, thread); got.Turns != turns || got.Active != "" {
			t.Errorf("Thread = %+v, want %d turns and no active run", got, turns)
		}
	}
}

// testEndedContextReturns calls the methods with a context that has ended. They may succeed, but must return soon.
func testEndedContextReturns(t *testing.T, log event.Log) {
	addTurn(t, log, ada, "thr_a", "run_1", "x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	for _, err := range []error{
		errorOf(log.BeginTurn(ctx, ada, "thr_b", "run_2", "", "")), log.EndTurn(ctx, ada, "thr_a", "run_1", []byte("x")), errorOf(log.Thread(ctx, ada, "thr_a")),
		errorOf(log.Turns(ctx, ada, "thr_a", 0, 1, 1)), errorOf(log.ListThreads(ctx, event.ThreadFilter{Owner: ada})),
		errorOf(log.RenameThread(ctx, ada, "thr_a", "x")), log.DeleteThread(ctx, ada, "thr_a"),
	} {
		if err != nil && !errors.Is(err, event.ErrUnavailable) && !errors.Is(err, context.Canceled) {
			t.Errorf("a method with an ended context = %v, want no error or %v", err, event.ErrUnavailable)
		}
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the methods took %v with an ended context, want less than 2s", took)
	}
}
