package admission

import "sync"

const (
	// baseMemory is what a run holds without any text: its goroutines, its buffers and its
	// connections, in bytes.
	baseMemory = 128 << 10
	// firstAverage is used before the first runs have ended: a run with four results of 200 kB.
	firstAverage = 2560 << 10
	// averagedRuns is how many runs the average follows: each run that ends has a weight of one
	// part of them.
	averagedRuns = 16
)

// Memory is the memory that all runs together may hold, in bytes. Each run has a part of it: what
// the run reserved at its start, or what it holds if that is more.
//
// Nothing tells at the start of a run how much it will hold. It reserves what runs held on average
// when they ended, and it is refused if that much is not left. Then it counts what it holds: its
// request, its text and its results. If its part must grow and not enough is left, the run has to
// end.
type Memory struct {
	capacity int64

	mu      sync.Mutex // guards the fields below, and those of every Reservation
	taken   int64      // all parts together
	average int64      // what runs held when they ended
}

// NewMemory returns a Memory of capacity bytes. For 0 bytes it returns nil, which has no bound.
func NewMemory(capacity int64) *Memory {
	if capacity == 0 {
		return nil
	}
	return &Memory{capacity: capacity, average: firstAverage}
}

// Reservation is one part of the memory. A nil *Reservation may hold any amount.
type Reservation struct {
	memory   *Memory
	ofRun    bool
	reserved int64
	held     int64
	released bool
}

// countedBytes returns the bytes that count as taken.
func (r *Reservation) countedBytes() int64 { return max(r.reserved, r.held) }

// Open returns an empty Reservation, for what is held outside of a run, such as a request that is
// being read. Release it. It reports false if the bytes that are expected are not left.
func (m *Memory) Open(expected int64) (_ *Reservation, ok bool) {
	if m == nil {
		return nil, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return &Reservation{memory: m}, expected == 0 || m.taken+expected <= m.capacity
}

// newReservationLocked returns the Reservation of a run whose request holds that many bytes. If the
// average is above half of the capacity, half is reserved, so that two runs can be active.
func (m *Memory) newReservationLocked(request int64) *Reservation {
	return &Reservation{memory: m, ofRun: true, reserved: min(m.average, m.capacity/2), held: baseMemory + request}
}

// hasRoomLocked reports whether a reservation can be added. While nothing is taken any run can.
func (m *Memory) hasRoomLocked(r *Reservation) bool {
	return m.taken == 0 || m.taken+r.countedBytes() <= m.capacity
}

// hasRoom reports whether a run whose request holds that many bytes would be admitted now.
func (m *Memory) hasRoom(request int64) bool {
	if m == nil {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hasRoomLocked(m.newReservationLocked(request))
}

// reserve returns the Reservation of a run whose request holds that many bytes. Without force it
// reports false if not enough is left.
func (m *Memory) reserve(request int64, force bool) (*Reservation, bool) {
	if m == nil {
		return nil, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.newReservationLocked(request)
	if !force && !m.hasRoomLocked(r) {
		return nil, false
	}
	m.taken += r.countedBytes()
	return r, true
}

// Hold counts n more bytes that are held, or fewer if n is negative. It reports false if not enough
// is left. Its holder must end then; what it holds is free for others at once.
func (r *Reservation) Hold(n int64) bool {
	if r == nil {
		return true
	}
	m := r.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.released {
		return true // it ends already
	}
	before := r.countedBytes()
	r.held += n
	m.taken += r.countedBytes() - before
	if r.countedBytes() <= before || m.taken <= m.capacity {
		return true
	}
	r.releaseLocked()
	return false
}

// HoldOnly gives back what was reserved and is not held. A run that waits for a person may wait for
// long.
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

// Release gives back everything; once is enough.
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

// releaseLocked gives the memory back. What a run has held counts towards the average, by which others are admitted.
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
