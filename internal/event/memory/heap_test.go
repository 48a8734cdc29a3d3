package memory_test

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/memory"
)

// A run whose retention has passed leaves nothing but its tombstone.
func TestRetentionFreesTheMemoryOfTenThousandRuns(t *testing.T) {
	var before, during, after int64
	synctest.Test(t, func(t *testing.T) {
		log := memory.New(memory.Options{Retention: time.Minute})
		before = heapSize()

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

		during = heapSize()
		<-time.After(time.Minute)
		if err := log.Create(t.Context(), event.Run{ID: "run_last"}); err != nil {
			t.Fatal(err)
		}
		after = heapSize()
		runtime.KeepAlive(log)
	})

	left := after - before
	t.Logf("heap: %d KiB before, %d KiB with 10,000 runs, %d KiB after: %d bytes a run", before>>10, during>>10, after>>10, left/10_000)
	if left > 10_000*150 {
		t.Errorf("%d bytes are left of each run, want at most 150", left/10_000)
	}
}

// The estimate of the bytes that a run takes is right for runs of few events and of many, of
// few words and of many.
func TestMaxBytesBoundsTheHeap(t *testing.T) {
	const most = 4 << 20
	for _, tc := range []struct{ events, words int }{{3, 1}, {65, 1}, {1000, 1}, {200, 20}, {5, 2000}} {
		before := heapSize()
		log := memory.New(memory.Options{MaxBytes: most})
		for appended := 0; appended < 2*most; appended += tc.events * (100 + 5*tc.words) {
			id := log.NewID()
			createRun(t, log, id)
			for range tc.events {
				if _, err := log.Append(t.Context(), id, event.TextDelta{PartID: "text_1", Delta: strings.Repeat("word ", tc.words)}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := log.Append(t.Context(), id, event.FinalAnswer{}); err != nil {
				t.Fatal(err)
			}
		}
		if took := heapSize() - before; took > most+most/8 {
			t.Errorf("runs of %d events of %d words take %d bytes, want at most %d", tc.events, tc.words, took, most)
		}
		runtime.KeepAlive(log)
	}
}

// The log with threads, tombstones, notes, inputs and results takes at most 1.2 times MaxBytes, although
// the texts of events are parts of larger ones, as those of a model's stream are.
func TestMaxBytesBoundsTheHeapOfAnswers(t *testing.T) {
	const most = 32 << 20
	for name, tc := range map[string]struct{ answers, result int }{"small": {15_000, 0}, "results of 1 MB": {100, 1_000_000}} {
		before := heapSize()
		log := memory.New(memory.Options{MaxBytes: most})
		defer log.Close() // at the end: the runtime keeps a stopped timer, and so its log, for an unknown time
		for range tc.answers {
			addAnswer(t, log, tc.result)
		}
		if took := heapSize() - before; took > most/10*12 || took < most/2 {
			t.Errorf("%s: %d answers take %d bytes, want %d to %d", name, tc.answers, took, most/2, most/10*12)
		}
	}
}

// addAnswer adds a run with all that the agent stores of one, with a result of that many bytes unless it is 0.
func addAnswer(t *testing.T, log *memory.Log, result int) {
	t.Helper()
	id, owner := log.NewID(), event.Owner{Issuer: "https://iam.example.com", Subject: "ada"}
	thread := "thr_" + id
	r := event.Run{ID: id, ThreadID: thread, TraceID: id, Owner: owner, Metadata: map[string]string{"k": "v"}, Request: make([]byte, 100)}

	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	check(log.Create(t.Context(), r))
	_, err := log.BeginTurn(t.Context(), owner, thread, id, "", "a question")
	check(err)
	job, err := log.CreateJob(t.Context(), id, make([]byte, 300))
	check(err)

	chunk := strings.Repeat("chunk of a stream ", 20)
	bodies := []event.Body{event.Start{Question: "?", ThreadID: thread}, event.StepStart{Step: 1}, event.TextStart{PartID: "p"}}
	for i := range 8 {
		bodies = append(bodies, event.TextDelta{PartID: "p", Delta: strings.Clone(chunk)[i : i+6]})
	}

	for _, b := range append(bodies, event.TextEnd{PartID: "p"}, event.StepEnd{Step: 1}) {
		_, err := log.Append(t.Context(), id, b)
		check(err)
	}

	check(log.AddNote(t.Context(), id, []byte("sent call_1")))
	check(log.AddInput(t.Context(), id, "int_1", []byte(`{"approved":true}`)))

	if result > 0 {
		check(log.SaveResult(t.Context(), id, "call_1", make([]byte, result)))
		text := json.RawMessage(`"` + strings.Repeat("x", 120_000) + `"`)
		_, err := log.Append(t.Context(), id, event.ToolResult{Call: event.Call{CallID: "call_1"}, Payload: text, Content: []json.RawMessage{text}})
		check(err)
	}

	_, err = log.Append(t.Context(), id, event.FinalAnswer{Answer: strings.Clone(chunk)[:60]})
	check(err)
	check(job.Done(t.Context()))
	check(log.EndTurn(t.Context(), owner, thread, id, make([]byte, 300)))
}

// heapSize returns the bytes in use when collections free nothing more. What a goroutine or a pool still holds
// when the first one runs is freed by a later one.
func heapSize() int64 {
	for last := int64(math.MaxInt64); ; {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		now := int64(m.HeapAlloc)
		if now > last-64<<10 {
			return now
		}
		last = now
	}
}
