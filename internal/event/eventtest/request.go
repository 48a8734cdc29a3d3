package eventtest

import (
	"testing"

	"answerd/internal/event"
)

// theRequestStaysWithTheRun: what whoever started a run gave for later is given back as
// it was, to whoever asks for the run, before and after its end.
func theRequestStaysWithTheRun(t *testing.T, log event.Log) {
	const request = `{"any":"bytes"}`
	if err := log.Create(t.Context(), event.Run{ID: "run_a", Request: []byte(request)}); err != nil {
		t.Fatal(err)
	}
	create(t, log, "run_b")
	for _, body := range []event.Body{event.Start{}, event.Cancelled{}} {
		add(t, log, "run_a", body)
		if r, err := log.Run(t.Context(), "run_a"); err != nil || string(r.Request) != request {
			t.Errorf("after %s: %q, %v", body.Type(), r.Request, err)
		}
	}
	if r, err := log.Run(t.Context(), "run_b"); err != nil || len(r.Request) > 0 {
		t.Errorf("another run has %q, %v", r.Request, err)
	}
}
