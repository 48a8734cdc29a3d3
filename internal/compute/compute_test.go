package compute

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

func TestBeginLimitsLargeValuesOnly(t *testing.T) {
	var working, most atomic.Int64
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			defer Begin(minLarge)()
			n := working.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			for range 100 {
				runtime.Gosched()
			}
			working.Add(-1)
		})
	}
	all.Wait()
	if got, want := most.Load(), int64(cap(places)); got > want {
		t.Errorf("large values at the same time = %d, want at most %d", got, want)
	}

	for range cap(places) {
		defer Begin(minLarge)()
	}
	Begin(minLarge - 1)() // or the test would not end
}
