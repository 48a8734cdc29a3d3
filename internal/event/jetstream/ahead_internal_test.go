package jetstream

import (
	"sync"
	"testing"

	"answerd/internal/event"
)

// Delete waits for what was sent ahead while the first event does the same.
func TestTwoCallersAwaitWhatWasSentAhead(t *testing.T) {
	t.Parallel()
	l := openEmbedded(t, Options{})
	if err := l.Create(t.Context(), event.Run{ID: "run_a", Created: l.Now()}); err != nil {
		t.Fatal(err)
	}
	w, err := l.writerFor(t.Context(), "run_a")
	if err != nil {
		t.Fatal(err)
	}
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					t.Errorf("awaitAhead panics: %v, want no panic", v)
				}
			}()
			if err := w.awaitAhead(t.Context()); err != nil {
				t.Errorf("awaitAhead = %v, want no error", err)
			}
		})
	}
	callers.Wait()
}
