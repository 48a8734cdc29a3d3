package memory

import (
	"cmp"
	"container/list"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/threadindex"
)

const (
	// threadOverhead estimates the bytes that a thread needs in addition to its texts and turns.
	threadOverhead = 1 << 10
	// threadsShare is the part of MaxBytes that threads may use: one in threadsShare bytes.
	threadsShare = 4
	// maxUnfinished bounds the runs of a thread that began and have no turn.
	maxUnfinished = 16
	// maxThreadsCompared bounds the threads that are compared to find one of an owner above its share.
	maxThreadsCompared = 64
)

// threads holds the threads of a Log. Its methods whose names end in Locked need mu.
type threads struct {
	mu       sync.Mutex // guards the fields below; not held together with Log.mu
	index    threadindex.Index
	byKey    map[threadKey]*thread
	byUpdate list.List // of *thread, the one that was updated longest ago first
	updates  uint64    // ever
	bytes    int64     // of all threads
	usage    map[event.Owner]int64
}

// threadKey identifies a thread.
type threadKey struct {
	owner event.Owner
	id    string
}

// thread is a thread with its turns.
type thread struct {
	key        threadKey
	turns      []event.Turn // without a gap; pages share parts of it
	lastNumber int64        // of the turns, ever
	unfinished []string     // runs that began and have no turn, the newest last; the active run is one of them
	bytes      int64
	place      *list.Element // in byUpdate
}

// turnSize estimates the bytes of a turn in memory.
func turnSize(t event.Turn) int64 { return int64(cap(t.Data)) + entryOverhead }

// findLocked returns a thread that is kept, and its entry in the index.
func (l *Log) findLocked(owner event.Owner, id string) (*thread, threadindex.Entry, error) {
	e, ok := l.threads.index.Get(owner, id)
	if !ok || e.Expired(time.Now(), l.retention) {
		return nil, e, event.ErrNotFound
	}
	return l.threads.byKey[threadKey{owner, id}], e, nil
}

// BeginTurn implements event.Threads. It also removes the threads whose retention has passed.
func (l *Log) BeginTurn(_ context.Context, owner event.Owner, id, run, agent, title string) (event.Thread, error) {
	if !event.ValidThreadID(id) || !event.ValidID(run) {
		return event.Thread{}, event.ErrNotFound
	}
	l.threads.mu.Lock()
	l.removeExpiredLocked()
	begun, err := l.beginLocked(owner, id, run, agent, title)
	l.threads.mu.Unlock()
	l.dropEndedAboveLimit()
	return begun, err
}

func (l *Log) beginLocked(owner event.Owner, id, run, agent, title string) (event.Thread, error) {
	t, e, err := l.findLocked(owner, id)
	switch {
	case err != nil:
		t, e = l.addThreadLocked(owner, strings.Clone(id), strings.Clone(event.CutTitle(title)))
	case e.Active == run:
		return e.Thread, nil
	case e.Active != "":
		return event.Thread{}, &event.BusyError{Run: e.Active}
	}
	t.unfinished = append(slices.DeleteFunc(t.unfinished, func(r string) bool { return r == run }), run)
	if n := len(t.unfinished) - maxUnfinished; n > 0 {
		t.unfinished = slices.Delete(t.unfinished, 0, n)
	}
	e.Active, e.Agent = run, agent
	return l.updateLocked(t, e, 0), nil
}

// addThreadLocked returns a new thread that is not yet in the index.
func (l *Log) addThreadLocked(owner event.Owner, id, title string) (*thread, threadindex.Entry) {
	ts := &l.threads
	if ts.byKey == nil {
		ts.byKey, ts.usage = make(map[threadKey]*thread), make(map[event.Owner]int64)
	}
	t := &thread{key: threadKey{owner, id}}
	t.place = ts.byUpdate.PushBack(t)
	ts.byKey[t.key] = t
	l.countThreadBytesLocked(t, threadOverhead+int64(len(id)+event.MaxTitle))
	return t, threadindex.Entry{Thread: event.Thread{ID: id, Owner: owner, Title: title, Created: time.Now()}}
}

// updateLocked makes e, changed by an update that added grown bytes, the newest entry.
func (l *Log) updateLocked(t *thread, e threadindex.Entry, grown int64) event.Thread {
	ts := &l.threads
	ts.updates++
	e.Order, e.Updated = ts.updates, time.Now()
	ts.index.Put(e)
	ts.byUpdate.MoveToBack(t.place)
	l.countThreadBytesLocked(t, grown)
	l.makeSpaceLocked(t)
	return e.Thread
}

// EndTurn implements event.Threads.
func (l *Log) EndTurn(_ context.Context, owner event.Owner, id, run string, data []byte) error {
	if len(data) > event.MaxTurn {
		return event.ErrTooLarge
	}
	l.threads.mu.Lock()
	err := l.endLocked(owner, id, run, data)
	l.threads.mu.Unlock()
	l.dropEndedAboveLimit()
	return err
}

func (l *Log) endLocked(owner event.Owner, id, run string, data []byte) error {
	t, e, err := l.findLocked(owner, id)
	if err != nil {
		return err
	}
	began := slices.Contains(t.unfinished, run)
	switch {
	case !began && slices.ContainsFunc(t.turns, func(t event.Turn) bool { return t.Run == run }):
		return nil
	case !began:
		return event.ErrNotFound
	case data == nil && e.Active != run:
		return nil
	}
	if e.Active == run {
		e.Active = ""
	}
	if data == nil {
		l.updateLocked(t, e, 0)
		return nil
	}
	t.unfinished = slices.DeleteFunc(t.unfinished, func(r string) bool { return r == run })
	t.lastNumber++
	turn := event.Turn{Run: run, Number: t.lastNumber, Time: time.Now(), Data: data}
	t.turns = append(t.turns, turn)
	e.Turns, e.LastRun = e.Turns+1, run
	l.updateLocked(t, e, turnSize(turn))
	return nil
}

// Thread implements event.Threads.
func (l *Log) Thread(_ context.Context, owner event.Owner, id string) (event.Thread, error) {
	l.threads.mu.Lock()
	defer l.threads.mu.Unlock()
	_, e, err := l.findLocked(owner, id)
	if err != nil {
		return event.Thread{}, err
	}
	return e.Thread, nil
}

// Turns implements event.Threads.
func (l *Log) Turns(_ context.Context, owner event.Owner, id string, before int64, limit, maxBytes int) (page event.TurnPage, err error) {
	l.threads.mu.Lock()
	defer l.threads.mu.Unlock()
	t, _, err := l.findLocked(owner, id)
	if err != nil {
		return page, err
	}
	end := len(t.turns)
	if before > 0 {
		end, _ = slices.BinarySearchFunc(t.turns, before, func(t event.Turn, n int64) int { return cmp.Compare(t.Number, n) })
	}
	first, size := end, 0
	for first > 0 && end-first < max(limit, 1) {
		if size += len(t.turns[first-1].Data); size > maxBytes && first < end {
			break
		}
		first--
	}
	page.Turns = t.turns[first:end:end]
	if first > 0 {
		page.Before = t.turns[first].Number
	}
	return page, nil
}

// ListThreads implements event.Threads.
func (l *Log) ListThreads(_ context.Context, f event.ThreadFilter) (event.ThreadPage, error) {
	l.threads.mu.Lock()
	defer l.threads.mu.Unlock()
	now := time.Now()
	return l.threads.index.Page(f, func(t event.Thread) bool { return !t.Expired(now, l.retention) })
}

// RenameThread implements event.Threads.
func (l *Log) RenameThread(_ context.Context, owner event.Owner, id, title string) (event.Thread, error) {
	l.threads.mu.Lock()
	defer l.threads.mu.Unlock()
	_, e, err := l.findLocked(owner, id)
	if err != nil {
		return event.Thread{}, err
	}
	e.Title = strings.Clone(event.CutTitle(title))
	l.threads.index.Put(e)
	return e.Thread, nil
}

// DeleteThread implements event.Threads.
func (l *Log) DeleteThread(_ context.Context, owner event.Owner, id string) error {
	l.threads.mu.Lock()
	defer l.threads.mu.Unlock()
	t, _, err := l.findLocked(owner, id)
	if err != nil {
		return err
	}
	l.removeThreadLocked(t)
	return nil
}

func (l *Log) removeThreadLocked(t *thread) {
	ts := &l.threads
	l.countThreadBytesLocked(t, -t.bytes)
	ts.index.Remove(t.key.owner, t.key.id)
	ts.byUpdate.Remove(t.place)
	delete(ts.byKey, t.key)
}

// countThreadBytesLocked accounts for n more bytes of t.
func (l *Log) countThreadBytesLocked(t *thread, n int64) {
	t.bytes += n
	l.threads.bytes += n
	l.bytes.Add(n)
	if l.threads.usage[t.key.owner] += n; l.threads.usage[t.key.owner] == 0 {
		delete(l.threads.usage, t.key.owner)
	}
}

// removeExpiredLocked removes the threads whose retention has passed, as far as it finds them at the
// beginning of byUpdate. A thread with an active run, which is kept for longer, may hide others there
// until it ends; nobody can read those.
func (l *Log) removeExpiredLocked() {
	now := time.Now()
	for place := l.threads.byUpdate.Front(); place != nil; {
		t := place.Value.(*thread)
		place = place.Next()
		e, _ := l.threads.index.Get(t.key.owner, t.key.id)
		switch {
		case e.Expired(now, l.retention):
			l.removeThreadLocked(t)
		case e.Active == "" || now.Sub(e.Updated) < l.retention:
			return // the threads after it were updated later
		}
	}
}

// makeSpaceLocked removes threads until they need no more than their share of the log: those without an
// active run first. It keeps t as long as there are others, but not all of its turns.
func (l *Log) makeSpaceLocked(t *thread) {
	for limit := l.maxBytes / threadsShare; l.threads.bytes > limit; {
		if idle := l.oldestIdleLocked(t, limit); idle != nil {
			l.removeThreadLocked(idle)
			continue
		}
		// Cut more than needed, because each call copies the remaining turns.
		if l.cutTurnsLocked(t, l.threads.bytes-limit+limit/16, 1); l.threads.bytes <= limit {
			return
		}
		other := l.threads.byUpdate.Front()
		if other.Value.(*thread) == t {
			other = other.Next()
		}
		if other == nil {
			l.cutTurnsLocked(t, l.threads.bytes-limit, 0)
			return
		}
		l.removeThreadLocked(other.Value.(*thread))
	}
}

// oldestIdleLocked returns the thread that was updated longest ago among those without an active run,
// other than t; nil if there is none. Threads of owners above an equal share of limit come first, as far
// as they are among the first maxThreadsCompared.
func (l *Log) oldestIdleLocked(t *thread, limit int64) (oldest *thread) {
	share, compared := limit/int64(max(len(l.threads.usage), 1)), 0
	isIdle := func(owner event.Owner, id string) bool {
		e, _ := l.threads.index.Get(owner, id)
		return e.Active == ""
	}
	if l.threads.usage[t.key.owner] > share {
		for e := range l.threads.index.Oldest(t.key.owner) {
			if e.Active == "" && e.ID != t.key.id {
				return l.threads.byKey[threadKey{e.Owner, e.ID}]
			}
		}
	}
	for place := l.threads.byUpdate.Front(); place != nil; place = place.Next() {
		other := place.Value.(*thread)
		if other == t || !isIdle(other.key.owner, other.key.id) {
			continue
		}
		if l.threads.usage[other.key.owner] > share {
			return other
		}
		if oldest == nil {
			oldest = other
		}
		if compared++; compared == maxThreadsCompared {
			break
		}
	}
	return oldest
}

// cutTurnsLocked drops the oldest turns of t until want bytes are free, but not the newest keep of them.
func (l *Log) cutTurnsLocked(t *thread, want int64, keep int) {
	n, freed := 0, int64(0)
	for ; freed < want && n < len(t.turns)-keep; n++ {
		freed += turnSize(t.turns[n])
	}
	if n == 0 {
		return
	}
	t.turns = slices.Clone(t.turns[n:]) // a subslice would keep the dropped turns in memory
	l.countThreadBytesLocked(t, -freed)
}

// dropEndedAboveLimit drops runs that have ended while the log exceeds its limit. Most calls do not lock.
func (l *Log) dropEndedAboveLimit() {
	if l.bytes.Load() <= l.maxBytes {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.bytes.Load() > l.maxBytes && len(l.ended) > 0 {
		l.dropLocked(l.ended[0])
	}
}
