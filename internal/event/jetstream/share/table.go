// Package share computes how many bytes each owner's runs use in a log on JetStream. When the log is full, it deletes
// runs of the owners who use more than an equal share.
//
//	table := share.New(share.Source{Conn: conn, JetStream: stream, Stream: "RUNS", Run: runOf, Entries: readEntries})
//	if err := table.Follow(ctx, used); err != nil {
//		return err
//	}
//	outcome, err := table.Evict(ctx, share.Eviction{Limit: limit, Ended: endOf, Delete: deleteRun, Enough: hasSpace})
//
// A Table reads the sizes of messages from the stream, without the payloads, and reads each message only once: Follow
// continues where the last call stopped. A new Table reads the whole stream. So all processes that share a log compute
// the same sizes.
//
// The methods may be called concurrently. They are executed one at a time.
package share

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
)

// Source says what a Table reads. All fields are required.
type Source struct {
	Conn      *nats.Conn   // receives the messages of the consumer
	JetStream js.JetStream // creates and removes the consumer
	Stream    string       // the name of the stream that has the messages of runs
	// Run returns the run's id in the subject of a message, and whether the message is an event.
	Run func(subject string) (id string, isEvent bool)
	// Entries returns index entries at position from or later, in order, and whether the index has more.
	Entries func(ctx context.Context, from uint64) (entries []Entry, more bool, err error)
}

// Entry is a run's entry in the index.
type Entry struct {
	Pos   uint64
	ID    string // the run's id
	Owner string // a token that represents the owner
}

// maxRuns is the largest number of runs whose sizes a Table keeps, at about 200 bytes each. If a log has more runs, the
// Table keeps the oldest, which an eviction would delete first.
const maxRuns = 1 << 16

// Table holds the sizes of runs. Use New to create one.
type Table struct {
	source Source

	mu        sync.Mutex        // held by every method; guards the fields below
	runs      map[string]*run   // by id
	sized     int               // number of runs that have messages
	owners    map[string]*owner // by token; only those with runs
	total     int64             // bytes of all runs
	built     time.Time         // when Follow began to read the stream from its start; zero if the Table is empty
	complete  bool              // since built, Follow has read the stream to its end or up to maxRuns
	consumer  string            // the consumer's name; "" if none exists
	received  uint64            // number of messages that the consumer has delivered
	next      uint64            // position in the stream of runs at which Follow continues
	nextEntry uint64            // position in the index at which Follow continues
}

// run is what a Table knows about a run.
type run struct {
	id    string
	owner *owner // nil until Follow has read the run's entry in the index
	bytes int64  // total size of its messages
	last  uint64 // position of its last event, which orders runs by their end; 0 before an event was read
	open  bool   // Evict found that the event at last does not end the run
}

// owner has totals over an owner's runs.
type owner struct {
	token string // Entry.Owner
	runs  int    // number of runs
	bytes int64  // total size of the messages of these runs
}

// New returns a Table without runs.
func New(source Source) *Table {
	t := &Table{source: source}
	t.resetLocked()
	return t
}

// resetLocked empties the Table, so that the next call of Follow reads the stream from its start. The caller holds
// t.mu.
func (t *Table) resetLocked() {
	t.runs = make(map[string]*run)
	t.sized = 0
	t.owners = make(map[string]*owner)
	t.total = 0
	t.built = time.Time{}
	t.complete = false
	t.consumer = ""
	t.next = 1
	t.nextEntry = 1
}

// addLocked adds a message to the sizes of its run, of the run's owner and of the Table. If the message is an event,
// Evict considers the run again. The caller holds t.mu.
func (t *Table) addLocked(id string, isEvent bool, pos uint64, bytes int64) {
	r := t.runLocked(id)
	if r.bytes == 0 {
		t.sized++
	}
	r.bytes += bytes
	if isEvent {
		r.last = pos
		r.open = false
	}
	t.total += bytes
	if r.owner != nil {
		r.owner.bytes += bytes
	}
}

// setOwnerLocked sets a run's owner and adds the run to the owner's totals. It does nothing if the run has an owner.
// The caller holds t.mu.
func (t *Table) setOwnerLocked(id, token string) {
	r := t.runLocked(id)
	if r.owner != nil {
		return
	}
	r.owner = t.owners[token]
	if r.owner == nil {
		r.owner = &owner{token: strings.Clone(token)} // cloned, because token may be part of a longer string
		t.owners[r.owner.token] = r.owner
	}
	r.owner.runs++
	r.owner.bytes += r.bytes
}

// runLocked returns the run with the given id, and adds it to the Table if it is missing. The caller holds t.mu.
func (t *Table) runLocked(id string) *run {
	r := t.runs[id]
	if r == nil {
		r = &run{id: strings.Clone(id)}
		t.runs[r.id] = r
	}
	return r
}

// forgetLocked removes a run that the log no longer has. The run must have an owner. The caller holds t.mu.
func (t *Table) forgetLocked(r *run) {
	delete(t.runs, r.id)
	if r.bytes > 0 {
		t.sized--
	}
	t.total -= r.bytes
	o := r.owner
	o.bytes -= r.bytes
	o.runs--
	if o.runs == 0 {
		delete(t.owners, o.token)
	}
}

// Forget removes a run that this process has deleted other than through Evict. It does nothing if the run's owner is
// not known yet.
func (t *Table) Forget(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.runs[id]; r != nil && r.owner != nil {
		t.forgetLocked(r)
	}
}

// Eviction says which runs to delete, and how.
type Eviction struct {
	// Limit is the space for all owners together, in bytes. Each owner with runs has an equal share of it. If Limit is
	// 0, Evict counts runs instead of bytes, and each owner's share is an equal part of the number of runs.
	Limit int64
	// EndedBefore excludes runs that ended at that time or later.
	EndedBefore time.Time
	// Ended returns when a run ended, or the zero time if it has not ended, and the position of its last event. It
	// returns event.ErrGone if the log does not have the run.
	Ended func(ctx context.Context, id, owner string) (ended time.Time, last uint64, err error)
	// Delete deletes a run.
	Delete func(ctx context.Context, id, owner string) error
	// Enough reports whether the log has enough space. Evict calls it after each deletion.
	Enough func(ctx context.Context) (bool, error)
}

// Outcome says how a call of Evict ended. With any outcome, Evict may have deleted runs.
type Outcome int

const (
	// Nothing: the log has too little space, and no owner above their share has another run that has ended.
	Nothing Outcome = iota
	// Waiting: the log has too little space, but an owner above their share has runs that ended after EndedBefore,
	// which a later call can delete. That owner is not the only one.
	Waiting
	// Enough: the log has enough space.
	Enough
)

// Evict deletes runs until the log has enough space, or until no run is left that it may delete. It repeatedly picks
// the owner who is furthest above their share, and deletes that owner's run that ended first. Other processes may call
// Evict at the same time. They pick the same runs, and each checks the space after each deletion, so together they
// delete only a few runs too many. If Evict returns an error, ignore the outcome.
func (t *Table) Evict(ctx context.Context, eviction Eviction) (Outcome, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	outcome := Nothing
	// queues has, per owner, the runs that may be deleted, in order. An owner's queue is made when the owner is first
	// picked. An owner with an empty queue is not picked again.
	queues := make(map[*owner][]*run)
	for {
		largest := t.largestLocked(eviction.Limit, queues)
		if largest == nil {
			return outcome, nil
		}
		if _, made := queues[largest]; !made {
			queues[largest] = t.queueLocked(largest)
		}
		if len(queues[largest]) == 0 {
			continue
		}
		oldest := queues[largest][0]
		queues[largest] = queues[largest][1:]
		ended, last, err := eviction.Ended(ctx, oldest.id, largest.token)
		switch {
		case errors.Is(err, event.ErrGone):
			t.forgetLocked(oldest)
		case err != nil:
			return outcome, err
		case last != oldest.last:
			// Skip the run, because it has a newer event than the Table knows. A later call considers it again, once
			// Follow has read that event.
		case ended.IsZero():
			oldest.open = true
		case !ended.Before(eviction.EndedBefore):
			queues[largest] = nil // the next runs in the queue ended even later
			if len(t.owners) > 1 {
				outcome = Waiting
			}
		default:
			if enough, err := t.deleteLocked(ctx, eviction, oldest); enough || err != nil {
				return Enough, err
			}
		}
	}
}

// deleteLocked deletes a run whose owner is known, and reports whether the log then has enough space. The caller holds
// t.mu.
func (t *Table) deleteLocked(ctx context.Context, eviction Eviction, r *run) (enough bool, _ error) {
	if err := eviction.Delete(ctx, r.id, r.owner.token); err != nil {
		return false, err
	}
	t.forgetLocked(r)
	return eviction.Enough(ctx)
}

// largestLocked returns the owner who is furthest above their share, or nil if no owner is above it. It skips owners
// that have an empty queue in queues. limit is Eviction.Limit. The caller holds t.mu.
func (t *Table) largestLocked(limit int64, queues map[*owner][]*run) (largest *owner) {
	size := func(o *owner) int64 { return o.bytes }
	if limit == 0 {
		size = func(o *owner) int64 { return int64(o.runs) }
		limit = int64(len(t.runs))
	}
	largestSize := limit / int64(max(len(t.owners), 1)) // the share, which the result must exceed
	for _, o := range t.owners {
		queue, made := queues[o]
		isEmpty := made && len(queue) == 0
		if ownerSize := size(o); ownerSize > largestSize && !isEmpty {
			largest = o
			largestSize = ownerSize
		}
	}
	return largest
}

// queueLocked returns an owner's runs that may have ended, ordered by their last events. It leaves out runs without an
// event, and runs that Evict found to be still open. The caller holds t.mu.
func (t *Table) queueLocked(o *owner) (queue []*run) {
	for _, r := range t.runs {
		if r.owner == o && r.last > 0 && !r.open {
			queue = append(queue, r)
		}
	}
	slices.SortFunc(queue, func(a, b *run) int { return cmp.Compare(a.last, b.last) })
	return queue
}
