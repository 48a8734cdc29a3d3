package admission

import "sync"

const (
	// baseMemory is what a run holds without any text: its goroutines, its buffers and its connections, in bytes.
	baseMemory = 128 << 10
	// firstAverage is the average before the first runs have ended: that of a run with four results of 200 kB.
	firstAverage = 2560 << 10
	// averagedRuns is the length of the moving average: a run that ends has the weight 1/averagedRuns.
	averagedRuns = 16
)

// Memory is the memory that all runs together may hold, in bytes. Each run has a part of the memory: what
// the run reserved at its start, or what it holds if that is more.
//
// At the start of a run it is not known how much the run will hold. So the run reserves what runs held on average when
// they ended, and is refused if less is left. After that, the run counts what it holds: its request, its text and its
// results. If its part must grow and not enough is left, the run has to end.
type Memory struct {
	capacity int64

	mu      sync.Mutex // guards the fields below, and those of every Reservation
	taken   int64      // the parts of all runs together
	average int64      // moving average of what runs held when they ended
}

// NewMemory returns a Memory of capacity bytes. For 0 it returns nil, which allows any amount.
func NewMemory(capacity int64) *Memory {
	if capacity == 0 {
		return nil
	}
	return &Memory{capacity: capacity, average: firstAverage}
}

// Reservation is one part of the memory. A nil *Reservation may hold any amount.
type Reservation struct {
	memory   *Memory
	ofRun    bool  // counts towards the average when it is released
	reserved int64 // bytes that count as taken even if fewer are held
	held     int64
	released bool
}

// countedBytes returns the bytes of the reservation that count as taken.
func (r *Reservation) countedBytes() int64 { return max(r.reserved, r.held) }

// Open returns an empty Reservation for what is held outside of a run, such as a request that is
// being read. ok is false if fewer than the expected bytes are left. Open does not reserve them: the caller counts what
// it holds with Hold, and must call Release.
func (m *Memory) Open(expected int64) (_ *Reservation, ok bool) {
	if m == nil {
		return nil, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return &Reservation{memory: m}, expected == 0 || m.taken+expected <= m.capacity
}

// newReservationLocked returns the Reservation of a run whose request holds that many bytes, without counting it as
// taken. It reserves the average, but at most half of the capacity, so that two runs can be active.
func (m *Memory) newReservationLocked(request int64) *Reservation {
	return &Reservation{memory: m, ofRun: true, reserved: min(m.average, m.capacity/2), held: baseMemory + request}
}

// hasRoomLocked reports whether r fits into the memory that is left. While nothing is taken, any reservation fits, so
// that a large run can be executed alone.
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

// reserve takes memory for a run whose request holds that many bytes. If not enough is left, it returns nil and false;
// with force it takes the memory all the same. A nil Memory returns nil and true.
func (m *Memory) reserve(request int64, force bool) (reservation *Reservation, enough bool) {
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

// Hold counts that many more bytes as held, or fewer if bytes is negative. It returns false if not enough memory is
// left. Then the reservation is released, and its run must end. After Release, Hold counts nothing and returns true.
func (r *Reservation) Hold(bytes int64) bool {
	if r == nil {
		return true
	}
	m := r.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.released {
		return true // the run is ending already
	}
	before := r.countedBytes()
	r.held += bytes
	m.taken += r.countedBytes() - before
	if r.countedBytes() <= before || m.taken <= m.capacity {
		return true
	}
	r.releaseLocked()
	return false
}

// HoldOnly gives back the memory that is reserved and not held, for a run that waits for a person, which may take long.
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

// Release gives all memory of the reservation back. Further calls do nothing.
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

// releaseLocked gives the memory back and, for a run, adds what it held to the average. The caller checks that r has
// not been released.
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
