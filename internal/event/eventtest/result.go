package eventtest

import (
	"bytes"
	"errors"
	"testing"

	"answerd/internal/event"
)

func keep(t *testing.T, log event.Log, run, call string, result []byte) {
	t.Helper()
	if err := log.SaveResult(t.Context(), run, call, result); err != nil {
		t.Fatalf("keep the result of %s in %s: %v", call, run, err)
	}
}

func wantResult(t *testing.T, log event.Log, run, call string, want []byte) {
	t.Helper()
	got, err := log.Result(t.Context(), run, call)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("result of %s in %s: %d bytes, %v; want %d bytes", call, run, len(got), err, len(want))
	}
}

// strangeCall is a call id as some model's provider might make it up: logs put it into
// names of their own, which must not break.
const strangeCall = "call.*>/ \u00e9\n..%2f{}"

func aResultIsReadable(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	small, large := []byte(`{"a":1}`), bytes.Repeat([]byte("0123456789abcdef"), event.MaxResult/16)
	keep(t, log, "run_a", "call_1", small)
	keep(t, log, "run_a", strangeCall, small)
	keep(t, log, "run_a", "call_2", large)
	keep(t, log, "run_a", "call_3", nil)
	wantResult(t, log, "run_a", "call_1", small)
	add(t, log, "run_a", step(1))
	add(t, log, "run_a", event.FinalAnswer{})
	wantResult(t, log, "run_a", "call_1", small)
	wantResult(t, log, "run_a", strangeCall, small)
	wantResult(t, log, "run_a", "call_2", large)
	wantResult(t, log, "run_a", "call_3", nil)
	page, err := log.After(t.Context(), "run_a", 0)
	if err != nil || len(page.Events) != 2 {
		t.Errorf("results are among the events: %d, %v", len(page.Events), err)
	}
}

func resultsDoNotMix(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	create(t, log, "run_b")
	keep(t, log, "run_a", "call_1", []byte("a"))
	keep(t, log, "run_b", "call_1", []byte("b"))
	wantResult(t, log, "run_a", "call_1", []byte("a"))
	wantResult(t, log, "run_b", "call_1", []byte("b"))
	for _, p := range [][2]string{{"run_a", "call_2"}, {"run_a", ""}, {"run_c", "call_1"}} {
		if _, err := log.Result(t.Context(), p[0], p[1]); !errors.Is(err, event.ErrNotFound) {
			t.Errorf("result of %q in %s: %v", p[1], p[0], err)
		}
	}
	if err := log.SaveResult(t.Context(), "run_c", "call_1", nil); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("keep for an unknown run: %v", err)
	}
}

func theNewerResultCounts(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	keep(t, log, "run_a", "call_1", []byte("old, and longer"))
	keep(t, log, "run_a", "call_1", []byte("new"))
	wantResult(t, log, "run_a", "call_1", []byte("new"))
}

func aResultTooLargeIsRefused(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	if err := log.SaveResult(t.Context(), "run_a", "call_1", make([]byte, event.MaxResult+1)); !errors.Is(err, event.ErrTooLarge) {
		t.Fatalf("one byte over the bound: %v", err)
	}
	if _, err := log.Result(t.Context(), "run_a", "call_1"); !errors.Is(err, event.ErrNotFound) {
		t.Fatalf("what was refused: %v", err)
	}
}

func noResultFollowsTheTerminalEvent(t *testing.T, log event.Log) {
	create(t, log, "run_a")
	add(t, log, "run_a", event.FinalAnswer{})
	if err := log.SaveResult(t.Context(), "run_a", "call_1", []byte("late")); !errors.Is(err, event.ErrEnded) {
		t.Fatalf("after the end: %v", err)
	}
}
