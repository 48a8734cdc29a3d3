package eventtest

import (
	"fmt"
	"strings"
	"testing"

	"answerd/internal/event"
)

// testDeltasAddUp checks that no text is lost, repeated or moved, whether or not a log joins deltas.
func testDeltasAddUp(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	call := event.Call{CallID: "c"}
	var want strings.Builder
	for i := range 200 {
		appendEvent(t, log, "run_a", event.TextDelta{PartID: "p", Delta: fmt.Sprintf("t%d ", i)})
		fmt.Fprintf(&want, "t%d ", i)
		switch i % 50 {
		case 10:
			appendEvent(t, log, "run_a", event.ReasoningDelta{PartID: "r", Delta: "[r]"})
			want.WriteString("[r]")
		case 20:
			appendEvent(t, log, "run_a", event.ToolCallArgs{Call: call, Delta: "[a"})
			appendEvent(t, log, "run_a", event.ToolCallArgs{Call: call, Delta: "]"})
			want.WriteString("[a]")
		case 30:
			appendEvent(t, log, "run_a", stepStart(i))
			fmt.Fprintf(&want, "|%d|", i)
		case 40:
			appendEvent(t, log, "run_a", event.TextDelta{PartID: "p", Delta: strings.Repeat("x", 3000)})
			want.WriteString(strings.Repeat("x", 3000))
		}
	}

	appendEvent(t, log, "run_a", event.FinalAnswer{})
	events, err := readAll(t.Context(), log, "run_a")
	noError(t, err)
	var got strings.Builder
	for _, e := range events {
		switch b := e.Body.(type) {
		case event.TextDelta:
			got.WriteString(b.Delta)
		case event.ReasoningDelta:
			got.WriteString(b.Delta)
		case event.ToolCallArgs:
			got.WriteString(b.Delta)
		case event.StepStart:
			fmt.Fprintf(&got, "|%d|", b.Step)
		}
	}
	if got.String() != want.String() {
		t.Errorf("got  %s\nwant %s", got.String(), want.String())
	}
}

// testDelayedDeltaIsAppendedByItself checks that a delayed delta becomes readable without another append.
func testDelayedDeltaIsAppendedByItself(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	for range 3 {
		appendEvent(t, log, "run_a", event.TextDelta{PartID: "p", Delta: "x"})
	}
	got := ""
	for pos := int64(0); got != "xxx"; {
		page, err := log.After(t.Context(), "run_a", pos)
		noError(t, err)
		for _, e := range page.Events {
			pos, got = e.Seq, got+e.Body.(event.TextDelta).Delta
		}
		if len(page.Events) == 0 {
			<-page.More
		}
	}
}

// testLongRunIsReadFromAnyPosition reads a run that has more events than a log caches, with events of another run
// between them.
func testLongRunIsReadFromAnyPosition(t *testing.T, log event.Log) {
	const events = 1500
	createRun(t, log, "run_a")
	createRun(t, log, "run_b")
	for i := range events {
		appendEvent(t, log, "run_a", stepStart(i+1))
		if i%3 == 0 && i < events/2 { // spread unevenly
			appendEvent(t, log, "run_b", stepStart(i+1))
		}
	}
	for _, from := range []int64{0, 1, 255, 256, 257, 500, 900, events - 513, events - 1, events} {
		pos := from
		for pos < events {
			page, err := log.After(t.Context(), "run_a", pos)
			if err != nil {
				t.Fatalf("reading from %d: After(%d): %v", from, pos, err)
			}
			for _, e := range page.Events {
				pos++
				if e.Seq != pos || e.Body != stepStart(int(pos)) {
					t.Fatalf("reading from %d: got %s, want event %d", from, e.AppendJSON(nil), pos)
				}
			}
			if len(page.Events) == 0 {
				t.Fatalf("reading from %d: After(%d) is empty, want events", from, pos)
			}
		}
	}
	wantError(t, errorOf(log.After(t.Context(), "run_a", events+1)), event.ErrInvalidPosition, "After beyond the end")
}

// testLargeEventIsKeptUnchanged appends a question that is larger than a request may be.
func testLargeEventIsKeptUnchanged(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	large := event.Start{Question: strings.Repeat("0123456789abcdef", 3<<16)}
	appendEvent(t, log, "run_a", large)
	appendEvent(t, log, "run_a", stepStart(1))
	end := event.FinalAnswer{Answer: large.Question, Metadata: event.Metadata{Model: "m"}}
	appendEvent(t, log, "run_a", end)
	got, err := readAll(t.Context(), log, "run_a")
	noError(t, err)
	if got[0].Body.(event.Start).Question != large.Question || got[2].Body.(event.FinalAnswer).Answer != large.Question {
		t.Errorf("events have %d and %d bytes of text, want the appended %d",
			len(got[0].Body.(event.Start).Question), len(got[2].Body.(event.FinalAnswer).Answer), len(large.Question))
	}
	if r, err := log.Run(t.Context(), "run_a"); err != nil || r.Status() != event.StatusCompleted {
		t.Errorf("Status = %s, %v, want %s", r.Status(), err, event.StatusCompleted)
	}
}

// testInvalidIDsAreNotFound uses invalid run ids that a caller may send.
func testInvalidIDsAreNotFound(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	appendEvent(t, log, "run_a", stepStart(1))
	for _, id := range []string{"", "*", ">", "run_*", "run_a.ev", ".", "run a", "run_a\n", "run_é", strings.Repeat("a", 65), "$JS"} {
		wantError(t, errorOf(log.After(t.Context(), id, 0)), event.ErrNotFound, "After(%q)", id)
		wantError(t, errorOf(log.Run(t.Context(), id)), event.ErrNotFound, "Run(%q)", id)
		wantError(t, log.Create(t.Context(), event.Run{ID: id}), event.ErrNotFound, "Create(%q)", id)
		wantError(t, errorOf(log.Result(t.Context(), id, "c")), event.ErrNotFound, "Result(%q)", id)
		wantError(t, log.Delete(t.Context(), id), event.ErrNotFound, "Delete(%q)", id)
	}
}
