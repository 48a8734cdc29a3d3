package event

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A run is deleted right between its terminal event and the books: it must not be buried
// once more when its time is over, with a key that is another's by then.
func TestARunThatIsDeletedAsItEndsTakesNoOthersKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := NewMemory(MemoryOptions{Retention: time.Minute})
		create := func(id string) {
			t.Helper()
			if err := log.Create(t.Context(), Run{ID: id, Key: "k"}); err != nil {
				t.Fatal(err)
			}
		}
		create("run_a")
		r, err := log.run("run_a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.Append(t.Context(), "run_a", FinalAnswer{}); err != nil {
			t.Fatal(err)
		}
		if err := log.Delete(t.Context(), "run_a"); err != nil {
			t.Fatal(err)
		}
		log.account(r, 0, true) // late
		create("run_b")
		<-time.After(time.Minute)
		if err := log.Create(t.Context(), Run{ID: "run_c"}); err != nil { // which buries what has ended
			t.Fatal(err)
		}
		if got, err := log.RunByKey(t.Context(), Owner{}, "k"); err != nil || got.ID != "run_b" {
			t.Errorf("%q, %v", got.ID, err)
		}
		if _, err := log.Run(t.Context(), "run_a"); !errors.Is(err, ErrGone) {
			t.Error(err)
		}
		if n := log.bytes.Load(); n != 2*runOverhead {
			t.Errorf("%d bytes of two runs without events", n)
		}
	})
}
