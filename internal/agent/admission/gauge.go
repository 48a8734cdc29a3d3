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
	// memoryShare is the part of GOMEMLIMIT from which on memory is short. Beyond it the
	// collector spends more on each byte than the byte is worth.
	memoryShare = 0.8
	// memoryInterval is how long a measured value is used.
	memoryInterval = 100 * time.Millisecond
	// memoryStale is how old the last collection may be when it says that memory is
	// short: a process that refuses all work makes no garbage, and would not collect.
	memoryStale = 2 * time.Second
)

// MemoryGauge reports whether the process is near its GOMEMLIMIT. The zero value is ready for
// use.
type MemoryGauge struct {
	short atomic.Bool // what was measured last

	mu        sync.Mutex // held while it measures, which may take a collection; protects what follows
	looked    time.Time
	cycles    uint64    // collections so far
	collected time.Time // when that number was new
}

// Short reports whether memory is short, for Limits.MemoryShort. It measures at most every
// memoryInterval, and does nothing without a GOMEMLIMIT. While another goroutine measures, what was
// measured before is used: a refusal must not wait for a collection.
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
	if now.Sub(m.looked) < memoryInterval {
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
		m.collected, short = time.Now(), float64(used) > memoryShare*float64(limit)
	}
	m.short.Store(short)
	m.looked = time.Now()
	return short
}

// readUsage returns the bytes that cannot be collected: what the last collection found alive, and
// what is not heap. All allocated bytes would not do, since garbage grows up to the limit however
// little is alive.
func (m *MemoryGauge) readUsage() (used, cycles uint64) {
	s := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"}, {Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
		{Name: "/gc/cycles/total:gc-cycles"},
	}
	metrics.Read(s)
	used = s[0].Value.Uint64() + s[1].Value.Uint64()
	for _, heap := range s[2:6] {
		used -= heap.Value.Uint64()
	}
	return used, s[6].Value.Uint64()
}
