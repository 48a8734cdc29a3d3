package eventtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"answerd/internal/event"
)

func note(t *testing.T, log event.Log, run, text string) {
	t.Helper()
	if err := log.AddNote(t.Context(), run, []byte(text)); err != nil {
		t.Fatalf("note %q: %v", text, err)
	}
}

func notes(t *testing.T, log event.Log, run string) (all []string) {
	t.Helper()
	found, err := log.Notes(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range found {
		all = append(all, fmt.Sprintf("%d %s", n.After, n.Data))
	}
	return all
}

// aNoteIsNoEvent: it has its place among the events, and no reader sees it.
func aNoteIsNoEvent(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	long := strings.Repeat("\x00\xff", event.MaxNote/2)
	note(t, log, "run_a", "first")
	add(t, log, "run_a", event.Start{Question: "?"})
	note(t, log, "run_a", "second")
	note(t, log, "run_a", long)
	add(t, log, "run_a", event.LogMessage{Data: []byte(`"` + strings.Repeat("x", 700<<10) + `"`)})
	note(t, log, "run_a", "")
	for i := range 300 {
		add(t, log, "run_a", step(i))
		note(t, log, "run_a", fmt.Sprint(i))
	}
	want := []string{"0 first", "1 second", "1 " + long, "2 "}
	for i := range 300 {
		want = append(want, fmt.Sprintf("%d %d", i+3, i))
	}
	if got := notes(t, log, "run_a"); !slices.Equal(got, want) {
		t.Errorf("%d notes, %d wanted", len(got), len(want))
	}
	if r, err := log.Run(t.Context(), "run_a"); err != nil || r.Last.Seq != 302 || r.Last.Body != step(299) {
		t.Errorf("the newest event is %s, %v", r.Last.JSON, err)
	}
	if err := log.AddNote(t.Context(), "run_a", make([]byte, event.MaxNote+1)); !errors.Is(err, event.ErrTooLarge) {
		t.Errorf("too much: %v", err)
	}
	if _, err := log.Notes(t.Context(), "run_b"); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("of an unknown run: %v", err)
	}
	add(t, log, "run_a", event.FinalAnswer{})
	if n, err := readAll(t.Context(), log, "run_a"); n != 303 || err != nil {
		t.Errorf("%d events, %v", n, err)
	}
	if err := log.AddNote(t.Context(), "run_a", nil); !errors.Is(err, event.ErrEnded) {
		t.Errorf("after the end: %v", err)
	}
}

// aNoteComesBehindAHeldBackDelta, so that it is known which part of a step it follows.
func aNoteComesBehindAHeldBackDelta(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	for range 3 {
		add(t, log, "run_a", event.TextDelta{PartID: "p", Delta: "x"})
	}
	note(t, log, "run_a", "sent")
	r, err := log.Run(t.Context(), "run_a")
	if got := notes(t, log, "run_a"); err != nil || len(got) != 1 || got[0] != fmt.Sprintf("%d sent", r.Last.Seq) {
		t.Errorf("%q after %d events, %v", got, r.Last.Seq, err)
	}
}

// onlyTheWriterNotes: a process that was replaced must not begin anything.
func onlyTheWriterNotes(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	job := hold(t, log, "run_a")
	add(t, log, "run_a", event.Start{})
	note(t, log, "run_a", "by the first")
	if err := job.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := log.AddNote(t.Context(), "run_a", []byte("too late")); !errors.Is(err, event.ErrFenced) {
		t.Errorf("note of a released run: %v", err)
	}
	claim(t, log)
	note(t, log, "run_a", "by the second")
	if got := notes(t, log, "run_a"); !slices.Equal(got, []string{"1 by the first", "1 by the second"}) {
		t.Errorf("%q", got)
	}
	add(t, log, "run_a", step(1))
	if err := log.Delete(t.Context(), "run_a"); err != nil {
		t.Fatal(err)
	}
	if _, err := log.Notes(t.Context(), "run_a"); !errors.Is(err, event.ErrGone) {
		t.Errorf("of a deleted run: %v", err)
	}
}
