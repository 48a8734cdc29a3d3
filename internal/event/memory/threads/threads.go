// Package threads keeps the threads of an event log in the memory of one process, with a size limit.
//
//	store := threads.New(threads.Options{Retention: time.Hour, MaxBytes: 64 << 20, Total: &total})
//	begun, err := store.BeginTurn(ctx, owner, "thr_1", "run_1", "default", "A title")
//	err = store.EndTurn(ctx, owner, "thr_1", "run_1", data)
//
// A thread is kept for Retention after its last update. When all threads together exceed MaxBytes, the Store removes
// the thread that was not updated for longest, if possible one of an owner who uses more than an equal share of the
// space. Every method may be called concurrently and returns at once.
package threads

import (
	"cmp"
	"container/list"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/threadindex"
)

const (
	// threadOverhead estimates how many bytes a thread needs in addition to its texts and turns.
	threadOverhead = 1 << 10
	// turnOverhead estimates how many bytes a turn needs in addition to its data.
	turnOverhead = 128
	// maxUnfinished is the largest length of thread.unfinished.
	maxUnfinished = 16
	// maxThreadsCompared is how many threads oldestIdleLocked compares to find one of an owner above an equal share.
	maxThreadsCompared = 64
)

// Options configures a Store.
type Options struct {
	Retention time.Duration // how long a thread is kept after its last update
	MaxBytes  int64         // limit of the estimated size of all threads
	Total     *atomic.Int64 // size of the whole log, to which the Store adds the size of its threads
}

// Store implements event.Threads. Methods whose names end in Locked require that the caller holds mu.
type Store struct {
	options Options

	mu         sync.Mutex            // guards the fields below
	index      threadindex.Index     // the heads of the threads
	byKey      map[threadKey]*thread // the turns of the same threads
	idle, busy list.List             // *thread values without and with an active run, the least recently updated first
	updates    uint64                // number of updates so far, which is the Order of the latest one
	bytes      int64                 // estimated size of all threads
	usage      map[event.Owner]int64 // estimated size of the threads of each owner
}

var _ event.Threads = (*Store)(nil)

// New returns a Store without threads.
func New(o Options) *Store {
	return &Store{options: o, byKey: make(map[threadKey]*thread), usage: make(map[event.Owner]int64)}
}

// threadKey identifies a thread.
type threadKey struct {
	owner event.Owner
	id    string
}

// thread holds the turns of a thread. The thread's head is its entry in the index.
type thread struct {
	key        threadKey
	turns      []event.Turn  // numbered consecutively; pages share parts of the slice
	lastNumber int64         // number of the last turn added, even if it was dropped
	unfinished []string      // runs that began a turn but have not added it, newest last; includes the active run
	bytes      int64         // estimated size of the thread
	list       *list.List    // &Store.idle or &Store.busy
	place      *list.Element // position in list
}

// turnSize estimates the size of a turn in memory, in bytes.
func turnSize(t event.Turn) int64 { return int64(cap(t.Data)) + turnOverhead }

// findLocked returns a thread and its entry in the index. It returns event.ErrNotFound if the thread does not exist or
// its retention has passed.
func (s *Store) findLocked(owner event.Owner, id string) (*thread, threadindex.Entry, error) {
	e, ok := s.index.Get(owner, id)
	if !ok || e.Expired(time.Now(), s.options.Retention) {
		return nil, e, event.ErrNotFound
	}
	return s.byKey[threadKey{owner, id}], e, nil
}

// BeginTurn implements event.Threads. It also removes all threads whose retention has passed.
func (s *Store) BeginTurn(_ context.Context, owner event.Owner, id, run, agent, title string) (event.Thread, error) {
	if !event.ValidThreadID(id) || !event.ValidID(run) {
		return event.Thread{}, event.ErrNotFound
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeExpiredLocked()
	return s.beginLocked(owner, id, run, agent, title)
}

// beginLocked makes run the active run of a thread, and adds the thread if the owner has none with that id. It returns
// a *event.BusyError if another run is active, and changes nothing if run is already active.
func (s *Store) beginLocked(owner event.Owner, id, run, agent, title string) (event.Thread, error) {
	t, entry, err := s.findLocked(owner, id)
	switch {
	case err != nil:
		t, entry = s.addThreadLocked(owner, strings.Clone(id), strings.Clone(event.CutTitle(title)))
	case entry.Active == run:
		return entry.Thread, nil
	case entry.Active != "":
		return event.Thread{}, &event.BusyError{Run: entry.Active}
	}
	t.unfinished = append(slices.DeleteFunc(t.unfinished, func(r string) bool { return r == run }), run)
	if excess := len(t.unfinished) - maxUnfinished; excess > 0 {
		t.unfinished = slices.Delete(t.unfinished, 0, excess)
	}
	entry.Active, entry.Agent = run, agent
	return s.updateLocked(t, entry, 0), nil
}

// addThreadLocked adds a new thread to s.byKey and s.busy, and counts its size. It returns the thread, and the entry
// that the caller must put into the index.
func (s *Store) addThreadLocked(owner event.Owner, id, title string) (*thread, threadindex.Entry) {
	t := &thread{key: threadKey{owner, id}, list: &s.busy}
	t.place = t.list.PushBack(t)
	s.byKey[t.key] = t
	s.countThreadBytesLocked(t, threadOverhead+int64(len(id)+event.MaxTitle))
	return t, threadindex.Entry{Thread: event.Thread{ID: id, Owner: owner, Title: title, Created: time.Now()}}
}

// updateLocked stores e, the changed entry of t, in the index as the latest update, and moves t to the end of s.busy or
// s.idle. grown is how many bytes t has grown. If the threads now exceed their limit, updateLocked removes other
// threads, or old turns of t. It returns the thread as stored.
func (s *Store) updateLocked(t *thread, e threadindex.Entry, grown int64) event.Thread {
	s.updates++
	e.Order, e.Updated = s.updates, time.Now()
	s.index.Put(e)
	t.list.Remove(t.place)
	t.list = &s.idle
	if e.Active != "" {
		t.list = &s.busy
	}
	t.place = t.list.PushBack(t)
	s.countThreadBytesLocked(t, grown)
	s.makeSpaceLocked(t)
	return e.Thread
}

// EndTurn implements event.Threads. The Store keeps data itself, not a copy.
func (s *Store) EndTurn(_ context.Context, owner event.Owner, id, run string, data []byte) error {
	if len(data) > event.MaxTurn {
		return event.ErrTooLarge
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endLocked(owner, id, run, data)
}

// endLocked ends run's turn, and adds data to the thread as that turn. If data is nil, run only stops being active, and
// may still add its turn later. endLocked does nothing if run has already added its turn, and returns event.ErrNotFound
// if run never began one.
func (s *Store) endLocked(owner event.Owner, id, run string, data []byte) error {
	t, entry, err := s.findLocked(owner, id)
	if err != nil {
		return err
	}
	began := slices.Contains(t.unfinished, run)
	switch {
	case !began && slices.ContainsFunc(t.turns, func(t event.Turn) bool { return t.Run == run }): // this is a second call
		return nil
	case !began:
		return event.ErrNotFound
	case data == nil && entry.Active != run: // run is already inactive
		return nil
	}
	if entry.Active == run {
		entry.Active = ""
	}
	if data == nil {
		s.updateLocked(t, entry, 0)
		return nil
	}
	t.unfinished = slices.DeleteFunc(t.unfinished, func(r string) bool { return r == run })
	t.lastNumber++
	turn := event.Turn{Run: run, Number: t.lastNumber, Time: time.Now(), Data: data}
	t.turns = append(t.turns, turn)
	entry.Turns, entry.LastRun = entry.Turns+1, run
	s.updateLocked(t, entry, turnSize(turn))
	return nil
}

// Thread implements event.Threads.
func (s *Store) Thread(_ context.Context, owner event.Owner, id string) (event.Thread, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, e, err := s.findLocked(owner, id)
	if err != nil {
		return event.Thread{}, err
	}
	return e.Thread, nil
}

// Turns implements event.Threads. The page shares the thread's slice of turns instead of copying them.
func (s *Store) Turns(_ context.Context, owner event.Owner, id string, before int64, limit, maxBytes int) (page event.TurnPage, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, _, err := s.findLocked(owner, id)
	if err != nil {
		return page, err
	}
	end := len(t.turns) // the page is t.turns[first:end]
	if before > 0 {
		end, _ = slices.BinarySearchFunc(t.turns, before, func(t event.Turn, n int64) int { return cmp.Compare(t.Number, n) })
	}
	first, size := end, 0
	for first > 0 && end-first < max(limit, 1) {
		size += len(t.turns[first-1].Data)
		if size > maxBytes && first < end {
			break
		}
		first--
	}
	page.Turns = t.turns[first:end:end] // capped, so that the caller's append copies the turns
	if first > 0 {
		page.Before = t.turns[first].Number
	}
	return page, nil
}

// ListThreads implements event.Threads.
func (s *Store) ListThreads(_ context.Context, f event.ThreadFilter) (event.ThreadPage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	return s.index.Page(f, func(t event.Thread) bool { return !t.Expired(now, s.options.Retention) })
}

// RenameThread implements event.Threads. It does not count as an update, so the thread keeps its place in the list.
func (s *Store) RenameThread(_ context.Context, owner event.Owner, id, title string) (event.Thread, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, e, err := s.findLocked(owner, id)
	if err != nil {
		return event.Thread{}, err
	}
	e.Title = strings.Clone(event.CutTitle(title))
	s.index.Put(e)
	return e.Thread, nil
}

// DeleteThread implements event.Threads.
func (s *Store) DeleteThread(_ context.Context, owner event.Owner, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, _, err := s.findLocked(owner, id)
	if err != nil {
		return err
	}
	s.removeThreadLocked(t)
	return nil
}

// removeThreadLocked removes a thread with all of its turns.
func (s *Store) removeThreadLocked(t *thread) {
	s.countThreadBytesLocked(t, -t.bytes)
	s.index.Remove(t.key.owner, t.key.id)
	t.list.Remove(t.place)
	delete(s.byKey, t.key)
}

// countThreadBytesLocked adds n, which may be negative, to the sizes of t, of its owner's threads, of the store and of
// the log.
func (s *Store) countThreadBytesLocked(t *thread, n int64) {
	t.bytes += n
	s.bytes += n
	s.options.Total.Add(n)
	s.usage[t.key.owner] += n
	if s.usage[t.key.owner] == 0 {
		delete(s.usage, t.key.owner)
	}
}

// removeExpiredLocked removes the threads whose retention has passed.
func (s *Store) removeExpiredLocked() {
	now := time.Now()
	for _, threads := range []*list.List{&s.idle, &s.busy} {
		for place := threads.Front(); place != nil; place = threads.Front() {
			t := place.Value.(*thread)
			if e, _ := s.index.Get(t.key.owner, t.key.id); !e.Expired(now, s.options.Retention) {
				break // the next threads were updated later
			}
			s.removeThreadLocked(t)
		}
	}
}

// makeSpaceLocked removes data until the threads use at most MaxBytes, in this order: other threads without an active
// run, all turns of t but the newest, other threads with an active run, and all turns of t. It keeps t itself, which
// was just updated.
func (s *Store) makeSpaceLocked(t *thread) {
	for limit := s.options.MaxBytes; s.bytes > limit; {
		if idle := s.oldestIdleLocked(t, limit); idle != nil {
			s.removeThreadLocked(idle)
			continue
		}
		// Cut more than needed, because each call copies the remaining turns.
		s.cutTurnsLocked(t, s.bytes-limit+limit/16, 1)
		if s.bytes <= limit {
			return
		}
		other := s.busy.Front() // no other idle thread is left
		if other != nil && other.Value.(*thread) == t {
			other = other.Next()
		}
		if other == nil {
			s.cutTurnsLocked(t, s.bytes-limit, 0)
			return
		}
		s.removeThreadLocked(other.Value.(*thread))
	}
}

// oldestIdleLocked returns the thread to remove next: a thread other than t without an active run, or nil if none
// exists. It is the least recently updated thread in the first of these groups that is not empty:
//  1. threads of the owner of t, if that owner uses more than an equal share of limit,
//  2. threads of owners who use more than an equal share, among the maxThreadsCompared oldest of all threads,
//  3. all threads.
func (s *Store) oldestIdleLocked(t *thread, limit int64) (oldest *thread) {
	share := limit / int64(max(len(s.usage), 1))
	if s.usage[t.key.owner] > share {
		for e := range s.index.Oldest(t.key.owner) {
			if e.Active == "" && e.ID != t.key.id {
				return s.byKey[threadKey{e.Owner, e.ID}]
			}
		}
	}
	place := s.idle.Front()
	for compared := 0; place != nil && compared < maxThreadsCompared; place = place.Next() {
		other := place.Value.(*thread)
		if other == t {
			continue
		}
		if s.usage[other.key.owner] > share {
			return other
		}
		if oldest == nil {
			oldest = other
		}
		compared++
	}
	return oldest
}

// cutTurnsLocked drops the oldest turns of a thread until at least want bytes are freed. It always keeps the newest
// keep turns, so it may free less.
func (s *Store) cutTurnsLocked(t *thread, want int64, keep int) {
	dropped, freed := 0, int64(0)
	for ; freed < want && dropped < len(t.turns)-keep; dropped++ {
		freed += turnSize(t.turns[dropped])
	}
	if dropped == 0 {
		return
	}
	t.turns = slices.Clone(t.turns[dropped:]) // a subslice would keep the dropped turns in memory
	s.countThreadBytesLocked(t, -freed)
}
