package eventtest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"answerd/internal/event"
)

// deltasAddUp is for logs that join deltas as well as for those that don't: the text is
// whole, and stands where it was said.
func deltasAddUp(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	call := event.Call{CallID: "c"}
	var want strings.Builder
	for i := range 200 {
		add(t, log, "run_a", event.TextDelta{PartID: "p", Delta: fmt.Sprintf("t%d ", i)})
		fmt.Fprintf(&want, "t%d ", i)
		switch i % 50 {
		case 10:
			add(t, log, "run_a", event.ReasoningDelta{PartID: "r", Delta: "[r]"})
			want.WriteString("[r]")
		case 20:
			add(t, log, "run_a", event.ToolCallArgs{Call: call, Delta: "[a"})
			add(t, log, "run_a", event.ToolCallArgs{Call: call, Delta: "]"})
			want.WriteString("[a]")
		case 30:
			add(t, log, "run_a", step(i))
			fmt.Fprintf(&want, "|%d|", i)
		case 40:
			add(t, log, "run_a", event.TextDelta{PartID: "p", Delta: strings.Repeat("x", 3000)})
			want.WriteString(strings.Repeat("x", 3000))
		}
	}
	add(t, log, "run_a", event.FinalAnswer{})
	var got strings.Builder
	for pos := int64(0); ; {
		page, err := log.After(t.Context(), "run_a", pos)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			if pos++; e.Seq != pos {
				t.Fatalf("number %d at %d", e.Seq, pos)
			}
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
		if page.Ended {
			break
		}
	}
	if got.String() != want.String() {
		t.Errorf("got  %s\nwant %s", got.String(), want.String())
	}
}

// aHeldBackDeltaComesByItself: nothing else need be appended.
func aHeldBackDeltaComesByItself(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	for range 3 {
		add(t, log, "run_a", event.TextDelta{PartID: "p", Delta: "x"})
	}
	got := ""
	for pos := int64(0); got != "xxx"; {
		page, err := log.After(t.Context(), "run_a", pos)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			pos, got = e.Seq, got+e.Body.(event.TextDelta).Delta
		}
		if len(page.Events) == 0 {
			<-page.More
		}
	}
}

// aLongRunIsReadFromAnywhere has more events than a log keeps at hand, among those of
// other runs.
func aLongRunIsReadFromAnywhere(t *testing.T, log event.Log) {
	const events = 1500
	create(t, log, "run_a")
	create(t, log, "run_b")
	for i := range events {
		if add(t, log, "run_a", step(i+1)); i%3 == 0 && i < events/2 { // spread unevenly
			add(t, log, "run_b", step(i+1))
		}
	}
	for _, from := range []int64{0, 1, 255, 256, 257, 500, 900, events - 513, events - 1, events} {
		pos := from
		for pos < events {
			page, err := log.After(t.Context(), "run_a", pos)
			if err != nil {
				t.Fatalf("from %d, after %d: %v", from, pos, err)
			}
			for _, e := range page.Events {
				if pos++; e.Seq != pos || e.Body != step(int(pos)) {
					t.Fatalf("from %d: %s at %d", from, e.AppendJSON(nil), pos)
				}
			}
			if len(page.Events) == 0 {
				t.Fatalf("from %d: nothing after %d", from, pos)
			}
		}
	}
	if _, err := log.After(t.Context(), "run_a", events+1); !errors.Is(err, event.ErrInvalidPosition) {
		t.Errorf("beyond the end: %v", err)
	}
}

// aLargeEventIsKeptWhole: a question of the most that a request may have, and more.
func aLargeEventIsKeptWhole(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	large := event.Start{Question: strings.Repeat("0123456789abcdef", 3<<16)}
	add(t, log, "run_a", large)
	add(t, log, "run_a", step(1))
	end := event.FinalAnswer{Answer: large.Question, Metadata: event.Metadata{Model: "m"}}
	add(t, log, "run_a", end)
	var got []event.Event
	for pos := int64(0); len(got) < 3; pos = int64(len(got)) {
		page, err := log.After(t.Context(), "run_a", pos)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, page.Events...)
	}
	if got[0].Body.(event.Start).Question != large.Question || got[2].Body.(event.FinalAnswer).Answer != large.Question {
		t.Error("it is another one")
	}
	if r, err := log.Run(t.Context(), "run_a"); err != nil || r.Status() != event.StatusCompleted {
		t.Errorf("status %s, %v", r.Status(), err)
	}
}

// hostileNames are run ids as they may come from outside.
func hostileNames(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	add(t, log, "run_a", step(1))
	for _, id := range []string{"", "*", ">", "run_*", "run_a.ev", ".", "run a", "run_a\n", "run_é", strings.Repeat("a", 65), "$JS"} {
		if _, err := log.After(t.Context(), id, 0); !errors.Is(err, event.ErrNotFound) {
			t.Errorf("after %q: %v", id, err)
		}
		if _, err := log.Run(t.Context(), id); !errors.Is(err, event.ErrNotFound) {
			t.Errorf("run %q: %v", id, err)
		}
		if err := log.Create(t.Context(), event.Run{ID: id}); !errors.Is(err, event.ErrNotFound) {
			t.Errorf("create %q: %v", id, err)
		}
		if _, err := log.Result(t.Context(), id, "c"); !errors.Is(err, event.ErrNotFound) {
			t.Errorf("result %q: %v", id, err)
		}
		if err := log.Delete(t.Context(), id); !errors.Is(err, event.ErrNotFound) {
			t.Errorf("delete %q: %v", id, err)
		}
	}
}
