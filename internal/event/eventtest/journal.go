package eventtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"answerd/internal/event"
)

func addNote(t *testing.T, log event.Log, run, text string) {
	t.Helper()
	if err := log.AddNote(t.Context(), run, []byte(text)); err != nil {
		t.Fatalf("AddNote(%q): %v", text, err)
	}
}

// flush waits until everything that was added to a run is stored.
func flush(t *testing.T, log event.Log, run string) {
	t.Helper()
	if err := log.Flush(t.Context(), run); err != nil {
		t.Fatalf("Flush: %v", err)
	}
}

func readNotes(t *testing.T, log event.Log, run string) (all []string) {
	t.Helper()
	flush(t, log, run)
	found, err := log.Notes(t.Context(), run)
	noError(t, err)
	for _, n := range found {
		all = append(all, fmt.Sprintf("%d %s", n.After, n.Data))
	}
	return all
}

// testNoteIsNotAnEvent checks that a note keeps its place among the events, and that readers do not see it.
func testNoteIsNotAnEvent(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	long := strings.Repeat("\x00\xff", event.MaxNote/2)
	addNote(t, log, "run_a", "first")
	appendEvent(t, log, "run_a", event.Start{Question: "?"})
	addNote(t, log, "run_a", "second")
	addNote(t, log, "run_a", long)
	appendEvent(t, log, "run_a", event.LogMessage{Data: []byte(`"` + strings.Repeat("x", 700<<10) + `"`)})
	addNote(t, log, "run_a", "")

	for i := range 300 {
		appendEvent(t, log, "run_a", stepStart(i))
		addNote(t, log, "run_a", fmt.Sprint(i))
	}

	want := []string{"0 first", "1 second", "1 " + long, "2 "}
	for i := range 300 {
		want = append(want, fmt.Sprintf("%d %d", i+3, i))
	}

	if got := readNotes(t, log, "run_a"); !slices.Equal(got, want) {
		t.Errorf("%d notes, want %d", len(got), len(want))
	}
	if r, err := log.Run(t.Context(), "run_a"); err != nil || r.Last.Seq != 302 || r.Last.Body != stepStart(299) {
		t.Errorf("the newest event is %s, %v, want number 302", r.Last.AppendJSON(nil), err)
	}
	wantError(t, log.AddNote(t.Context(), "run_a", make([]byte, event.MaxNote+1)), event.ErrTooLarge, "AddNote beyond MaxNote")
	wantError(t, errorOf(log.Notes(t.Context(), "run_b")), event.ErrNotFound, "Notes of an unknown run")
	appendEvent(t, log, "run_a", event.FinalAnswer{})
	if events, err := readAll(t.Context(), log, "run_a"); len(events) != 303 || err != nil {
		t.Errorf("read %d events, %v, want 303", len(events), err)
	}
	wantError(t, log.AddNote(t.Context(), "run_a", nil), event.ErrEnded, "AddNote after the end")
}

// testNoteFollowsADelayedDelta checks that a note comes after the deltas that were appended before it.
func testNoteFollowsADelayedDelta(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	for range 3 {
		appendEvent(t, log, "run_a", event.TextDelta{PartID: "p", Delta: "x"})
	}
	addNote(t, log, "run_a", "sent")
	got := readNotes(t, log, "run_a")
	if r, err := log.Run(t.Context(), "run_a"); err != nil || len(got) != 1 || got[0] != fmt.Sprintf("%d sent", r.Last.Seq) {
		t.Errorf("notes are %q after %d events, %v, want one after the newest", got, r.Last.Seq, err)
	}
}

// testNoteIsRefusedAfterRelease checks that a process that was replaced cannot add a note.
func testNoteIsRefusedAfterRelease(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	job := createJob(t, log, "run_a")
	appendEvent(t, log, "run_a", event.Start{})
	addNote(t, log, "run_a", "by the first")
	noError(t, job.Release(t.Context()))
	wantError(t, log.AddNote(t.Context(), "run_a", []byte("too late")), event.ErrFenced, "AddNote to a released run")
	claimJob(t, log)
	addNote(t, log, "run_a", "by the second")
	if got := readNotes(t, log, "run_a"); !slices.Equal(got, []string{"1 by the first", "1 by the second"}) {
		t.Errorf("notes are %q, want those of both writers", got)
	}
	appendEvent(t, log, "run_a", stepStart(1))
	noError(t, log.Delete(t.Context(), "run_a"))
	wantError(t, errorOf(log.Notes(t.Context(), "run_a")), event.ErrGone, "Notes of a deleted run")
}
