package memory

import (
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"answerd/internal/event"
)

// dropInterval is the shortest time between two calls of DropEndedRuns that have an effect. The garbage collector needs
// some time before the memory freed by one call shows in measurements.
const dropInterval = 2 * time.Second

// maxTombstones is the largest size of a generation of tombstones. The log remembers at least that many of the runs it
// dropped last, and at most twice as many, at about 100 bytes each. A small log remembers fewer.
const maxTombstones = 16384

// bytesPerTombstone is how many bytes of MaxBytes allow for one tombstone in a generation.
const bytesPerTombstone = 2048

// maxOwnersCompared is how many owners are compared to find one above their share.
const maxOwnersCompared = 64

// addBytes counts grown more bytes for a run, and makes space if the log exceeds its limit (makeSpaceLocked). The
// caller must not hold any lock. Most calls do not lock l.mu, because the appends to all other runs would have to wait
// for it.
func (l *Log) addBytes(r *run, grown int64) {
	if r.usage.count(grown) <= l.maxBytes {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.makeSpaceLocked(r)
}

// addEnded is addBytes for a run to which the terminal event was added. It also adds the run to those that have ended.
func (l *Log) addEnded(r *run, grown int64) {
	r.usage.count(grown)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = append(l.ended, r)
	r.usage.ended = append(r.usage.ended, r)
	l.addRecentLocked(r)
	l.scheduleExpiryLocked()
	l.makeSpaceLocked(r)
}

// makeSpaceLocked drops other runs than r that have ended while the log exceeds its limit. If no other run has ended, r
// loses its tail, its results and its oldest events instead. The caller holds l.mu, but not r.mu.
func (l *Log) makeSpaceLocked(r *run) {
	for l.bytes.Load() > l.maxBytes && l.hasOtherEndedLocked(r) {
		l.dropLocked(l.nextToDropLocked(r))
	}
	// The log may exceed its limit again at this point, because runs append without l.mu. r loses events only if no
	// other run has ended. Otherwise the next append drops such a run.
	if excess := l.bytes.Load() - l.maxBytes; excess > 0 && !l.hasOtherEndedLocked(r) {
		l.dropTailLocked(r)
		more := l.maxBytes / 16 // so that not every append drops something
		r.usage.count(r.trimContent(excess + more))
	}
}

// addRecentLocked adds a run that has ended to the recent ones. It then drops the oldest tails among them until the
// rest use no more than their share of the log. The caller holds l.mu.
func (l *Log) addRecentLocked(r *run) {
	r.mu.Lock()
	l.recentBytes += r.tail.bytes // the tail does not grow any more, because the run has ended
	r.mu.Unlock()
	l.recent = append(l.recent, r)
	r.recent = true
	for len(l.recent) > 1 && l.recentBytes > l.maxBytes/tailsShare {
		l.dropTailLocked(l.recent[0])
	}
}

// dropTailLocked drops the tail of a recent run. The run's events can still be read. The caller holds l.mu, but not
// r.mu.
func (l *Log) dropTailLocked(r *run) {
	if !r.recent {
		return
	}
	l.recent = removeRun(l.recent, r)
	r.recent = false
	r.mu.Lock()
	l.recentBytes -= r.tail.bytes
	r.tail = tail{}
	freed := r.countLocked()
	r.mu.Unlock()
	r.usage.count(freed)
}

// hasOtherEndedLocked reports whether the run that ended first is not r. The caller holds l.mu.
func (l *Log) hasOtherEndedLocked(r *run) bool { return len(l.ended) > 0 && l.ended[0] != r }

// readGrace is how long a run that has ended is protected from being chosen because of its owner's share. Readers of
// its stream can read the last events in this time.
const readGrace = 5 * time.Second

// nextToDropLocked chooses a run to drop to make space for r, but never r itself. It first looks for an owner above
// their share, which is an equal part of the log for each owner with runs. It tries r's owner first, and then the
// largest of up to maxOwnersCompared owners. It returns the run of that owner that ended first. If none of these owners
// has a run that ended more than readGrace ago, it returns the run that ended first of all. The caller holds l.mu, and
// l.ended[0] must not be r.
func (l *Log) nextToDropLocked(r *run) *run {
	share := l.maxBytes / int64(max(len(l.usage), 1))
	endedBefore := time.Now().Add(-readGrace)
	if u := r.usage; u.bytes.Load() > share && u.canDropLocked(r, endedBefore) {
		return u.ended[0]
	}
	chosen := l.ended[0]
	largest, compared := share, 0
	for _, u := range l.usage {
		if bytes := u.bytes.Load(); bytes > largest && u.canDropLocked(r, endedBefore) {
			chosen, largest = u.ended[0], bytes
		}
		compared++
		if compared == maxOwnersCompared {
			break
		}
	}
	return chosen
}

// DropEndedRuns drops a quarter of the runs that have ended, in the order in which they ended. Calls within two seconds
// of the last one do nothing. A process calls it when memory is short. Otherwise, ended runs would occupy memory for
// the whole retention while new runs are refused.
func (l *Log) DropEndedRuns() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.lastDropped) < dropInterval {
		return
	}
	l.lastDropped = now
	quarter := (len(l.ended) + 3) / 4 // rounded up
	for range quarter {
		l.dropLocked(l.ended[0])
	}
}

// dropExpiredLocked drops the runs whose retention has passed. The caller holds l.mu.
func (l *Log) dropExpiredLocked(now time.Time) {
	for len(l.ended) > 0 && now.Sub(l.ended[0].endTime()) >= l.retention {
		l.dropLocked(l.ended[0])
	}
}

// expiryInterval is the shortest time until the timer drops expired runs. Until then they cannot be read, but use
// memory.
const expiryInterval = time.Second

// expiryTimer drops the runs whose retention has passed even if no run is created. It is set while the log has runs
// that have ended. The zero value is not set.
type expiryTimer struct {
	running sync.WaitGroup // counts the timer while it is set, and the timer's function

	timer  *time.Timer // nil while it is not set; Log.mu guards timer and closed
	closed bool
}

// scheduleExpiryLocked sets the timer if it is not set and a run has ended. The caller holds l.mu.
func (l *Log) scheduleExpiryLocked() {
	if l.expiry.timer != nil || l.expiry.closed || len(l.ended) == 0 {
		return
	}
	l.expiry.running.Add(1)
	l.expiry.timer = time.AfterFunc(max(l.retention-time.Since(l.ended[0].endTime()), expiryInterval), func() {
		defer l.expiry.running.Done()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.expiry.timer = nil
		l.dropExpiredLocked(time.Now())
		l.scheduleExpiryLocked()
	})
}

// Close stops the timer that drops expired runs, and waits for its function. The log can still be used.
func (l *Log) Close() {
	l.mu.Lock()
	l.expiry.closed = true
	if l.expiry.timer != nil && l.expiry.timer.Stop() { // if Stop returns false, the timer's function calls Done
		l.expiry.timer = nil
		l.expiry.running.Done()
	}
	l.mu.Unlock()
	l.expiry.running.Wait()
}

// dropLocked removes a run and adds its tombstone. It wakes readers and waiters that already hold the run, and they get
// event.ErrGone when they call the log again. The caller holds l.mu, but not r.mu.
func (l *Log) dropLocked(r *run) {
	l.ended = removeRun(l.ended, r)
	r.usage.ended = removeRun(r.usage.ended, r)
	l.dropTailLocked(r)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dropped {
		return // Delete was called while the run ended, and the key may belong to another run by now
	}
	delete(l.keys, ownedKey{r.record.Owner, r.record.Key})
	r.usage.runs--
	if r.usage.runs == 0 {
		delete(l.usage, r.record.Owner)
	}
	r.events = events{}
	r.tail = tail{}
	r.results = results{}
	r.otherBytes = 0
	r.dropped = true
	r.usage.count(r.countLocked())
	r.inbox.inputs = nil
	r.notes = nil
	r.record.Request = nil
	r.record.Metadata = nil
	if r.job != nil {
		r.job.stopTimerLocked()
	}
	l.tombstones.addOwner(r.record.ID, r.record.Owner)
	l.runs.Delete(r.record.ID)
	wakeWaiters(&r.more)
	wakeWaiters(&r.settled)
	wakeWaiters(&r.inbox.more)
}

// removeRun returns runs without r. It reuses the array of runs. r is nearly always the first element.
func removeRun(runs []*run, r *run) []*run {
	if len(runs) > 0 && runs[0] == r {
		runs[0] = nil
		return runs[1:]
	}
	if i := slices.Index(runs, r); i >= 0 {
		return slices.Delete(runs, i, i+1)
	}
	return runs
}

// ownerOfDropped returns the owner of a run that was dropped. The caller must not hold l.mu.
func (l *Log) ownerOfDropped(id string) (_ event.Owner, wasDropped bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.tombstones.ownerOf(id)
}

// tombstones holds the owners of dropped runs, by run id. It holds nothing else about a run, because a reference to the
// run would keep most of the run's memory alive.
//
// It has two generations. When the newer one is full, it replaces the older one, so that the order of single tombstones
// need not be stored.
type tombstones struct {
	newer, older map[string]unique.Handle[event.Owner]
	limit        int // largest size of a generation
}

// newTombstones returns empty tombstones for a log of maxBytes.
func newTombstones(maxBytes int64) tombstones {
	return tombstones{limit: int(min(maxTombstones, maxBytes/bytesPerTombstone+1))}
}

// addOwner stores the owner of a run that was dropped. If the newer generation is full, the older one is forgotten.
func (t *tombstones) addOwner(id string, owner event.Owner) {
	if len(t.newer) >= t.limit {
		t.older, t.newer = t.newer, nil
	}
	if t.newer == nil {
		t.newer = make(map[string]unique.Handle[event.Owner])
	}
	// Clone the id, because it may be part of a longer string that would stay in memory. unique.Make clones the owner's
	// strings, and stores an owner of many runs only once.
	t.newer[strings.Clone(id)] = unique.Make(owner)
}

// ownerOf returns the owner of a run that was dropped. It returns false if the run was not dropped, or if so many runs
// were dropped since then that its tombstone was forgotten.
func (t *tombstones) ownerOf(id string) (_ event.Owner, found bool) {
	handle, ok := t.newer[id]
	if !ok {
		handle, ok = t.older[id]
	}
	if !ok {
		return event.Owner{}, false
	}
	return handle.Value(), true
}
