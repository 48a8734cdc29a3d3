package admission_test

import (
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent/admission"
)

// F37: what is alive counts and not what is garbage; and memory that is free again is
// noticed by a process that does nothing.
func TestMemoryGaugeIsShortWhileWhatIsAliveIsNearTheLimit(t *testing.T) {
	var m admission.MemoryGauge
	if m.Short() {
		t.Fatal("Short() = true without a limit, want false")
	}
	const limit = 128 << 20
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(limit))

	synctest.Test(t, func(t *testing.T) { // for the clock by which it looks again
		isShort := func() bool {
			<-time.After(3 * time.Second)
			return m.Short()
		}

		alive := make([]byte, limit)
		runtime.GC()
		if !isShort() {
			t.Error("Short() = false with all of the limit alive, want true")
		}
		runtime.KeepAlive(alive)
		alive = nil
		isShort() // a collection may have been under way

		// Nobody collects here but who looks.
		if isShort() {
			t.Error("Short() = true with nothing alive, want false")
		}

		for range 4 {
			_ = make([]byte, limit/4)
		}

		if isShort() {
			t.Error("Short() = true with garbage only, want false")
		}
	})
}
