package event_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	eventtest.Run(t, func(*testing.T) event.Log { return event.NewMemory(event.MemoryOptions{}) })
}

func TestTheMemoryLogIsAsItsModel(t *testing.T) {
	eventtest.Model(t, event.NewMemory(event.MemoryOptions{}), nil)
}

func newRun(t *testing.T, log event.Log, id string, bodies ...event.Body) {
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

func TestAnEndedRunIsGoneAfterItsRetentionAndItsOwnerIsStillKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := event.NewMemory(event.MemoryOptions{Retention: time.Minute})
		newRun(t, log, "run_a", event.Start{}, event.FinalAnswer{})
		newRun(t, log, "run_live", event.Start{})
		<-time.After(time.Minute - time.Nanosecond)
		if _, err := log.After(t.Context(), "run_a", 0); err != nil {
			t.Fatalf("a moment before: %v", err)
		}
		<-time.After(time.Nanosecond)
		if _, err := log.After(t.Context(), "run_a", 0); !errors.Is(err, event.ErrGone) {
			t.Fatalf("after the retention: %v", err)
		}
		newRun(t, log, "run_b", event.Start{}) // buries what has expired
		r, err := log.Run(t.Context(), "run_a")
		if !errors.Is(err, event.ErrGone) || r.Owner.Subject != "ada" {
			t.Fatalf("run %+v, %v", r, err)
		}
		if _, err := log.After(t.Context(), "run_live", 0); err != nil {
			t.Fatalf("a run that has not ended: %v", err)
		}
	})
}

func TestBytesAreBoundedByDroppingTheRunThatEndedFirst(t *testing.T) {
	log := event.NewMemory(event.MemoryOptions{MaxBytes: 64 << 10})
	filler := event.Start{Question: strings.Repeat("x", 10<<10)}
	for i := range 10 {
		newRun(t, log, fmt.Sprintf("run_%d", i), filler, event.FinalAnswer{})
	}
	if _, err := log.After(t.Context(), "run_0", 0); !errors.Is(err, event.ErrGone) {
		t.Fatalf("the first run: %v", err)
	}
	if page, err := log.After(t.Context(), "run_9", 0); err != nil || len(page.Events) != 2 {
		t.Fatalf("the last run: %d events, %v", len(page.Events), err)
	}
}

func TestALiveRunOverTheBoundGivesUpItsOwnPastAndSaysSo(t *testing.T) {
	log := event.NewMemory(event.MemoryOptions{MaxBytes: 64 << 10})
	newRun(t, log, "run_a", event.Start{})
	for range 100 {
		if _, err := log.Append(t.Context(), "run_a", event.TextDelta{PartID: "p", Delta: strings.Repeat("x", 2<<10)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := log.After(t.Context(), "run_a", 1); !errors.Is(err, event.ErrGone) {
		t.Fatalf("an early position: %v", err)
	}
	for seq := int64(95); seq < 101; {
		page, err := log.After(t.Context(), "run_a", seq)
		if err != nil || len(page.Events) == 0 || page.Events[0].Seq != seq+1 {
			t.Fatalf("after %d: %d events, %v", seq, len(page.Events), err)
		}
		seq += int64(len(page.Events))
	}
}

// Whoever holds a page keeps it when its events are dropped.
func TestEveryPositionReadsTheSameWhateverWasDropped(t *testing.T) {
	for _, size := range []int{1, 31, 32, 33, 64, 100} {
		log := event.NewMemory(event.MemoryOptions{MaxBytes: int64(size) * 300})
		newRun(t, log, "run_a", event.Start{})
		held, err := log.After(t.Context(), "run_a", 0)
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
					t.Fatalf("after %d: %+v, %v", pos, page, err)
				}
				for _, e := range page.Events {
					if pos++; e.Seq != pos || e.Body == nil || !strings.Contains(string(e.AppendJSON(nil)), fmt.Sprintf(`"seq":%d,`, pos)) {
						t.Fatalf("number %d: %+v", pos, e)
					}
				}
				if page.HasNext != (pos < 301) {
					t.Fatalf("after %d: cut %v", pos, page.HasNext)
				}
				kept++
			}
		}
		if kept == 0 || held.Events[0].Seq != 1 {
			t.Errorf("%d bytes: %d pages, the first event %+v", size*300, kept, held.Events[0])
		}
	}
}

// F37: a process without memory to spare must not stay so because of what is over.
func TestAReliefGivesUpTheRunsThatEndedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := event.NewMemory(event.MemoryOptions{})
		newRun(t, log, "run_live", event.Start{})
		for i := range 8 {
			newRun(t, log, fmt.Sprintf("run_%d", i), event.Start{}, event.FinalAnswer{})
		}
		for _, left := range []int{6, 4, 3, 2, 1, 0, 0} {
			log.DropEndedRuns()
			log.DropEndedRuns() // which is too soon
			for i := range 8 {
				if _, err := log.After(t.Context(), fmt.Sprintf("run_%d", i), 0); errors.Is(err, event.ErrGone) != (i < 8-left) {
					t.Errorf("%d should be left, run %d: %v", left, i, err)
				}
			}
			<-time.After(2 * time.Second)
		}
		if _, err := log.After(t.Context(), "run_live", 0); err != nil {
			t.Errorf("a run that has not ended: %v", err)
		}
	})
}

func TestResultsGoWithTheirRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := event.NewMemory(event.MemoryOptions{Retention: time.Minute})
		newRun(t, log, "run_a", event.Start{})
		keepResult(t, log, "run_a", "call_1", 10)
		if _, err := log.Append(t.Context(), "run_a", event.FinalAnswer{}); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		for _, when := range []string{"expired", "buried"} {
			if _, err := log.Result(t.Context(), "run_a", "call_1"); !errors.Is(err, event.ErrGone) {
				t.Errorf("%s: %v", when, err)
			}
			if err := log.SaveResult(t.Context(), "run_a", "call_1", nil); !errors.Is(err, event.ErrGone) {
				t.Errorf("%s: keep: %v", when, err)
			}
			newRun(t, log, "run_"+when, event.Start{})
		}
	})
}

func TestResultsCountAndGoBeforeTheEventsOfALiveRun(t *testing.T) {
	log := event.NewMemory(event.MemoryOptions{MaxBytes: 64 << 10})
	newRun(t, log, "run_a", event.Start{})
	for i := range 20 {
		keepResult(t, log, "run_a", fmt.Sprintf("call_%d", i), 10<<10)
	}
	if _, err := log.Result(t.Context(), "run_a", "call_0"); !errors.Is(err, event.ErrGone) {
		t.Errorf("the oldest result: %v", err)
	}
	if got, err := log.Result(t.Context(), "run_a", "call_19"); err != nil || len(got) != 10<<10 {
		t.Errorf("the newest result: %d bytes, %v", len(got), err)
	}
	if page, err := log.After(t.Context(), "run_a", 0); err != nil || len(page.Events) != 1 {
		t.Errorf("the events: %d, %v", len(page.Events), err)
	}
	keepResult(t, log, "run_a", "call_20", 1<<20)
	if _, err := log.Result(t.Context(), "run_a", "call_20"); !errors.Is(err, event.ErrGone) {
		t.Errorf("a result that is larger than the log: %v", err)
	}
}

func keepResult(t *testing.T, log event.Log, run, call string, size int) {
	t.Helper()
	if err := log.SaveResult(t.Context(), run, call, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkMemoryAppend appends the deltas of runs of 1,000 events each, to a log that
// is full, so that room is made as it is in production, while so many follow the run.
func BenchmarkMemoryAppend(b *testing.B) {
	for _, readers := range []int{0, 1, 10} {
		b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) { benchmarkMemoryAppend(b, readers) })
	}
}

func benchmarkMemoryAppend(b *testing.B, readers int) {
	log := event.NewMemory(event.MemoryOptions{MaxBytes: 4 << 20})
	var body event.Body = event.TextDelta{PartID: "text_1", Delta: "token "}
	id := ""
	var following sync.WaitGroup
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%1000 == 0 {
			if id != "" {
				if _, err := log.Append(b.Context(), id, event.FinalAnswer{}); err != nil {
					b.Fatal(err)
				}
			}
			id = fmt.Sprintf("run_%d", n)
			if err := log.Create(b.Context(), event.Run{ID: id}); err != nil {
				b.Fatal(err)
			}
			run := id
			var begun sync.WaitGroup
			begun.Add(readers)
			for range readers {
				following.Go(func() { followToItsEnd(b, log, run, begun.Done) })
			}
			begun.Wait() // or the run is over before they are scheduled
		}
		if _, err := log.Append(b.Context(), id, body); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := log.Append(b.Context(), id, event.FinalAnswer{}); err != nil {
		b.Fatal(err)
	}
	following.Wait()
}

// followToItsEnd reads a run as it grows, and says when it has begun; one that is no longer
// kept is over, too.
func followToItsEnd(b *testing.B, log event.Log, id string, begun func()) {
	for pos := int64(0); ; {
		page, err := log.After(context.Background(), id, pos)
		if pos == 0 {
			begun()
			begun = func() {}
		}
		switch {
		case errors.Is(err, event.ErrGone), err == nil && page.Ended:
			return
		case err != nil:
			b.Error(err)
			return
		case len(page.Events) > 0:
			pos += int64(len(page.Events))
		default:
			<-page.More
		}
	}
}

// Runs whose time is over leave nothing but their tombstones (facts/reliability.md 4.6).
func TestTenThousandShortRunsLeaveMemoryWhereItWas(t *testing.T) {
	var before, during, after uint64
	synctest.Test(t, func(t *testing.T) {
		log := event.NewMemory(event.MemoryOptions{Retention: time.Minute})
		before = heap()
		for n := range 10_000 {
			id := log.NewID()
			owner := event.Owner{Issuer: "https://iam.example.com", Subject: fmt.Sprint("user ", n%100)}
			r := event.Run{ID: id, ThreadID: "thr_" + id, TraceID: id, Owner: owner, Request: make([]byte, 100)}
			if err := log.Create(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			for _, e := range []event.Body{event.Start{Question: "?"}, event.StepStart{Step: 1}, event.TextStart{PartID: "p"}, event.TextDelta{PartID: "p", Delta: strings.Repeat("word ", 100)}, event.FinalAnswer{}} {
				if _, err := log.Append(t.Context(), id, e); err != nil {
					t.Fatal(err)
				}
			}
		}
		during = heap()
		<-time.After(time.Minute) // of a clock that is not real
		if err := log.Create(t.Context(), event.Run{ID: "run_last"}); err != nil {
			t.Fatal(err)
		}
		after = heap()
		runtime.KeepAlive(log)
	})
	left := int64(after) - int64(before)
	t.Logf("heap: %d KiB before, %d KiB with 10,000 runs, %d KiB after: %d bytes a run", before>>10, during>>10, after>>10, left/10_000)
	if left > 10_000*150 {
		t.Errorf("%d bytes are left of each run", left/10_000)
	}
}

func TestTheLatestRunsThatAreGoneAreRememberedAndNoMore(t *testing.T) {
	const remembered = 16384
	log := event.NewMemory(event.MemoryOptions{})
	for n := range 3 * remembered {
		id := fmt.Sprintf("run_%d", n)
		newRun(t, log, id)
		if err := log.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	for n, want := range map[int]error{0: event.ErrNotFound, remembered - 1: event.ErrNotFound, 2 * remembered: event.ErrGone, 3*remembered - 1: event.ErrGone} {
		id := fmt.Sprintf("run_%d", n)
		if _, err := log.After(t.Context(), id, 0); !errors.Is(err, want) {
			t.Errorf("run %d: %v, want %v", n, err, want)
		}
		if r, err := log.Run(t.Context(), id); !errors.Is(err, want) || errors.Is(err, event.ErrGone) && r.Owner.Subject != "ada" {
			t.Errorf("run %d: %+v, %v", n, r, err)
		}
	}
}

// What a log counts is what it takes: of runs of few events and of many, of few words and of
// many, it holds no more than MaxBytes.
func TestMemoryTakesNoMoreThanItCounts(t *testing.T) {
	const most = 8 << 20
	for _, tc := range []struct{ events, words int }{{3, 1}, {65, 1}, {1000, 1}, {200, 20}, {5, 2000}} {
		before := heap()
		log := event.NewMemory(event.MemoryOptions{MaxBytes: most})
		for appended := 0; appended < 2*most; appended += tc.events * (100 + 5*tc.words) {
			id := log.NewID()
			newRun(t, log, id)
			for range tc.events {
				if _, err := log.Append(t.Context(), id, event.TextDelta{PartID: "text_1", Delta: strings.Repeat("word ", tc.words)}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := log.Append(t.Context(), id, event.FinalAnswer{}); err != nil {
				t.Fatal(err)
			}
		}
		if took := heap() - before; took > most+most/8 {
			t.Errorf("runs of %d events of %d words take %d bytes, want at most %d", tc.events, tc.words, took, most)
		}
		runtime.KeepAlive(log)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Whoever asks for a run of an earlier process is told that it is gone, and not that it
// never was.
func TestARunOfAnotherProcessIsLost(t *testing.T) {
	earlier, log := event.NewMemory(event.MemoryOptions{}), event.NewMemory(event.MemoryOptions{})
	for range 100 {
		id, mine := earlier.NewID(), log.NewID()
		if !event.ValidID(id) || id == earlier.NewID() || len(id) != len(mine) {
			t.Fatalf("id %s", id)
		}
		if _, err := log.Run(t.Context(), id); !errors.Is(err, event.ErrLost) {
			t.Errorf("%s: %v", id, err)
		}
		for _, other := range []string{mine, "run_none", id + "x", "RUN" + id[3:], "thr" + id[3:], ""} {
			if _, err := log.Run(t.Context(), other); !errors.Is(err, event.ErrNotFound) {
				t.Errorf("%s: %v", other, err)
			}
		}
	}
}
