// Package share knows how many bytes of a log on JetStream the runs of each owner use, and chooses the
// runs that a full log deletes: those of an owner above their share.
//
//	table := share.New(share.Source{Conn: conn, JetStream: stream, Stream: "RUNS", Run: runOf, Entries: readEntries})
//	if err := table.Follow(ctx, used); err != nil {
//		return err
//	}
//	outcome, err := table.Evict(ctx, share.Eviction{Limit: limit, Ended: endOf, Delete: deleteRun, Enough: hasSpace})
//
// A Table reads the sizes of messages from the stream, without their payloads, and each message once:
// Follow continues where it stopped. A new Table, also that of a process that has just started, reads
// the whole stream. So all processes that share a log find the same sizes in it.
//
// The methods may be called concurrently; one at a time is executed.
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

// Source locates what a Table reads.
type Source struct {
	Conn      *nats.Conn // for the sizes of messages
	JetStream js.JetStream
	Stream    string
	// Run returns the run of a message with a subject, and whether it is an event.
	Run func(subject string) (id string, isEvent bool)
	// Entries returns entries of the index from a pos on, and whether there are more.
	Entries func(ctx context.Context, from uint64) (entries []Entry, more bool, err error)
}

// Entry is the entry of a run in the index.
type Entry struct {
	Pos       uint64
	ID, Owner string
}

// maxRuns bounds the runs that a Table knows, at about 200 bytes each. Follow stops there, so these are
// the oldest runs of the log. It continues when some of them were deleted.
const maxRuns = 1 << 16

// Table has the sizes of runs. Its zero value cannot be used; New returns one.
type Table struct {
	source Source

	mu       sync.Mutex // held by every method; guards the fields below
	runs     map[string]*run
	owners   map[string]*owner
	total    int64     // bytes of all runs
	built    time.Time // when Follow began to read the stream from its start
	complete bool      // Follow has reached the end of the stream since then
	consumer string    // "" if there is none
	received uint64    // messages from the consumer
	next     uint64    // the pos in the stream from which Follow continues
	entry    uint64    // the same in the index
}

// run has what a Table knows of a run.
type run struct {
	id    string
	owner *owner // nil until Follow has read the run's entry in the index
	bytes int64
	last  uint64 // the pos of its last event, 0 before one was read; the order in which runs ended
	open  bool   // the event at last does not end it
}

// owner sums up the runs of an owner.
type owner struct {
	token string
	runs  int
	bytes int64
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
	t.owners = make(map[string]*owner)
	t.total = 0
	t.built = time.Time{}
	t.complete = false
	t.consumer = ""
	t.next = 1
	t.entry = 1
}

// addLocked counts a message of a run.
func (t *Table) addLocked(id string, isEvent bool, pos uint64, bytes int64) {
	r := t.runLocked(id)
	r.bytes += bytes
	if isEvent {
		r.last, r.open = pos, false
	}
	t.total += bytes
	if r.owner != nil {
		r.owner.bytes += bytes
	}
}

// setOwnerLocked records whose run it is.
func (t *Table) setOwnerLocked(id, token string) {
	r := t.runLocked(id)
	if r.owner != nil {
		return
	}
	r.owner = t.owners[token]
	if r.owner == nil {
		r.owner = &owner{token: strings.Clone(token)} // it may be a part of a longer string
		t.owners[r.owner.token] = r.owner
	}
	r.owner.runs++
	r.owner.bytes += r.bytes
}

// runLocked returns the entry of a run, which it adds if there is none.
func (t *Table) runLocked(id string) *run {
	r := t.runs[id]
	if r == nil {
		r = &run{id: strings.Clone(id)}
		t.runs[r.id] = r
	}
	return r
}

// forgetLocked removes a run that the log does not have any more.
func (t *Table) forgetLocked(r *run) {
	delete(t.runs, r.id)
	t.total -= r.bytes
	o := r.owner
	o.bytes -= r.bytes
	o.runs--
	if o.runs == 0 {
		delete(t.owners, o.token)
	}
}

// Forget removes a run that was deleted. Deletions by other processes are noticed later.
func (t *Table) Forget(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.runs[id]; r != nil && r.owner != nil {
		t.forgetLocked(r)
	}
}

// Eviction says which runs to delete, and how.
type Eviction struct {
	// Limit is the space of all owners together, in bytes. The share of each owner that has runs is an
	// equal part of it. If it is 0, runs are counted instead of bytes, and the limit is their number.
	Limit int64
	// EndedBefore protects the runs that ended later.
	EndedBefore time.Time
	// Ended returns when a run ended, zero if it has not ended, and the pos of its last event. It returns
	// event.ErrGone if the log does not have the run.
	Ended func(ctx context.Context, id, owner string) (ended time.Time, last uint64, err error)
	// Delete deletes a run.
	Delete func(ctx context.Context, id, owner string) error
	// Enough reports whether the log has enough space. It is called after each deletion.
	Enough func(ctx context.Context) (bool, error)
}

// Outcome is what Evict achieved.
type Outcome int

const (
	// Nothing: the log has too little space, and the owners above their share have no run that ended.
	Nothing Outcome = iota
	// Waiting: some owner above their share has runs that ended, but after EndedBefore. Others have
	// runs too.
	Waiting
	// Enough: the log has enough space.
	Enough
)

// Evict deletes runs until the log has enough space. Each time it takes the owner who is most above their
// share, and deletes the run of theirs that ended first. Other processes may do the same at the same time. They
// choose the same runs, and each asks for the space after each deletion, so together they delete few runs too many.
func (t *Table) Evict(ctx context.Context, eviction Eviction) (Outcome, error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	outcome := Nothing
	queues := make(map[*owner][]*run) // made when needed; an owner whose queue is empty has nothing to delete
	for {
		largest := t.largestLocked(eviction.Limit, queues)
		if largest == nil {
			return outcome, nil
		}
		queue, made := queues[largest]
		if !made {
			queue = t.queueLocked(largest)
		}
		queues[largest] = nil
		if len(queue) == 0 {
			continue
		}
		oldest := queue[0]
		ended, last, err := eviction.Ended(ctx, oldest.id, largest.token)
		switch {
		case errors.Is(err, event.ErrGone):
			t.forgetLocked(oldest)
		case err != nil:
			return outcome, err
		case last != oldest.last: // the run continued since the queue was made: others may have ended before it
		case ended.IsZero():
			oldest.open = true
		case !ended.Before(eviction.EndedBefore): // the others in the queue ended even later
			if len(t.owners) > 1 {
				outcome = Waiting
			}
			continue
		default:
			if err := eviction.Delete(ctx, oldest.id, largest.token); err != nil {
				return outcome, err
			}
			t.forgetLocked(oldest)
			if enough, err := eviction.Enough(ctx); enough || err != nil {
				return Enough, err
			}
		}
		queues[largest] = queue[1:]
	}
}

// largestLocked returns the owner who is most above their share, without those whose queue is empty, or
// nil.
func (t *Table) largestLocked(limit int64, queues map[*owner][]*run) (largest *owner) {
	size := func(o *owner) int64 { return o.bytes }
	if limit == 0 {
		size = func(o *owner) int64 { return int64(o.runs) }
		limit = int64(len(t.runs))
	}
	most := limit / int64(max(len(t.owners), 1))
	for _, o := range t.owners {
		queue, ok := queues[o]
		isEmpty := ok && len(queue) == 0
		if n := size(o); n > most && !isEmpty {
			largest, most = o, n
		}
	}
	return largest
}

// queueLocked returns the runs of an owner that may have ended, in the order of their last events.
func (t *Table) queueLocked(o *owner) (queue []*run) {
	for _, r := range t.runs {
		if r.owner == o && r.last > 0 && !r.open {
			queue = append(queue, r)
		}
	}
	slices.SortFunc(queue, func(a, b *run) int { return cmp.Compare(a.last, b.last) })
	return queue
}
