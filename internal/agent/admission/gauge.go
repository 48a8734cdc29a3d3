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
	// memoryShare is the part of GOMEMLIMIT beyond which memory is short: there, the garbage collector runs so
	// often that it takes the CPU time of the runs.
	memoryShare = 0.8
	// memoryInterval is how long a measured value is used.
	memoryInterval = 100 * time.Millisecond
	// memoryStale is how long ago the last collection may be when its result says that memory is short. After that,
	// Short makes a collection: a process that refuses all work makes no garbage, and would not collect by itself.
	memoryStale = 2 * time.Second
)

// MemoryGauge reports whether the process is near its GOMEMLIMIT. The zero value is ready for use.
type MemoryGauge struct {
	short atomic.Bool // the result of the last measurement

	mu        sync.Mutex // guards the fields below; held during a measurement, which may make a collection
	measured  time.Time  // when the last measurement ended
	cycles    uint64     // number of garbage collections at the last measurement
	collected time.Time  // when Short first saw this number
}

// Short reports whether memory is short, for Limits.MemoryShort. Without a GOMEMLIMIT it returns false. It measures at
// most once per memoryInterval, and makes a garbage collection if that is the only way to find out. While another
// goroutine measures, it returns the result of the measurement before: a refusal must not wait for a collection.
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
	used, cycles := m.readUsage()
	if cycles != m.cycles {
		m.cycles, m.collected = cycles, now
	}
	short := float64(used) > memoryShare*float64(limit)
	if short && now.Sub(m.collected) > memoryStale {
		runtime.GC()
		used, m.cycles = m.readUsage()
		m.collected = time.Now()
		short = float64(used) > memoryShare*float64(limit)
	}
	m.short.Store(short)
	m.measured = time.Now()
	return short
}

// readUsage returns the bytes that a collection cannot free: the live heap of the last collection, and
// all memory that is not heap. The number of allocated bytes is not used, because garbage grows up to the limit even
// if little is alive. cycles is the number of garbage collections so far.
func (m *MemoryGauge) readUsage() (used, cycles uint64) {
	samples := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"},
		// The heap, which the total includes.
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
