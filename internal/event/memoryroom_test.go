package event

import (
	"fmt"
	"sync"
	"testing"
)

// A log that is full takes its room from runs that have ended. As long as there are any, no
// run that goes on loses its beginning, however many append at the same time.
func TestARunKeepsItsPastWhileOthersHaveEnded(t *testing.T) {
	m := NewMemory(MemoryOptions{MaxBytes: 1 << 20})
	var all sync.WaitGroup
	for writer := range 8 {
		all.Go(func() {
			for n := range 400 {
				id := fmt.Sprintf("run_%d_%d", writer, n)
				if err := m.Create(t.Context(), Run{ID: id}); err != nil {
					t.Error(err)
					return
				}
				for i := range 60 {
					var b Body = TextDelta{"p", "word "}
					if i == 0 {
						b = Start{}
					}
					if _, err := m.Append(t.Context(), id, b); err != nil {
						t.Error(err)
						return
					}
				}
				if p, err := m.After(t.Context(), id, 0); err != nil || p.Events[0].Seq != 1 {
					t.Errorf("%s: %v", id, err)
					return
				}
				if _, err := m.Append(t.Context(), id, FinalAnswer{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}
