package jetstream_test

import (
	"context"
	"testing"

	"answerd/internal/event/jetstream"
)

// Who would end a run that nobody reads asks the others first.
func TestAReaderOnAnotherProcessIsKnown(t *testing.T) {
	t.Parallel()
	url := cluster(t)
	a, b := open(t, jetstream.Options{URL: url}), open(t, jetstream.Options{URL: url})
	begin(t, a, "run_a")
	page, err := a.After(t.Context(), "run_a", 1) // one here does not count
	if err != nil || page.More == nil {
		t.Fatalf("%+v, %v", page, err)
	}
	if _, err := b.Run(t.Context(), "run_a"); err != nil { // nor does one who only looks
		t.Fatal(err)
	}
	if a.HasRemoteReader(t.Context(), "run_a") {
		t.Error("it is read elsewhere")
	}
	if page, err = b.After(t.Context(), "run_a", 1); err != nil || page.More == nil {
		t.Fatalf("%+v, %v", page, err)
	}
	if !a.HasRemoteReader(t.Context(), "run_a") {
		t.Error("its reader is not known")
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if a.HasRemoteReader(over, "run_a") {
		t.Error("an answer to a question that was given up")
	}
}
