package admission

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// memoryShare is the part of GOMEMLIMIT above which memory is short: from there on, garbage collection runs so
	// often that it takes the runs' CPU time.
	memoryShare = 0.8
	// memoryInterval is how long the result of a measurement is used.
	memoryInterval = 100 * time.Millisecond
	// memoryStale is how old the last collection may be if its result says that memory is short. If it is older, Short
	// starts a collection itself: a process that refuses all work makes no garbage, and so would never collect again.
	memoryStale = 2 * time.Second
)

// MemoryGauge reports whether the process is near its GOMEMLIMIT. The zero value is ready for use.
type MemoryGauge struct {
	short atomic.Bool // the last result

	mu        sync.Mutex // guards the fields below; held during a measurement, which may include a garbage collection
	measured  time.Time  // when the last measurement ended
	cycles    uint64     // how many garbage collections there had been at the last measurement
	collected time.Time  // when Short first saw that number
}

// Short reports whether memory is short, for Limits.MemoryShort. Without a GOMEMLIMIT it returns false. It measures at
// most once per memoryInterval, and runs a garbage collection if it cannot find out otherwise. While another goroutine
// measures, Short returns the previous result, because a refusal must not wait for a garbage collection.
func (m *MemoryGauge) Short() bool {
	limit := debug.SetMemoryLimit(-1)
	if limit == math.MaxInt64 {
		return false
	}
	if !m.mu.TryLock() {
		return m.short.Load()
	}
	defer m.mu.Unlock()
	now := time.Now()
	if now.Sub(m.measured) < memoryInterval {
		return m.short.Load()
	}
	maxUsed := memoryShare * float64(limit)
	used, cycles := m.readUsage()
	if cycles != m.cycles {
		m.cycles, m.collected = cycles, now
	}
	isStale := now.Sub(m.collected) > memoryStale
	if float64(used) > maxUsed && isStale {
		runtime.GC()
		used, m.cycles = m.readUsage()
		m.collected = time.Now()
	}
	short := float64(used) > maxUsed
	m.short.Store(short)
	m.measured = time.Now()
	return short
}

// readUsage returns how many bytes a collection cannot free: the live heap after the last collection, and all memory
// that is not heap. It does not use the number of allocated bytes, because garbage may grow up to the limit even if
// little memory is live. cycles is the number of garbage collections so far.
func (m *MemoryGauge) readUsage() (used, cycles uint64) {
	samples := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"},
		// The rest is the heap, which the total includes.
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(samples)
	cycles = samples[0].Value.Uint64()
	used = samples[1].Value.Uint64() + samples[2].Value.Uint64()
	for _, heap := range samples[3:] {
		used -= heap.Value.Uint64()
	}
	return used, cycles
}
