package values

import (
	"context"
	"sync"
	"time"
)

const (
	maxMemory = 16 << 20 // bytes of all values in a Memory, with overhead
	overhead  = 256      // estimated bytes of memory that an entry needs in addition to its value
)

// Memory is a Store in the memory of this process. The zero value is empty and ready to use. It holds at most maxMemory
// bytes, and SetValue returns ErrFull beyond that.
type Memory struct {
	mu       sync.Mutex // protects the fields below
	byKey    map[Key]entry
	bytes    int    // total size of all values, with overhead for each
	revision uint64 // the newest revision of any key
}

// entry is a value in a Memory. The zero entry, the only one with the revision 0, means that a key has no value.
type entry struct {
	value    []byte
	revision uint64
	expires  time.Time
}

// Value implements Store.
func (m *Memory) Value(_ context.Context, key Key) ([]byte, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.currentLocked(key)
	return e.value, e.revision, nil
}

// SetValue implements Store.
func (m *Memory) SetValue(_ context.Context, key Key, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	if len(value) > MaxSize {
		return 0, ErrTooLarge
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.currentLocked(key)
	if old.revision != revision {
		return 0, nil
	}
	isFull := func() bool { return m.bytes-len(old.value)+len(value)+overhead > maxMemory }
	if len(value) > 0 && isFull() {
		m.dropExpiredLocked()
		if isFull() {
			return 0, ErrFull
		}
	}
	m.removeLocked(key)
	m.revision++
	if len(value) > 0 {
		if m.byKey == nil {
			m.byKey = make(map[Key]entry)
		}
		m.byKey[key] = entry{value, m.revision, time.Now().Add(max(ttl, time.Second))}
		m.bytes += len(value) + overhead
	}
	return m.revision, nil
}

// Now implements Store.
func (m *Memory) Now() time.Time { return time.Now() }

// currentLocked returns a key's entry, or the zero entry if the key has no value. If the entry has expired, it removes
// it first. m.mu must be held.
func (m *Memory) currentLocked(key Key) entry {
	e, ok := m.byKey[key]
	if ok && !time.Now().Before(e.expires) {
		m.removeLocked(key)
		return entry{}
	}
	return e
}

// removeLocked removes a key's entry, if it has one. m.mu must be held.
func (m *Memory) removeLocked(key Key) {
	if e, ok := m.byKey[key]; ok {
		m.bytes -= len(e.value) + overhead
		delete(m.byKey, key)
	}
}

// dropExpiredLocked removes all expired entries. m.mu must be held.
func (m *Memory) dropExpiredLocked() {
	for key := range m.byKey {
		m.currentLocked(key) // removes the entry if it has expired
	}
}
