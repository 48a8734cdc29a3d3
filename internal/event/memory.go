package event

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of a Memory log whose options leave them out.
const (
	DefaultRetention = time.Hour
	DefaultMaxBytes  = 256 << 20
)

// eventOverhead is what an event costs besides its text, as an input, a note or a result does.
const eventOverhead = 128

// size returns about what e costs: the text of most is there twice, as JSON and in the body,
// and that of a delta once.
func (e Event) size() int64 {
	if e.JSON == nil {
		return int64(DeltaSize(e.Body)) + eventOverhead
	}
	return 2*int64(len(e.JSON)) + eventOverhead
}

// runOverhead is what a run costs besides its events.
const runOverhead = 1 << 10

// pageLen bounds the events of a Page: whoever reads a long run does other things in between.
const pageLen = 64

// MemoryOptions bounds a Memory log. The zero value has the defaults.
type MemoryOptions struct {
	// Retention is how long a run is kept after its last event.
	Retention time.Duration
	// MaxBytes bounds the events and results of all runs together. The run that ended
	// first goes first; when none has ended, the run that appends gives up its own
	// results, and then its past.
	MaxBytes int64
}

// Memory is a Log that lives and dies with the process.
type Memory struct {
	mark      string // what the ids that this log makes end with
	retention time.Duration
	maxBytes  int64
	bytes     atomic.Int64 // of all events and results kept

	// runs are *memoryRun by id, until they are gone. Every append and every reader looks
	// here: a lock, even one for readers, is a line of memory that all cores fight for.
	runs sync.Map

	mu       sync.RWMutex // guards the fields below, and adding to runs; taken before a run's own mutex
	ended    []*memoryRun // by time of ending, the oldest first
	gone     tombstones   // of runs that are no longer in runs
	keys     map[ownedKey]*memoryRun
	made     int64 // runs, ever
	relieved time.Time

	jobs memoryJobs
}

type ownedKey struct {
	owner Owner
	key   string
}

type memoryRun struct {
	number int64 // of the run, in the order of creation
	began  time.Time

	mu     sync.Mutex // guards the fields below
	run    Run        // without Last, which is the newest of the events
	events []Event    // those that are kept, the newest one always; readers hold parts of it
	bytes  int64      // of events, results and inputs
	kept   keptResults
	inbox  memoryInbox
	notes  []Note
	job    *memoryJob // nil for a run that was never held, or is done
	ended  time.Time  // when the terminal event came; zero before
	gone   bool       // buried: only run is left
	more   chan struct{}
}

// NewMemory returns an empty log.
func NewMemory(o MemoryOptions) *Memory {
	if o.Retention <= 0 {
		o.Retention = DefaultRetention
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	return &Memory{mark: strings.ToLower(rand.Text()[:markLength]), retention: o.Retention, maxBytes: o.MaxBytes, keys: make(map[ownedKey]*memoryRun)}
}

// Create implements Log. It is also where runs past their retention go: a log to
// which nothing is added needs no room.
func (m *Memory) Create(_ context.Context, r Run) error {
	if !ValidID(r.ID) {
		return ErrNotFound
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.expireLocked(now)
	if _, ok := m.runs.Load(r.ID); ok {
		return ErrExists
	}
	if _, ok := m.gone.owner(r.ID); ok {
		return ErrExists
	}
	r.Last = Event{}
	made := &memoryRun{number: m.made + 1, began: now, run: r, bytes: int64(len(r.Request)) + runOverhead}
	if key := (ownedKey{r.Owner, r.Key}); r.Key != "" {
		if other := m.keys[key]; other != nil {
			return &KeyError{Run: other.run.ID, Same: other.run.Fingerprint == r.Fingerprint}
		}
		m.keys[key] = made
	}
	m.made++
	m.runs.Store(r.ID, made)
	m.bytes.Add(made.bytes)
	return nil
}

// Append implements Log.
func (m *Memory) Append(_ context.Context, run string, b Body) (int64, error) {
	r, err := m.run(run)
	if err != nil {
		return 0, err
	}
	seq, size, err := r.append(b)
	if err != nil {
		return 0, err
	}
	m.account(r, size, terminal(b))
	return seq, nil
}

func (r *memoryRun) append(b Body) (seq, size int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.openLocked(); err != nil {
		return 0, 0, err
	}
	// Counted from the beginning, time does not go back within a run, but a machine that was
	// asleep goes unnoticed.
	now := r.began.Add(time.Since(r.began))
	e := Event{RunID: r.run.ID, Seq: r.newestLocked().Seq + 1, Time: now.UnixMilli(), Body: b}
	if DeltaSize(b) == 0 { // readers encode a delta
		if e, err = Encode(e.RunID, e.Seq, e.Time, b); err != nil {
			return 0, 0, err
		}
	}
	r.events = append(r.events, e)
	if e.Terminal() {
		r.ended = now
	}
	size = e.size()
	r.bytes += size
	wake(&r.more)
	return e.Seq, size, nil
}

// openLocked says why nothing may be appended, nil if it may.
func (r *memoryRun) openLocked() error {
	switch {
	case r.gone:
		return ErrGone
	case !r.ended.IsZero():
		return ErrEnded
	case r.job != nil && !r.job.held:
		return ErrFenced
	}
	return nil
}

// account adds an append to the books and makes room where it went over. Most
// appends do neither and take no lock that other runs want.
func (m *Memory) account(r *memoryRun, size int64, ended bool) {
	if m.bytes.Add(size) <= m.maxBytes && !ended {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if ended {
		m.ended = append(m.ended, r)
	}
	for m.bytes.Load() > m.maxBytes && len(m.ended) > 0 && m.ended[0] != r {
		m.buryLocked(m.ended[0])
	}
	// While others have ended there is room, whatever was appended since the loop found some.
	if over := m.bytes.Load() - m.maxBytes; over > 0 && (len(m.ended) == 0 || m.ended[0] == r) {
		// Some more than needed, so that a long run does not copy its events at
		// every append.
		m.bytes.Add(-r.trim(over + m.maxBytes/16))
	}
}

// trim drops the oldest results of r, and then its oldest events, at least want bytes
// of them or all but the newest event, and returns how many bytes went.
func (r *memoryRun) trim(want int64) (freed int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if freed = r.kept.drop(want); freed >= want {
		r.bytes -= freed
		return freed
	}
	n := 0
	for ; freed < want && n < len(r.events)-1; n++ {
		freed += r.events[n].size()
	}
	r.events = slices.Clone(r.events[n:]) // in place, they would stay in memory
	r.bytes -= freed
	return freed
}

// relieveEvery is how long a relief is given time to be felt: until something is collected.
const relieveEvery = 2 * time.Second

// DropEndedRuns gives up a quarter of the runs that have ended, those that ended first, at most
// every two seconds. It is for a process short of memory: runs that begin are worth more
// than runs that may be read again, and without it the log would keep them away for the
// whole of its retention.
func (m *Memory) DropEndedRuns() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := time.Now(); now.Sub(m.relieved) >= relieveEvery {
		m.relieved = now
		for n := (len(m.ended) + 3) / 4; n > 0; n-- {
			m.buryLocked(m.ended[0])
		}
	}
}

// expireLocked buries the runs that ended longer than the retention ago.
func (m *Memory) expireLocked(now time.Time) {
	for len(m.ended) > 0 && now.Sub(m.ended[0].endedAt()) >= m.retention {
		m.buryLocked(m.ended[0])
	}
}

func (r *memoryRun) endedAt() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// wake closes a channel that somebody waits for; the next one who waits makes another.
func wake(more *chan struct{}) {
	if *more != nil {
		close(*more)
		*more = nil
	}
}

// After implements Log.
func (m *Memory) After(_ context.Context, run string, seq int64) (Page, error) {
	r, err := m.run(run)
	if err != nil {
		return Page{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	behind := r.newestLocked().Seq - seq // so many events follow, kept or not
	switch {
	case m.expired(r):
		return Page{}, ErrGone
	case seq < 0 || behind < 0:
		return Page{}, ErrInvalidPosition
	case behind > int64(len(r.events)):
		return Page{}, ErrGone
	}
	rest := r.events[len(r.events)-int(behind):]
	n := min(len(rest), pageLen)
	cut := n < len(rest)
	p := Page{Events: rest[:n:n], Ended: !r.ended.IsZero() && !cut, HasNext: cut}
	if !p.Ended && n == 0 {
		if r.more == nil {
			r.more = make(chan struct{})
		}
		p.More = r.more
	}
	return p, nil
}

// Run implements Log.
func (m *Memory) Run(_ context.Context, id string) (Run, error) {
	r, err := m.run(id)
	if err != nil {
		owner, gone := m.buried(id)
		if gone {
			return Run{ID: id, Owner: owner}, ErrGone
		}
		return Run{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.expired(r) {
		return Run{ID: id, Owner: r.run.Owner}, ErrGone
	}
	return r.recordLocked(), nil
}

// recordLocked is what is known of the run, its newest event included.
func (r *memoryRun) recordLocked() Run {
	record := r.run
	record.Last = r.newestLocked()
	return record
}

// newestLocked returns the newest event, whose number is 0 before there is one.
func (r *memoryRun) newestLocked() (newest Event) {
	if n := len(r.events); n > 0 {
		newest = r.events[n-1]
	}
	return newest
}

// Ready implements Log.
func (m *Memory) Ready(context.Context) error { return nil }

// HasRemoteReader implements Log: there is no other process.
func (m *Memory) HasRemoteReader(context.Context, string) bool { return false }

// expired tells of a run whose time is over, buried already or not. r.mu is held.
func (m *Memory) expired(r *memoryRun) bool {
	return r.gone || !r.ended.IsZero() && time.Since(r.ended) >= m.retention
}

func (m *Memory) run(id string) (*memoryRun, error) {
	if r, ok := m.runs.Load(id); ok {
		return r.(*memoryRun), nil
	}
	if _, gone := m.buried(id); gone {
		return nil, ErrGone
	}
	if m.isForeign(id) {
		return nil, ErrLost
	}
	return nil, ErrNotFound
}
