package eventtest

import (
	"testing"

	"answerd/internal/event"
)

// testRequestIsReturnedUnchanged checks that Run returns the Request that was passed to Create, before and after the
// end of the run.
func testRequestIsReturnedUnchanged(t *testing.T, log event.Log) {
	const request = `{"any":"bytes"}`
	noError(t, log.Create(t.Context(), event.Run{ID: "run_a", Request: []byte(request)}))
	createRun(t, log, "run_b")
	for _, body := range []event.Body{event.Start{}, event.Cancelled{}} {
		appendEvent(t, log, "run_a", body)
		if r, err := log.Run(t.Context(), "run_a"); err != nil || string(r.Request) != request {
			t.Errorf("Request after %s = %q, %v, want %q", body.Type(), r.Request, err, request)
		}
	}
	if r, err := log.Run(t.Context(), "run_b"); err != nil || len(r.Request) > 0 {
		t.Errorf("Request of another run = %q, %v, want none", r.Request, err)
	}
}
