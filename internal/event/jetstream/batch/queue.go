package batch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"answerd/internal/event"
)

const (
	// MaxBytes is the largest size of a batch's data, unless a single item is larger.
	MaxBytes = 64 << 10
	maxItems = 256
	// maxWaiting is how many bytes of items may wait. If more are waiting, AwaitReady waits until they are stored.
	maxWaiting = 4 * MaxBytes
	// interval is the shortest time between two batches, unless Flush is called or the waiting items fill a batch.
	interval = 5 * time.Millisecond
)

// Queue stores the items of one run in batches. Its methods may be called concurrently. If an attempt to store a batch
// fails, the queue keeps the items, and tries again only when Flush or AwaitReady is called.
type Queue struct {
	options Options

	mu      sync.Mutex // guards the fields below
	waiting []Item     // the items that come after current
	size    int        // size of waiting, in bytes
	// current is the batch that is being stored, or that could not be stored. It is retried unchanged, because the
	// failed attempt may have stored it.
	current     []Item
	added       uint64        // number of items ever added
	stored      uint64        // number of items stored
	storing     bool          // a goroutine runs storeDue
	err         error         // the error of the last attempt to store a batch; nil after a success and during an attempt
	stopped     error         // the argument of Stop; nil before Stop
	due         time.Time     // when the waiting items must be stored
	lastStored  time.Time     // when the last batch was stored
	attemptDone chan struct{} // closed and replaced whenever an attempt to store a batch has ended
	timer       *time.Timer   // calls scheduleLocked at due; nil if no timer is running
}

// Options configures a Queue. Store and Go are required.
type Options struct {
	// Store stores a batch, and returns when the batch is stored. After an error, the next call gets the same items.
	// Calls do not overlap.
	Store func([]Item) error
	// Go runs f in a goroutine. If the log is closed, it returns false and does not run f.
	Go func(f func()) bool
	// Limit is the largest size of a batch in bytes, if it is less than MaxBytes. If Limit is 0, each item is stored
	// alone and without delay.
	Limit int
}

// errClosed is the error of a queue whose log was closed.
var errClosed = fmt.Errorf("append to the log: %w: it is closed", event.ErrUnavailable)

// NewQueue returns an empty queue.
func NewQueue(opts Options) *Queue {
	opts.Limit = min(opts.Limit, MaxBytes)
	return &Queue{options: opts, attemptDone: make(chan struct{})}
}

// Add adds an item and returns at once. The item is stored after delay, but not before interval has passed since the
// last batch. It is stored earlier if an earlier item is due sooner, after Hurry or Flush, or if the waiting items fill
// a batch. After Stop, Add drops the item.
func (q *Queue) Add(i Item, delay time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped != nil {
		return
	}
	q.waiting = append(q.waiting, i)
	q.added++
	q.size += i.size()
	due := time.Now().Add(delay)
	if next := q.lastStored.Add(interval); due.Before(next) {
		due = next
	}
	if len(q.waiting) == 1 || due.Before(q.due) {
		q.due = due
	}
	q.scheduleLocked()
}

// Hurry ends the delays of the waiting items: they become due as soon as interval has passed since the last batch. It
// returns at once.
func (q *Queue) Hurry() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if next := q.lastStored.Add(interval); len(q.waiting) > 0 && next.Before(q.due) {
		q.due = next
		q.scheduleLocked()
	}
}

// AwaitReady returns nil at once if the caller may add an item. If the last attempt to store a batch has failed, or
// more than maxWaiting bytes are waiting, it acts like Flush. A caller that calls AwaitReady before each Add learns of
// errors and keeps the queue from growing without limit.
func (q *Queue) AwaitReady(ctx context.Context) error {
	q.mu.Lock()
	mayAdd := q.err == nil && q.size <= maxWaiting
	q.mu.Unlock()
	if mayAdd {
		return nil
	}
	return q.Flush(ctx)
}

// Flush stores the items that were added before the call, without their delays, and waits until all of them are stored.
// It returns the error of the first attempt that fails, or event.ErrUnavailable if ctx ends or the log is closed. Items
// that could not be stored stay in the queue. If Stop was called before all items were stored, Flush returns the
// argument of Stop.
func (q *Queue) Flush(ctx context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var failed error // ctx has ended, or an attempt since the call has failed
	for last := q.added; q.stored < last; {
		switch {
		case q.stopped != nil:
			return q.stopped
		case failed != nil:
			return failed
		case !q.storing && !q.startLocked():
			return errClosed
		}
		q.due = time.Time{} // makes storeDue store the waiting items at once
		if failed = q.waitLocked(ctx); failed == nil {
			failed = q.err
		}
	}
	return nil
}

// waitLocked waits until an attempt to store a batch has ended. It returns event.ErrUnavailable if ctx ends first. The
// caller holds q.mu, which waitLocked releases while it waits.
func (q *Queue) waitLocked(ctx context.Context) error {
	attemptDone := q.attemptDone
	q.mu.Unlock()
	defer q.mu.Lock()
	select {
	case <-attemptDone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("append to the log: %w: %w", event.ErrUnavailable, context.Cause(ctx))
	}
}

// Stop removes the waiting items, and makes later calls of Add drop their items. From then on, Flush returns why unless
// all items are stored. Stop does not wait for a running attempt. Only the first call has an effect.
func (q *Queue) Stop(why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped != nil {
		return
	}
	q.stopped = why
	q.waiting = nil
	q.size = 0
	q.stopTimerLocked()
}

// scheduleLocked starts storeDue if the waiting items are due, and otherwise sets a timer for when they are. It does
// nothing while storeDue is running, because storeDue itself looks for due items, and nothing after a failed attempt.
// The caller holds q.mu.
func (q *Queue) scheduleLocked() {
	mayStart := !q.storing && q.err == nil && q.stopped == nil
	if !mayStart || len(q.waiting) == 0 {
		return
	}
	if q.isDueLocked() {
		q.startLocked()
		return
	}
	wait := time.Until(q.due)
	if q.timer != nil {
		q.timer.Reset(wait)
		return
	}
	q.timer = time.AfterFunc(wait, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.timer = nil
		q.scheduleLocked()
	})
}

// isDueLocked reports whether the waiting items must be stored now, because their time has come or because they fill a
// batch. The caller holds q.mu.
func (q *Queue) isDueLocked() bool {
	return time.Until(q.due) <= 0 || q.size >= q.options.Limit
}

// stopTimerLocked stops the timer if it is running. The caller holds q.mu.
func (q *Queue) stopTimerLocked() {
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
}

// startLocked starts storeDue in a goroutine. It returns false if the log is closed. The caller holds q.mu, and
// storeDue must not be running.
func (q *Queue) startLocked() bool {
	q.stopTimerLocked()
	if !q.options.Go(q.storeDue) {
		return false
	}
	q.storing, q.err = true, nil
	return true
}

// storeDue stores the current batch, or the waiting items if no batch is current. It continues as long as more items
// are due, and returns after a failed attempt.
func (q *Queue) storeDue() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if len(q.current) == 0 {
			q.takeLocked()
		}
		q.storeCurrentLocked()
		canStore := q.err == nil && q.stopped == nil
		if !canStore || len(q.waiting) == 0 || !q.isDueLocked() {
			break
		}
	}
	q.storing = false
	q.scheduleLocked()
}

// storeCurrentLocked makes one attempt to store the current batch, and then wakes the callers of Flush. The caller
// holds q.mu, which storeCurrentLocked releases during the attempt.
func (q *Queue) storeCurrentLocked() {
	batch := q.current
	q.mu.Unlock()
	err := q.tryStore(batch)
	q.mu.Lock()
	if err == nil {
		q.stored += uint64(len(batch))
		q.current = nil
		q.lastStored = time.Now()
	}
	q.err = err
	close(q.attemptDone)
	q.attemptDone = make(chan struct{})
}

// tryStore calls Options.Store. It turns a panic into an error, so that Flush returns.
func (q *Queue) tryStore(batch []Item) (err error) {
	if len(batch) == 0 { // Stop removed the items after storeDue was started
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("store events: panic: %v", v)
		}
	}()
	return q.options.Store(batch)
}

// takeLocked moves the first waiting items to the current batch: at least one, and as many as Options.Limit and
// maxItems allow. The caller holds q.mu.
func (q *Queue) takeLocked() {
	count, size := 0, 0
	for count < len(q.waiting) && count < maxItems {
		itemSize := q.waiting[count].size()
		if count > 0 && size+itemSize > q.options.Limit {
			break
		}
		count++
		size += itemSize
	}
	q.current = q.waiting[:count:count] // capped, so that appending to current cannot overwrite waiting
	q.waiting = q.waiting[count:]
	q.size -= size
	if len(q.waiting) == 0 {
		q.waiting = nil // lets the items be freed once they are stored
	}
}
