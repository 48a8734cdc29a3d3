package event

import (
	"hash/maphash"
	"iter"
	"sync"
)

// runShards is how many locks the runs of a Memory log have.
const runShards = 64

// memoryRuns are runs by id. Every append and every reader looks here: one lock for all of
// them, even one for readers, is a line of memory that all cores fight for, and a sync.Map
// makes three objects of each run, which every collection has to follow.
type memoryRuns struct {
	seed   maphash.Seed
	shards [runShards]struct {
		mu   sync.RWMutex // guards byID
		byID map[string]*memoryRun
		_    [32]byte // with what comes before, a line of memory of its own
	}
}

func newMemoryRuns() *memoryRuns {
	m := &memoryRuns{seed: maphash.MakeSeed()}
	for i := range m.shards {
		m.shards[i].byID = make(map[string]*memoryRun)
	}
	return m
}

// get is the run of that id, or nil.
func (m *memoryRuns) get(id string) *memoryRun {
	s := &m.shards[m.shard(id)]
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byID[id]
}

func (m *memoryRuns) put(r *memoryRun) {
	s := &m.shards[m.shard(r.run.ID)]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[r.run.ID] = r
}

func (m *memoryRuns) drop(id string) {
	s := &m.shards[m.shard(id)]
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, id)
}

func (m *memoryRuns) shard(id string) uint64 { return maphash.String(m.seed, id) % runShards }

// all are the runs, in no order. Whoever ranges over them may not add or drop one meanwhile.
func (m *memoryRuns) all() iter.Seq[*memoryRun] {
	return func(yield func(*memoryRun) bool) {
		for i := range m.shards {
			if !m.each(i, yield) {
				return
			}
		}
	}
}

func (m *memoryRuns) each(shard int, yield func(*memoryRun) bool) bool {
	s := &m.shards[shard]
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, r := range s.byID {
		if !yield(r) {
			return false
		}
	}
	return true
}
