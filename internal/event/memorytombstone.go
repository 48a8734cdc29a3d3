package event

import (
	"slices"
	"strings"
	"unique"
)

// maxTombstones is how many of the last runs that are gone are known for certain; up to
// twice as many are, at some 100 bytes each.
const maxTombstones = 16384

// tombstones are the owners of runs that are gone, by id, so that an owner is told "gone"
// and not "never heard of", and others are told nothing. No more is kept of a run: what
// it points to would stay with it, and most of its memory is there.
//
// There are two generations, of which the older one goes as a whole: that needs no list of
// who came when.
type tombstones struct {
	young, old map[string]unique.Handle[Owner]
}

func (t *tombstones) put(id string, owner Owner) {
	if len(t.young) >= maxTombstones {
		t.old, t.young = t.young, nil
	}
	if t.young == nil {
		t.young = make(map[string]unique.Handle[Owner])
	}
	// Neither the id nor the owner may be a part of something larger; unique sees to the
	// latter, and keeps an owner of many runs once.
	t.young[strings.Clone(id)] = unique.Make(owner)
}

func (t *tombstones) owner(id string) (Owner, bool) {
	h, ok := t.young[id]
	if !ok {
		h, ok = t.old[id]
	}
	if !ok {
		return Owner{}, false
	}
	return h.Value(), true
}

// buryLocked drops a run, and leaves its tombstone.
func (m *Memory) buryLocked(r *memoryRun) {
	m.ended = without(m.ended, r)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return // deleted while it ended, and its key may be another's by now
	}
	delete(m.keys, ownedKey{r.run.Owner, r.run.Key})
	m.bytes.Add(-r.bytes)
	// Who has found it before reads on, and is told at once.
	r.events, r.kept, r.bytes, r.gone = nil, keptResults{}, 0, true
	r.inbox.inputs, r.notes, r.run.Request = nil, nil, nil
	if r.job != nil {
		r.job.disarmLocked()
	}
	m.gone.put(r.run.ID, r.run.Owner)
	m.runs.Delete(r.run.ID)
	wake(&r.more)
	wake(&r.inbox.more)
}

// without is a queue without r, which is nearly always its first.
func without(queue []*memoryRun, r *memoryRun) []*memoryRun {
	if len(queue) > 0 && queue[0] == r {
		queue[0] = nil
		return queue[1:]
	}
	if i := slices.Index(queue, r); i >= 0 {
		return slices.Delete(queue, i, i+1)
	}
	return queue
}

// buried is the owner of a run that is gone; m.mu is not held.
func (m *Memory) buried(id string) (Owner, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.gone.owner(id)
}
