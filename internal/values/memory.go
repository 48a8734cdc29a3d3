package values

import (
	"context"
	"maps"
	"sync"
	"time"
)

const (
	maxMemory = 16 << 20 // bytes of all values of a Memory
	overhead  = 256      // bytes that a value needs in addition to its own, estimated
)

// Memory is a Store in the memory of this process. The zero value is empty. It has 16 MiB at most.
type Memory struct {
	mu       sync.Mutex // protects what follows
	byKey    map[Key]entry
	bytes    int
	revision uint64 // the newest
}

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
	before := m.currentLocked(key)
	if before.revision != revision {
		return 0, nil
	}
	if len(value) > 0 && m.bytes-len(before.value)+len(value)+overhead > maxMemory {
		m.dropExpiredLocked()
		if m.bytes-len(before.value)+len(value)+overhead > maxMemory {
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

// currentLocked returns the entry of a key; the zero entry if it has none or the entry has expired.
func (m *Memory) currentLocked(key Key) entry {
	e, ok := m.byKey[key]
	if ok && !time.Now().Before(e.expires) {
		m.removeLocked(key)
		return entry{}
	}
	return e
}

func (m *Memory) removeLocked(key Key) {
	if e, ok := m.byKey[key]; ok {
		m.bytes -= len(e.value) + overhead
		delete(m.byKey, key)
	}
}

// dropExpiredLocked removes the values whose time to live has passed.
func (m *Memory) dropExpiredLocked() {
	now := time.Now()
	maps.DeleteFunc(m.byKey, func(_ Key, e entry) bool {
		expired := !now.Before(e.expires)
		if expired {
			m.bytes -= len(e.value) + overhead
		}
		return expired
	})
}
