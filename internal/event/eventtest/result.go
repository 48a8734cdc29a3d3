package eventtest

import (
	"bytes"
	"testing"

	"answerd/internal/event"
)

func saveResult(t *testing.T, log event.Log, run, call string, result []byte) {
	t.Helper()
	if err := log.SaveResult(t.Context(), run, call, result); err != nil {
		t.Fatalf("SaveResult(%s, %s): %v", run, call, err)
	}
}

func wantResult(t *testing.T, log event.Log, run, call string, want []byte) {
	t.Helper()
	got, err := log.Result(t.Context(), run, call)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("Result(%s, %s) = %d bytes, %v, want %d bytes", run, call, len(got), err, len(want))
	}
}

// hostileCallID is an id that a model's provider could generate. A log that uses call ids in subjects must encode it.
const hostileCallID = "call.*>/ \u00e9\n..%2f{}"

func testResultIsReadableAfterTheEnd(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	small, large := []byte(`{"a":1}`), bytes.Repeat([]byte("0123456789abcdef"), event.MaxResult/16)
	saveResult(t, log, "run_a", "call_1", small)
	saveResult(t, log, "run_a", hostileCallID, small)
	saveResult(t, log, "run_a", "call_2", large)
	saveResult(t, log, "run_a", "call_3", nil)
	wantResult(t, log, "run_a", "call_1", small)
	appendEvent(t, log, "run_a", stepStart(1))
	appendEvent(t, log, "run_a", event.FinalAnswer{})
	wantResult(t, log, "run_a", "call_1", small)
	wantResult(t, log, "run_a", hostileCallID, small)
	wantResult(t, log, "run_a", "call_2", large)
	wantResult(t, log, "run_a", "call_3", nil)
	page, err := log.After(t.Context(), "run_a", 0)
	if err != nil || len(page.Events) != 2 {
		t.Errorf("the run has %d events, %v, want 2", len(page.Events), err)
	}
}

func testResultsAreSeparate(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	createRun(t, log, "run_b")
	saveResult(t, log, "run_a", "call_1", []byte("a"))
	saveResult(t, log, "run_b", "call_1", []byte("b"))
	wantResult(t, log, "run_a", "call_1", []byte("a"))
	wantResult(t, log, "run_b", "call_1", []byte("b"))
	for _, p := range [][2]string{{"run_a", "call_2"}, {"run_a", ""}, {"run_c", "call_1"}} {
		wantError(t, errorOf(log.Result(t.Context(), p[0], p[1])), event.ErrNotFound, "Result(%s, %q)", p[0], p[1])
	}
	wantError(t, log.SaveResult(t.Context(), "run_c", "call_1", nil), event.ErrNotFound, "SaveResult of an unknown run")
}

func testResultIsReplacedByANewerOne(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	saveResult(t, log, "run_a", "call_1", []byte("old, and longer"))
	saveResult(t, log, "run_a", "call_1", []byte("new"))
	wantResult(t, log, "run_a", "call_1", []byte("new"))
}

func testResultBeyondMaxResultIsRefused(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	wantError(t, log.SaveResult(t.Context(), "run_a", "call_1", make([]byte, event.MaxResult+1)), event.ErrTooLarge, "SaveResult beyond MaxResult")
	wantError(t, errorOf(log.Result(t.Context(), "run_a", "call_1")), event.ErrNotFound, "Result that was refused")
}

func testResultIsRefusedAfterTheEnd(t *testing.T, log event.Log) {
	createRun(t, log, "run_a")
	appendEvent(t, log, "run_a", event.FinalAnswer{})
	wantError(t, log.SaveResult(t.Context(), "run_a", "call_1", []byte("late")), event.ErrEnded, "SaveResult after the end")
}
