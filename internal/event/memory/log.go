// Package memory implements event.Log in the memory of one process. The log's contents are lost when the process ends.
// It is used if EVENTS_URL is unset.
//
//	log := memory.New(memory.Options{Retention: time.Hour, MaxBytes: 256 << 20})
//	id := log.NewID()
//	if err := log.Create(ctx, event.Run{ID: id, Owner: owner}); err != nil {
//		return err
//	}
//	seq, err := log.Append(ctx, id, event.Start{Question: "?"})
//	page, err := log.After(ctx, id, 0)
//	for _, e := range page.Events {
//		send(e.AppendJSON(nil))
//	}
//
//	defer log.Close()
//
// Every method may be called concurrently. All methods but Claim return at once. The package starts no goroutines,
// except that a timer drops the runs whose retention has passed; Close stops it. An event is readable as soon as Append
// returns. Pages share memory with the log. When the log drops an event, a page that contains it stays valid.
//
// A run is stored as the JSON of its events, in blocks of memory that are only appended to and never moved, with an
// index of where each event ends. Readers get slices of these blocks. For the newest events of active runs and of the
// runs that ended last, the log also keeps the bodies that the writer passed in (the tail), so that readers that follow
// a run need not decode JSON. For older events, the log decodes the JSON. The log counts the capacity of the blocks and
// their indexes, and estimates the rest, including the tails.
//
// The log keeps a run for Retention after its terminal event. When all runs together exceed MaxBytes, it drops the runs
// that ended first: those of an owner above an equal share if they ended more than five seconds ago, and otherwise
// those of all owners. For a dropped run it remembers the owner (a tombstone), so that the owner gets ErrGone and
// everyone else gets ErrNotFound.
//
// Threads are kept for Retention after their last update, in at most a quarter of MaxBytes. A full log drops the
// threads that were not updated for longest, with the same rule about shares.
package memory

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/memory/threads"
	"answerd/internal/values"
)

// A run id consists of idPrefix and idLength characters of five random bits each. The last instanceIDLength characters
// are the same in all ids of one log.
const (
	idPrefix         = "run_"
	idLength         = 26
	instanceIDLength = 6
)

// Options limits a Log. The zero value uses the defaults.
type Options struct {
	// Retention is how long a run is kept after its last event, and a thread after its last update; 0 means
	// event.DefaultRetention.
	Retention time.Duration
	// MaxBytes limits the total size of all runs (events, inputs, notes and results) and threads; 0 means
	// event.DefaultMaxBytes. Threads may use a quarter of it, and those that were not updated for longest are dropped
	// first. A full log drops runs that have ended, in the order in which they ended, those of owners above an equal
	// share before others. If no run has ended, the run that appends loses its oldest results and then its oldest
	// events.
	MaxBytes int64
}

// Log implements event.Log in the memory of this process.
type Log struct {
	instanceID string
	retention  time.Duration
	maxBytes   int64
	bytes      atomic.Int64 // total size of all runs and threads

	// runs holds a *run for every run that was not dropped, by id. Every append and every read looks up its run here. A
	// sync.Map needs no lock for that. With a lock, even a shared one, all cores would contend for its cache line.
	runs sync.Map

	mu          sync.RWMutex                // guards the fields below and additions to runs; locked before a run's own mutex
	ended       []*run                      // the runs that have ended, in that order
	usage       map[event.Owner]*ownerUsage // of the owners that have runs
	recent      []*run                      // the runs that ended last and still have a tail
	recentBytes int64                       // total size of the tails of recent
	tombstones  tombstones                  // of the runs that were dropped
	keys        map[ownedKey]*run
	created     int64 // number of runs ever created
	lastDropped time.Time

	expiry expiryTimer
	queue  jobQueue

	*threads.Store
	values.Memory
}

// threadsShare is the part of MaxBytes that threads may use: one in threadsShare bytes.
const threadsShare = 4

var _ event.Log = (*Log)(nil)

// ownedKey is an idempotency key together with its owner.
type ownedKey struct {
	owner event.Owner
	key   string
}

// New returns an empty log.
func New(opts Options) *Log {
	if opts.Retention <= 0 {
		opts.Retention = event.DefaultRetention
	}
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = event.DefaultMaxBytes
	}
	l := &Log{
		instanceID: strings.ToLower(rand.Text()[:instanceIDLength]),
		retention:  opts.Retention,
		maxBytes:   opts.MaxBytes,
		keys:       make(map[ownedKey]*run),
		usage:      make(map[event.Owner]*ownerUsage),
		tombstones: newTombstones(opts.MaxBytes),
	}
	l.Store = threads.New(threads.Options{Retention: opts.Retention, MaxBytes: opts.MaxBytes / threadsShare, Total: &l.bytes})
	return l
}

// NewID implements event.Log. The id ends with l.instanceID, so that isForeignID recognizes the ids of other processes.
func (l *Log) NewID() string {
	return idPrefix + strings.ToLower(rand.Text()[:idLength-instanceIDLength]) + l.instanceID
}

// isForeignID reports whether id is a well-formed run id that another process made.
func (l *Log) isForeignID(id string) bool {
	random, ok := strings.CutPrefix(id, idPrefix)
	isWellFormed := ok && event.ValidID(id) && len(random) == idLength && random == strings.ToLower(random)
	return isWellFormed && !strings.HasSuffix(random, l.instanceID)
}

// Create implements event.Log. It also drops the runs whose retention has passed. The id of a dropped run cannot be
// used again while the log has its tombstone.
func (l *Log) Create(_ context.Context, record event.Run) error {
	if !event.ValidID(record.ID) {
		return event.ErrNotFound
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.dropExpiredLocked(now)
	if _, ok := l.runs.Load(record.ID); ok {
		return event.ErrExists
	}
	if _, ok := l.tombstones.ownerOf(record.ID); ok {
		return event.ErrExists
	}
	record.Last = event.Event{}
	added := &run{
		number:     l.created + 1,
		began:      now,
		record:     record,
		status:     event.StatusRunning,
		otherBytes: recordSize(record),
	}
	if record.Key != "" {
		key := ownedKey{record.Owner, record.Key}
		if other := l.keys[key]; other != nil {
			return &event.KeyError{Run: other.record.ID, Same: other.record.Fingerprint == record.Fingerprint}
		}
		l.keys[key] = added
	}
	l.created++
	added.usage = l.usageLocked(record.Owner)
	added.usage.runs++
	added.record.Owner = added.usage.owner // the runs of an owner share the owner's strings
	added.usage.count(added.countLocked()) // added.mu is not needed, because other goroutines cannot find the run yet
	l.runs.Store(record.ID, added)
	return nil
}

// usageLocked returns an owner's usage, and adds it if the owner has no runs yet. The caller holds l.mu.
func (l *Log) usageLocked(owner event.Owner) *ownerUsage {
	usage := l.usage[owner]
	if usage == nil {
		usage = &ownerUsage{owner: owner, total: &l.bytes}
		l.usage[owner] = usage
	}
	return usage
}

// findRun returns the run with the given id, or event.ErrGone, event.ErrLost or event.ErrNotFound.
func (l *Log) findRun(id string) (*run, error) {
	if r, ok := l.runs.Load(id); ok {
		return r.(*run), nil
	}
	if _, dropped := l.ownerOfDropped(id); dropped {
		return nil, event.ErrGone
	}
	if l.isForeignID(id) {
		return nil, event.ErrLost
	}
	return nil, event.ErrNotFound
}

// Append implements event.Log. If the log then exceeds its size limit, Append drops runs that have ended, or else the
// oldest data of this run (addBytes).
func (l *Log) Append(_ context.Context, id string, b event.Body) (int64, error) {
	r, err := l.findRun(id)
	if err != nil {
		return 0, err
	}
	e, grown, err := r.appendEvent(b)
	if err != nil {
		return 0, err
	}
	if e.Terminal() {
		l.addEnded(r, grown)
	} else {
		l.addBytes(r, grown)
	}
	return e.Seq, nil
}

// AppendAsync implements event.Log. It stores the event at once, like Append.
func (l *Log) AppendAsync(ctx context.Context, id string, b event.Body) (int64, error) {
	return l.Append(ctx, id, b)
}

// Flush implements event.Log. It only checks that the run exists, because all events are stored at once.
func (l *Log) Flush(_ context.Context, id string) error {
	_, err := l.findRun(id)
	return err
}

// After implements event.Log. It decodes events that are no longer in the run's tail without holding a lock.
func (l *Log) After(_ context.Context, id string, seq int64) (event.Page, error) {
	r, err := l.findRun(id)
	if err != nil {
		return event.Page{}, err
	}
	page, undecoded, err := r.readPage(seq, l.retention)
	if err != nil {
		return event.Page{}, err
	}
	return r.decodePage(page, undecoded)
}

// Settled implements event.Log. If the run has already settled, the returned channel is closed.
func (l *Log) Settled(_ context.Context, id string) (<-chan struct{}, error) {
	r, err := l.findRun(id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.expiredLocked(l.retention) {
		return nil, event.ErrGone
	}
	settled := waitChannel(&r.settled)
	if r.status != event.StatusRunning {
		wakeWaiters(&r.settled) // closes settled
	}
	return settled, nil
}

// Run implements event.Log. If the run was dropped or its retention has passed, Run returns the run's id and owner with
// event.ErrGone.
func (l *Log) Run(_ context.Context, id string) (event.Run, error) {
	r, err := l.findRun(id)
	if err != nil {
		if owner, dropped := l.ownerOfDropped(id); dropped {
			return event.Run{ID: id, Owner: owner}, event.ErrGone
		}
		return event.Run{}, err
	}
	snapshot, kept, err := r.snapshot(l.retention)
	if !kept {
		return event.Run{ID: id, Owner: snapshot.Owner}, event.ErrGone
	}
	return snapshot, err
}

// Now implements event.Log. It returns this machine's time, because only one process uses the log.
func (l *Log) Now() time.Time { return time.Now() }

// Ready implements event.Log. It returns nil, because a log in memory can always be used.
func (l *Log) Ready(context.Context) error { return nil }

// HasRemoteReader implements event.Log. It returns false, because no other process can read this log.
func (l *Log) HasRemoteReader(context.Context, string) bool { return false }

// SaveResult implements event.Log. A full log may later drop the result, and Result then returns event.ErrGone.
func (l *Log) SaveResult(_ context.Context, id, call string, result []byte) error {
	if len(result) > event.MaxResult {
		return event.ErrTooLarge
	}
	if result == nil {
		result = []byte{} // nil marks a result that was dropped
	}
	return l.changeRun(id, func(r *run) error {
		r.otherBytes += r.results.setResult(call, result)
		return nil
	})
}

// changeRun calls change, which may add data to the run, while it holds the run's mutex. It then counts the bytes that
// the run has grown (addBytes). Instead of calling change, it returns event.ErrEnded if the run has ended, and
// event.ErrGone if the run is no longer kept.
func (l *Log) changeRun(id string, change func(*run) error) error {
	r, err := l.findRun(id)
	if err != nil {
		return err
	}
	grown, err := r.applyChange(l.retention, change)
	if err != nil {
		return err
	}
	l.addBytes(r, grown)
	return nil
}

// Result implements event.Log. It returns event.ErrGone for a result that was dropped to free memory.
func (l *Log) Result(_ context.Context, id, call string) ([]byte, error) {
	r, err := l.findRun(id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.expiredLocked(l.retention) {
		return nil, event.ErrGone
	}
	result, known := r.results.byCall[call]
	switch {
	case !known:
		return nil, event.ErrNotFound
	case result == nil:
		return nil, event.ErrGone
	default:
		return result, nil
	}
}

// CreateJob implements event.Jobs. This process has then claimed the job. If the run already has a job, CreateJob
// returns event.ErrFenced.
func (l *Log) CreateJob(_ context.Context, id string, request []byte) (event.Job, error) {
	if len(request) > event.MaxResult {
		return nil, event.ErrTooLarge
	}
	j := &job{queue: &l.queue, request: request, claimed: true, attempt: 1}
	err := l.changeRun(id, func(r *run) error {
		if r.job != nil {
			return event.ErrFenced
		}
		j.run = r
		r.job = j
		r.otherBytes += j.size()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return j, nil
}

// Claim implements event.Jobs. It waits until the queue has a job whose run has not ended, or until ctx ends.
func (l *Log) Claim(ctx context.Context) (event.Job, error) {
	for {
		j, more := l.queue.removeFirst()
		if j != nil {
			if j.markClaimed() {
				return j, nil
			}
			continue // the run has ended or was dropped since its job was added to the queue
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
