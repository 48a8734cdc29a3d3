package jetstream

import (
	"context"
	"fmt"
	"testing"
	"time"

	"answerd/internal/event"
)

// A caller may go away while their input is being stored. The executor must find the input then, as everybody else does.
func TestExecutorFindsTheInputOfACallerWhoLeft(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{})
	var refused []string
	for i := range 200 {
		id := fmt.Sprintf("run_%d", i)
		createRun(t, l, id, event.Start{Question: "?"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*2*time.Microsecond)
		err := l.AddInput(ctx, id, event.CancelID, nil)
		cancel()
		if err != nil {
			refused = append(refused, id)
		}
	}

	for _, id := range refused {
		stored, err := l.readInputs(t.Context(), id, 0)
		if err != nil {
			t.Fatal(err)
		}
		if page, err := l.Inputs(t.Context(), id, 0); err != nil || len(page.Inputs) != len(stored) {
			t.Errorf("Inputs of %s has %d inputs, %v, want the %d that are stored", id, len(page.Inputs), err, len(stored))
		}
	}
}
