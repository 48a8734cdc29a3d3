package admission

import (
	"runtime/debug"
	"testing"
)

// A refusal must not wait for a collection that another request has started.
func TestMemoryGaugeAnswersWhileAnotherRequestMeasures(t *testing.T) {
	before := debug.SetMemoryLimit(1 << 40)
	defer debug.SetMemoryLimit(before)
	var m MemoryGauge
	m.mu.Lock() // as the request that measures does
	defer m.mu.Unlock()
	for _, want := range []bool{true, false} {
		m.short.Store(want)
		if got := m.Short(); got != want {
			t.Errorf("Short() during a measurement = %t, want %t as before", got, want)
		}
	}
}
