// Package share computes how many bytes of a log on JetStream the runs of each owner use, and deletes runs when the log
// is full: those of the owners above an equal share.
//
//	table := share.New(share.Source{Conn: conn, JetStream: stream, Stream: "RUNS", Run: runOf, Entries: readEntries})
//	if err := table.Follow(ctx, used); err != nil {
//		return err
//	}
//	outcome, err := table.Evict(ctx, share.Eviction{Limit: limit, Ended: endOf, Delete: deleteRun, Enough: hasSpace})
//
// A Table reads the sizes of messages from the stream, without their payloads, and each message once:
// Follow continues where the call before stopped. A new Table reads the whole stream. So all processes that share a log
// compute the same sizes.
//
// The methods may be called concurrently; they are executed one at a time.
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

// Source configures what a Table reads. All fields are required.
type Source struct {
	Conn      *nats.Conn   // receives the messages of the consumer
	JetStream js.JetStream // makes and removes the consumer
	Stream    string       // the name of the stream with the messages of runs
	// Run returns the id of the run to which a message with the subject belongs, and whether the message is an event.
	Run func(subject string) (id string, isEvent bool)
	// Entries returns the first entries of the index at pos from or later, in order, and whether there are more.
	Entries func(ctx context.Context, from uint64) (entries []Entry, more bool, err error)
}

// Entry is the entry of a run in the index.
type Entry struct {
	Pos   uint64
	ID    string // of the run
	Owner string // a token that stands for the owner
}

// maxRuns bounds the runs whose sizes a Table has, at about 200 bytes each. In a log with more runs, these are the
// oldest ones, which an eviction would delete first.
const maxRuns = 1 << 16

// Table has the sizes of runs. Its zero value cannot be used; New returns one.
type Table struct {
	source Source

	mu        sync.Mutex        // held by every method; guards the fields below
	runs      map[string]*run   // by id
	sized     int               // how many of runs have messages
	owners    map[string]*owner // by token; only those with runs
	total     int64             // bytes of all runs
	built     time.Time         // when Follow began to read the stream from its start; zero if the Table is empty
	complete  bool              // since built, Follow has read the stream to its end or up to maxRuns
	consumer  string            // the name of the consumer, "" if there is none
	received  uint64            // how many messages the consumer has delivered
	next      uint64            // the pos in the stream of runs from which Follow continues
	nextEntry uint64            // the pos in the index from which Follow continues
}

// run has what a Table knows of a run.
type run struct {
	id    string
	owner *owner // nil until Follow has read the run's entry in the index
	bytes int64  // of all its messages
	last  uint64 // the pos of its last event, 0 before one was read; it orders runs by their end
	open  bool   // Evict has found that the event at last is not the run's end
}

// owner has the sums over the runs of an owner.
type owner struct {
	token string // Entry.Owner
	runs  int    // how many runs
	bytes int64  // of all messages of these runs
}

// New returns a Table that knows no run yet.
func New(source Source) *Table {
	t := &Table{source: source}
	t.resetLocked()
	return t
}

// resetLocked empties the Table, so that the next Follow reads the stream from its start.
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

// addLocked adds a message to the size of its run, of the run's owner and of the Table. A new event makes the run a
// candidate of Evict again.
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

// setOwnerLocked sets the owner of a run, unless the run has one, and adds the run to the owner's sums.
func (t *Table) setOwnerLocked(id, token string) {
	r := t.runLocked(id)
	if r.owner != nil {
		return
	}
	r.owner = t.owners[token]
	if r.owner == nil {
		r.owner = &owner{token: strings.Clone(token)} // a clone, because token may keep a longer string in memory
		t.owners[r.owner.token] = r.owner
	}
	r.owner.runs++
	r.owner.bytes += r.bytes
}

// runLocked returns the run with an id, which it adds to the Table if it is missing.
func (t *Table) runLocked(id string) *run {
	r := t.runs[id]
	if r == nil {
		r = &run{id: strings.Clone(id)}
		t.runs[r.id] = r
	}
	return r
}

// forgetLocked removes a run that the log does not have any more. The run must have an owner.
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

// Forget removes a run that this process has deleted in another way than by Evict. A run without a known owner stays in
// the Table.
func (t *Table) Forget(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.runs[id]; r != nil && r.owner != nil {
		t.forgetLocked(r)
	}
}

// Eviction says which runs to delete, and how.
type Eviction struct {
	// Limit is the space of all owners together, in bytes. Each owner with runs has an equal share of it. If Limit is
	// 0, Evict counts runs instead of bytes, and the owners share the number of runs.
	Limit int64
	// EndedBefore is a time: Evict deletes only runs that ended before it.
	EndedBefore time.Time
	// Ended returns when a run ended, or the zero time if it has not ended, and the pos of its last event. It returns
	// event.ErrGone if the log does not have the run.
	Ended func(ctx context.Context, id, owner string) (ended time.Time, last uint64, err error)
	// Delete deletes a run.
	Delete func(ctx context.Context, id, owner string) error
	// Enough reports whether the log has enough space. It is called after each deletion.
	Enough func(ctx context.Context) (bool, error)
}

// Outcome says how a call of Evict ended, which may have deleted some runs in any case.
type Outcome int

const (
	// Nothing: the log has too little space, and no owner above their share has another run that has ended.
	Nothing Outcome = iota
	// Waiting: the log has too little space. An owner above their share has runs that ended after EndedBefore, which a
	// later call can delete. That owner is not the only one.
	Waiting
	// Enough: the log has enough space.
	Enough
)

// Evict deletes runs until the log has enough space, or until no run is left that it may delete. It repeatedly chooses
// the owner who is most above their share, and deletes that owner's run that ended first. Other processes may call
// Evict at the same time. They choose the same runs, and each asks for the space after each deletion, so together they
// delete only a few runs too many. The outcome is meaningless if Evict returns an error.
func (t *Table) Evict(ctx context.Context, eviction Eviction) (Outcome, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	outcome := Nothing
	// The runs of an owner that may be deleted, in order. An owner's queue is made when the owner is first chosen; an
	// owner with an empty queue is not chosen again.
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
			continue
		case err != nil:
			return outcome, err
		case last != oldest.last: // the run has a newer event than the Table: skip it until Follow has read that event
			continue
		case ended.IsZero():
			oldest.open = true
			continue
		case !ended.Before(eviction.EndedBefore):
			queues[largest] = nil // the next runs in the queue ended even later
			if len(t.owners) > 1 {
				outcome = Waiting
			}
			continue
		}
		if err := eviction.Delete(ctx, oldest.id, largest.token); err != nil {
			return outcome, err
		}
		t.forgetLocked(oldest)
		if enough, err := eviction.Enough(ctx); enough || err != nil {
			return Enough, err
		}
	}
}

// largestLocked returns the owner who is most above their share, or nil if there is none. It leaves out the owners with
// an empty queue in queues. limit is Eviction.Limit.
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
		if n := size(o); n > largestSize && !isEmpty {
			largest = o
			largestSize = n
		}
	}
	return largest
}

// queueLocked returns the runs of an owner that may have ended, in the order of their last events. Runs without an
// event, and runs of which Evict has found that they continue, are left out.
func (t *Table) queueLocked(o *owner) (queue []*run) {
	for _, r := range t.runs {
		if r.owner == o && r.last > 0 && !r.open {
			queue = append(queue, r)
		}
	}
	slices.SortFunc(queue, func(a, b *run) int { return cmp.Compare(a.last, b.last) })
	return queue
}
