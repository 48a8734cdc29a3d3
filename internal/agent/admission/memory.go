package admission

import "sync"

const (
	// baseMemory estimates a run's memory besides its texts, in bytes: goroutines, buffers and connections.
	baseMemory = 128 << 10
	// firstAverage is the initial average, before runs have ended. It is what a run with four results of 200 kB holds.
	firstAverage = 2560 << 10
	// averagedRuns is the length of the moving average: each run that ends has the weight 1/averagedRuns.
	averagedRuns = 16
)

// Memory is the memory that all runs together may hold, in bytes. Each run's part is what the run reserved at its
// start, or what it holds if that is more.
//
// It is not known at a run's start how much the run will hold. So the run reserves the average that earlier runs held
// when they ended, and is refused if less is left. From then on the run counts what it holds: its request, its text and
// its results. If its part must grow and not enough memory is left, the run has to end.
type Memory struct {
	capacity int64

	mu      sync.Mutex // guards the fields below, and those of every Reservation
	taken   int64      // the sum of all runs' parts
	average int64      // moving average of what runs held at their ends
}

// NewMemory returns a Memory of capacity bytes. If capacity is 0 it returns nil, which sets no limit.
func NewMemory(capacity int64) *Memory {
	if capacity == 0 {
		return nil
	}
	return &Memory{capacity: capacity, average: firstAverage}
}

// Reservation is one part of a Memory. A nil *Reservation may hold any amount.
type Reservation struct {
	memory   *Memory
	ofRun    bool  // whether it counts towards the average when released
	reserved int64 // bytes that count as taken even if fewer are held
	held     int64
	released bool
}

// countedBytes returns how many bytes of the reservation count as taken.
func (r *Reservation) countedBytes() int64 { return max(r.reserved, r.held) }

// Open returns an empty Reservation for memory that is held outside of a run, such as a request that is being read. ok
// is false if fewer than expected bytes are left. Open does not reserve these bytes: the caller counts with Hold what
// it really holds, and must call Release.
func (m *Memory) Open(expected int64) (_ *Reservation, ok bool) {
	if m == nil {
		return nil, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ok = expected == 0 || m.taken+expected <= m.capacity
	return &Reservation{memory: m}, ok
}

// newReservationLocked returns the Reservation of a run whose request holds requestBytes. It does not count it as taken
// yet. It reserves the average, but at most half the capacity, so that two runs can be active. m.mu must be held.
func (m *Memory) newReservationLocked(requestBytes int64) *Reservation {
	return &Reservation{memory: m, ofRun: true, reserved: min(m.average, m.capacity/2), held: baseMemory + requestBytes}
}

// fitsLocked reports whether r fits into the memory that is left. If nothing is taken, every reservation fits, so
// that a large run can be executed alone. m.mu must be held.
func (m *Memory) fitsLocked(r *Reservation) bool {
	return m.taken == 0 || m.taken+r.countedBytes() <= m.capacity
}

// fits reports whether a run whose request holds requestBytes would be admitted now.
func (m *Memory) fits(requestBytes int64) bool {
	if m == nil {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fitsLocked(m.newReservationLocked(requestBytes))
}

// reserve takes memory for a run whose request holds requestBytes. If not enough is left, it returns nil and false. A
// nil Memory returns nil and true.
func (m *Memory) reserve(requestBytes int64) (reservation *Reservation, enough bool) {
	if m == nil {
		return nil, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.newReservationLocked(requestBytes)
	if !m.fitsLocked(r) {
		return nil, false
	}
	m.taken += r.countedBytes()
	return r, true
}

// reserveOverLimit takes memory like reserve, even if not enough is left. A nil Memory returns nil.
func (m *Memory) reserveOverLimit(requestBytes int64) *Reservation {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.newReservationLocked(requestBytes)
	m.taken += r.countedBytes()
	return r
}

// Hold adds bytes, which may be negative, to what is held. It returns false if not enough memory is left; the
// reservation is then released, and its run must end. After Release, Hold does nothing and returns true.
func (r *Reservation) Hold(bytes int64) bool {
	if r == nil {
		return true
	}
	m := r.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.released {
		return true // the run is already ending
	}
	before := r.countedBytes()
	r.held += bytes
	growth := r.countedBytes() - before
	m.taken += growth
	if growth <= 0 || m.taken <= m.capacity {
		return true
	}
	r.releaseLocked()
	return false
}

// HoldOnly gives back memory that is reserved but not held. It is for a run that waits for a person.
func (r *Reservation) HoldOnly() {
	if r == nil {
		return
	}
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	before := r.countedBytes()
	r.reserved = 0
	r.memory.taken -= before - r.countedBytes()
}

// Release gives back all memory of the reservation. Further calls do nothing. r may be nil.
func (r *Reservation) Release() {
	if r == nil {
		return
	}
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	if !r.released {
		r.releaseLocked()
	}
}

// releaseLocked gives back the memory and, for a run, adds what it held to the average. It may be called only once,
// with r.memory.mu held.
func (r *Reservation) releaseLocked() {
	m := r.memory
	m.taken -= r.countedBytes()
	if r.ofRun {
		m.average += (r.held - m.average) / averagedRuns
	}
	r.released = true
	r.reserved = 0
	r.held = 0
}
