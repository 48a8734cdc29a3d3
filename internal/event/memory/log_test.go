package memory_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/memory"
)

func TestMain(m *testing.M) {
	// The tests that run in parallel wait for leases and wake times most of the time.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func TestLog(t *testing.T) {
	t.Parallel()
	eventtest.Run(t, func(*testing.T) event.Log { return memory.New(memory.Options{}) })
}

func TestLogAnswersAsItsModel(t *testing.T) {
	eventtest.Model(t, memory.New(memory.Options{}), nil)
}

func createRun(t *testing.T, log event.Log, id string, bodies ...event.Body) {
	t.Helper()
	if err := log.Create(t.Context(), event.Run{ID: id, Owner: event.Owner{Subject: "ada"}}); err != nil {
		t.Fatal(err)
	}
	for _, b := range bodies {
		if _, err := log.Append(t.Context(), id, b); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRunIsGoneAfterItsRetentionAndKeepsItsOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memory.New(memory.Options{Retention: time.Minute})
		createRun(t, log, "run_a", event.Start{}, event.FinalAnswer{})
		createRun(t, log, "run_live", event.Start{})
		<-time.After(time.Minute - time.Nanosecond)
		if _, err := log.After(t.Context(), "run_a", 0); err != nil {
			t.Fatalf("After a nanosecond before the retention has passed: %v", err)
		}
		<-time.After(time.Nanosecond)
		if _, err := log.After(t.Context(), "run_a", 0); !errors.Is(err, event.ErrGone) {
			t.Fatalf("After when the retention has passed = %v, want %v", err, event.ErrGone)
		}
		createRun(t, log, "run_b", event.Start{}) // drops what has expired
		r, err := log.Run(t.Context(), "run_a")
		if !errors.Is(err, event.ErrGone) || r.Owner.Subject != "ada" {
			t.Fatalf("Run = owner %q, %v, want owner ada, %v", r.Owner.Subject, err, event.ErrGone)
		}
		if _, err := log.After(t.Context(), "run_live", 0); err != nil {
			t.Fatalf("After of a run that has not ended: %v", err)
		}
	})
}

func TestFullLogDeletesRunsByShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memory.New(memory.Options{MaxBytes: 8 << 20})
		defer log.Close()
		eventtest.Fairness(t, 8<<20/4*3, func(*testing.T) event.Log { return log })
	})
}

func TestMaxBytesDropsTheRunThatEndedFirst(t *testing.T) {
	log := memory.New(memory.Options{MaxBytes: 64 << 10})
	filler := event.Start{Question: strings.Repeat("x", 10<<10)}
	for i := range 10 {
		createRun(t, log, fmt.Sprintf("run_%d", i), filler, event.FinalAnswer{})
	}
	if _, err := log.After(t.Context(), "run_0", 0); !errors.Is(err, event.ErrGone) {
		t.Fatalf("After of the run that ended first = %v, want %v", err, event.ErrGone)
	}
	if page, err := log.After(t.Context(), "run_9", 0); err != nil || len(page.Events) != 2 {
		t.Fatalf("After of the run that ended last = %d events, %v, want 2", len(page.Events), err)
	}
}

func TestMaxBytesDropsRunsOfAnOwnerAboveItsShareFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memory.New(memory.Options{MaxBytes: 256 << 10})
		const quiet = 10
		for i := range quiet {
			createEndedRun(t, log, fmt.Sprintf("run_quiet%d", i), fmt.Sprint("quiet", i%3), 1<<10)
		}

		for i := range 100 {
			createEndedRun(t, log, fmt.Sprintf("run_flood%d", i), "flood", 10<<10)
			<-time.After(time.Second)
		}

		createEndedRun(t, log, "run_late", "late", 40<<10) // makes space at the cost of the flood, too
		for i := range quiet {
			if _, err := log.After(t.Context(), fmt.Sprintf("run_quiet%d", i), 0); err != nil {
				t.Errorf("After of run %d of an owner below its share = %v, want no error", i, err)
			}
		}

		if _, err := log.After(t.Context(), "run_flood0", 0); !errors.Is(err, event.ErrGone) {
			t.Errorf("After of the first run of the owner above its share = %v, want %v", err, event.ErrGone)
		}
		if _, err := log.After(t.Context(), "run_flood99", 0); err != nil {
			t.Errorf("After of the last run of the owner above its share = %v, want no error", err)
		}
	})
}

// The share of a caller among many is small. If its runs were dropped as soon as they end, the
// readers of their streams would not get the last events.
func TestMaxBytesKeepsARunThatJustEndedOfAnOwnerAboveItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memory.New(memory.Options{MaxBytes: 256 << 10})
		for i := range 100 {
			createEndedRun(t, log, fmt.Sprintf("run_quiet%d", i), fmt.Sprint("quiet", i), 1<<10)
		}
		<-time.After(time.Minute)
		for i := range 20 {
			id := fmt.Sprintf("run_busy%d", i)
			createEndedRun(t, log, id, "busy", 1<<10)
			<-time.After(time.Second)
			createEndedRun(t, log, id+"b", "busy", 1<<10)
			if _, err := log.After(t.Context(), id, 0); err != nil {
				t.Errorf("After of %s, a second after its end = %v, want no error", id, err)
			}
		}
	})
}

// createEndedRun adds a run of an owner with a question of size bytes and an answer.
func createEndedRun(t *testing.T, log *memory.Log, id, owner string, size int) {
	t.Helper()
	if err := log.Create(t.Context(), event.Run{ID: id, Owner: event.Owner{Subject: owner}}); err != nil {
		t.Fatal(err)
	}
	for _, b := range []event.Body{event.Start{Question: strings.Repeat("x", size)}, event.FinalAnswer{}} {
		if _, err := log.Append(t.Context(), id, b); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMaxBytesDropsTheFirstEventsOfTheOnlyRun(t *testing.T) {
	log := memory.New(memory.Options{MaxBytes: 64 << 10})
	createRun(t, log, "run_a", event.Start{})

	for range 100 {
		if _, err := log.Append(t.Context(), "run_a", event.TextDelta{PartID: "p", Delta: strings.Repeat("x", 2<<10)}); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := log.After(t.Context(), "run_a", 1); !errors.Is(err, event.ErrGone) {
		t.Fatalf("After(1) = %v, want %v", err, event.ErrGone)
	}

	for seq := int64(95); seq < 101; {
		page, err := log.After(t.Context(), "run_a", seq)
		if err != nil || len(page.Events) == 0 || page.Events[0].Seq != seq+1 {
			t.Fatalf("After(%d) = %d events, %v, want events from %d on", seq, len(page.Events), err, seq+1)
		}
		seq += int64(len(page.Events))
	}
}

// A page that was read stays valid when the log drops its events.
func TestAfterReadsTheSameFromEveryPosition(t *testing.T) {
	for _, size := range []int{1, 31, 32, 33, 64, 100} {
		log := memory.New(memory.Options{MaxBytes: int64(size) * 300})
		createRun(t, log, "run_a", event.Start{})
		first, err := log.After(t.Context(), "run_a", 0)
		if err != nil {
			t.Fatal(err)
		}

		for n := range 300 {
			if _, err := log.Append(t.Context(), "run_a", event.TextDelta{PartID: "p", Delta: fmt.Sprint("word ", n)}); err != nil {
				t.Fatal(err)
			}
		}

		kept := 0
		for seq := range int64(301) {
			for pos := seq; pos < 301; {
				page, err := log.After(t.Context(), "run_a", pos)
				if pos == seq && errors.Is(err, event.ErrGone) {
					break
				}
				if err != nil || len(page.Events) == 0 || page.Ended || page.More != nil {
					t.Fatalf("After(%d) = %+v, %v, want events and no end", pos, page, err)
				}
				for _, e := range page.Events {
					if pos++; e.Seq != pos || e.Body == nil || !strings.Contains(string(e.AppendJSON(nil)), fmt.Sprintf(`"seq":%d,`, pos)) {
						t.Fatalf("event %d is %+v, want Seq %d, Body non-nil, AppendJSON(nil) containing %q", pos, e, pos, fmt.Sprintf(`"seq":%d,`, pos))
					}
				}
				if page.HasNext != (pos < 301) {
					t.Fatalf("page that ends at event %d: HasNext = %v, want %v", pos, page.HasNext, pos < 301)
				}
				kept++
			}
		}
		if kept == 0 || first.Events[0].Seq != 1 {
			t.Errorf("MaxBytes %d: %d pages were read, want some; the first page has event %d, want 1", size*300, kept, first.Events[0].Seq)
		}
	}
}

// A process that is short of memory gets it back from runs that have ended.
func TestDropEndedRunsDropsAQuarterInTheOrderOfTheirEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memory.New(memory.Options{})
		createRun(t, log, "run_live", event.Start{})

		for i := range 8 {
			createRun(t, log, fmt.Sprintf("run_%d", i), event.Start{}, event.FinalAnswer{})
		}

		for _, left := range []int{6, 4, 3, 2, 1, 0, 0} {
			log.DropEndedRuns()
			log.DropEndedRuns() // too soon: does nothing
			for i := range 8 {
				if _, err := log.After(t.Context(), fmt.Sprintf("run_%d", i), 0); errors.Is(err, event.ErrGone) != (i < 8-left) {
					t.Errorf("After of run %d = %v, want the last %d runs kept", i, err, left)
				}
			}
			<-time.After(2 * time.Second)
		}

		if _, err := log.After(t.Context(), "run_live", 0); err != nil {
			t.Errorf("After of a run that has not ended: %v", err)
		}
	})
}

func TestResultIsGoneWithItsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memory.New(memory.Options{Retention: time.Minute})
		createRun(t, log, "run_a", event.Start{})
		saveResult(t, log, "run_a", "call_1", 10)
		if _, err := log.Append(t.Context(), "run_a", event.FinalAnswer{}); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)

		for _, when := range []string{"expired", "dropped"} {
			if _, err := log.Result(t.Context(), "run_a", "call_1"); !errors.Is(err, event.ErrGone) {
				t.Errorf("Result of a run that is %s = %v, want %v", when, err, event.ErrGone)
			}
			if err := log.SaveResult(t.Context(), "run_a", "call_1", nil); !errors.Is(err, event.ErrGone) {
				t.Errorf("SaveResult of a run that is %s = %v, want %v", when, err, event.ErrGone)
			}
			createRun(t, log, "run_"+when, event.Start{})
		}
	})
}

func TestMaxBytesDropsResultsBeforeEvents(t *testing.T) {
	log := memory.New(memory.Options{MaxBytes: 64 << 10})
	createRun(t, log, "run_a", event.Start{})

	for i := range 20 {
		saveResult(t, log, "run_a", fmt.Sprintf("call_%d", i), 10<<10)
	}

	if _, err := log.Result(t.Context(), "run_a", "call_0"); !errors.Is(err, event.ErrGone) {
		t.Errorf("the oldest Result = %v, want %v", err, event.ErrGone)
	}
	if got, err := log.Result(t.Context(), "run_a", "call_19"); err != nil || len(got) != 10<<10 {
		t.Errorf("the newest Result has %d bytes, %v, want %d", len(got), err, 10<<10)
	}
	if page, err := log.After(t.Context(), "run_a", 0); err != nil || len(page.Events) != 1 {
		t.Errorf("After(0) = %d events, %v, want 1", len(page.Events), err)
	}
	saveResult(t, log, "run_a", "call_20", 1<<20)
	if _, err := log.Result(t.Context(), "run_a", "call_20"); !errors.Is(err, event.ErrGone) {
		t.Errorf("Result that is larger than the log = %v, want %v", err, event.ErrGone)
	}
}

func saveResult(t *testing.T, log event.Log, run, call string, size int) {
	t.Helper()
	if err := log.SaveResult(t.Context(), run, call, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
}

func TestTombstonesAreBounded(t *testing.T) {
	const kept = 16384
	log := memory.New(memory.Options{})
	for n := range 3 * kept {
		id := fmt.Sprintf("run_%d", n)
		createRun(t, log, id)
		if err := log.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	for n, want := range map[int]error{0: event.ErrNotFound, kept - 1: event.ErrNotFound, 2 * kept: event.ErrGone, 3*kept - 1: event.ErrGone} {
		id := fmt.Sprintf("run_%d", n)
		if _, err := log.After(t.Context(), id, 0); !errors.Is(err, want) {
			t.Errorf("After of run %d = %v, want %v", n, err, want)
		}
		if r, err := log.Run(t.Context(), id); !errors.Is(err, want) || errors.Is(err, event.ErrGone) && r.Owner.Subject != "ada" {
			t.Errorf("Run of run %d = owner %q, %v, want owner ada, %v", n, r.Owner.Subject, err, want)
		}
	}
}

// A reader that comes when the tail of a run is gone reads the same events, decoded from their JSON, as
// one that followed the run.
func TestAfterReadsTheSameWithoutTheTail(t *testing.T) {
	log := memory.New(memory.Options{MaxBytes: 1 << 20})
	defer log.Close()
	call := event.Call{CallID: "call_1", Tool: "add", Server: "calc"}

	bodies := []event.Body{event.Start{Question: "<&>\u2028 \"?\""}, event.ToolResult{Call: call, Args: json.RawMessage(`{"a":1}`), Payload: json.RawMessage(`3`), Content: []json.RawMessage{[]byte(`{}`)}}}
	for i := range 200 {
		bodies = append(bodies, event.TextDelta{PartID: "p", Delta: strings.Repeat("w", i)})
	}

	bodies = append(bodies, event.FinalAnswer{Answer: "3", Metadata: event.Metadata{ToolNames: []string{"add"}}})
	createRun(t, log, "run_a", bodies...)
	followed := readAll(t, log, "run_a")
	run, err := log.Run(t.Context(), "run_a")
	if err != nil {
		t.Fatal(err)
	}

	for i := range 20 { // later runs take the space for tails
		createRun(t, log, fmt.Sprintf("run_%d", i), event.Start{}, event.FinalAnswer{Answer: strings.Repeat("x", 8<<10)})
	}

	decoded := readAll(t, log, "run_a")
	if len(followed) != len(bodies) || len(decoded) != len(bodies) {
		t.Fatalf("readers got %d and %d events, want %d", len(followed), len(decoded), len(bodies))
	}

	for i := range decoded {
		if !reflect.DeepEqual(decoded[i], followed[i]) {
			t.Errorf("event %d = %+v, want %+v", i+1, decoded[i], followed[i])
		}
	}

	if unsafe.StringData(decoded[2].Body.(event.TextDelta).PartID) == unsafe.StringData(followed[2].Body.(event.TextDelta).PartID) {
		t.Error("the second reader got the body of the writer, want a decoded one")
	}
	if again, err := log.Run(t.Context(), "run_a"); err != nil || !reflect.DeepEqual(again, run) {
		t.Errorf("Run = %+v, %v, want %+v", again, err, run)
	}
}

func readAll(t *testing.T, log event.Log, id string) (events []event.Event) {
	t.Helper()
	for {
		page, err := log.After(t.Context(), id, int64(len(events)))
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, page.Events...)
		if page.Ended {
			return events
		}
	}
}

// The log does not know the runs of an earlier process, but recognizes the form of their ids.
func TestRunOfAnotherProcessIsLost(t *testing.T) {
	earlier, log := memory.New(memory.Options{}), memory.New(memory.Options{})
	for range 100 {
		id, mine := earlier.NewID(), log.NewID()
		if !event.ValidID(id) || id == earlier.NewID() || len(id) != len(mine) {
			t.Fatalf("NewID = %q, want a valid id of %d characters that is not given twice", id, len(mine))
		}
		if _, err := log.Run(t.Context(), id); !errors.Is(err, event.ErrLost) {
			t.Errorf("Run(%q) = %v, want %v", id, err, event.ErrLost)
		}
		for _, other := range []string{mine, "run_none", id + "x", "RUN" + id[3:], "thr" + id[3:], ""} {
			if _, err := log.Run(t.Context(), other); !errors.Is(err, event.ErrNotFound) {
				t.Errorf("Run(%q) = %v, want %v", other, err, event.ErrNotFound)
			}
		}
	}
}
