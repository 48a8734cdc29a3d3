package batch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"answerd/internal/event"
)

const (
	// MaxBytes bounds the data of a batch, unless one item alone is larger.
	MaxBytes = 64 << 10
	maxItems = 256
	// maxWaiting bounds the bytes that wait. Beyond it, Settle waits until they are stored.
	maxWaiting = 4 * MaxBytes
	// interval separates two batches unless Flush is called. The first event after a pause is stored at once.
	interval = 5 * time.Millisecond
)

// Queue stores the items of one run. Its methods may be called concurrently.
type Queue struct {
	options Options

	mu      sync.Mutex // guards the fields below
	waiting []Item
	size    int    // bytes of waiting
	current []Item // the batch that is being stored, or could not be stored and is tried again as it is
	added   uint64 // counts items
	stored  uint64
	storing bool          // a goroutine stores current
	err     error         // why current was not stored; nil while that is not known
	stopped error         // see Stop
	due     time.Time     // when the first of waiting is to be stored
	last    time.Time     // when a batch was stored
	tried   chan struct{} // closed when the next attempt to store a batch has ended
	timer   *time.Timer   // nil if no attempt is scheduled
}

// Options has what a Queue needs.
type Options struct {
	// Store stores a batch. After an error it gets the same items again. It is not called twice at the same
	// time.
	Store func([]Item) error
	// Go runs f in a goroutine, and reports false if it does not because the log is closed.
	Go func(f func()) bool
	// Limit bounds a batch, in bytes, if it is less than MaxBytes. 0 means one item for each batch.
	Limit int
}

// errClosed is the error of a queue whose log was closed.
var errClosed = fmt.Errorf("append to the log: %w: it is closed", event.ErrUnavailable)

// NewQueue returns an empty queue.
func NewQueue(o Options) *Queue {
	o.Limit = min(o.Limit, MaxBytes)
	return &Queue{options: o, tried: make(chan struct{})}
}

// Add adds an item, which is to be stored after delay, or an interval after the last batch.
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
	if next := q.last.Add(interval); due.Before(next) {
		due = next
	}
	if len(q.waiting) == 1 || due.Before(q.due) {
		q.due = due
	}
	q.scheduleLocked()
}

// Hurry stores what waits an interval after the last batch. It does not wait for that.
func (q *Queue) Hurry() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if next := q.last.Add(interval); len(q.waiting) > 0 && next.Before(q.due) {
		q.due = next
		q.scheduleLocked()
	}
}

// Settle returns nil if more items may be added. If the last attempt to store items has failed, or too many
// wait, it acts like Flush.
func (q *Queue) Settle(ctx context.Context) error {
	q.mu.Lock()
	settled := q.err == nil && q.size <= maxWaiting
	q.mu.Unlock()
	if settled {
		return nil
	}
	return q.Flush(ctx)
}

// Flush waits until all items that were added before are stored. It returns the error of the attempt to store them,
// or event.ErrUnavailable if ctx ends first. Items that were not stored stay in the queue.
func (q *Queue) Flush(ctx context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for last := q.added; q.stored < last; {
		if q.stopped != nil {
			return q.stopped
		}
		if !q.storing && !q.startLocked() {
			return errClosed
		}
		q.due = time.Time{}
		tried := q.tried
		q.mu.Unlock()
		var ctxErr error
		select {
		case <-tried:
		case <-ctx.Done():
			ctxErr = fmt.Errorf("append to the log: %w: %w", event.ErrUnavailable, context.Cause(ctx))
		}
		q.mu.Lock()
		switch {
		case q.stored >= last:
			return nil
		case q.stopped != nil:
			return q.stopped
		case ctxErr != nil:
			return ctxErr
		case q.err != nil:
			return q.err
		}
	}
	return nil
}

// Stop removes all items. Flush returns why from now on, if there were any.
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

// scheduleLocked starts an attempt to store what waits when it is due, unless one is running or has failed.
func (q *Queue) scheduleLocked() {
	isIdle := !q.storing && q.err == nil && q.stopped == nil
	if !isIdle || len(q.waiting) == 0 {
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

// isDueLocked reports whether what waits is to be stored now, because its time has come or because it fills a batch.
func (q *Queue) isDueLocked() bool {
	return time.Until(q.due) <= 0 || q.size >= q.options.Limit
}

func (q *Queue) stopTimerLocked() {
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
}

// startLocked starts a goroutine that stores the next batch. It reports false if the log is closed.
func (q *Queue) startLocked() bool {
	q.stopTimerLocked()
	if !q.options.Go(q.storeDue) {
		return false
	}
	q.storing, q.err = true, nil
	return true
}

// storeDue stores batches as long as one is due.
func (q *Queue) storeDue() {
	for more := true; more; {
		q.mu.Lock()
		if len(q.current) == 0 {
			q.takeLocked()
		}
		batch := q.current
		q.mu.Unlock()
		err := q.tryStore(batch)
		q.mu.Lock()
		if err == nil {
			q.stored += uint64(len(batch))
			q.current, q.last = nil, time.Now()
		}
		q.err = err
		close(q.tried)
		q.tried = make(chan struct{})
		canStore := err == nil && q.stopped == nil
		more = canStore && len(q.waiting) > 0 && q.isDueLocked()
		if !more {
			q.storing = false
			q.scheduleLocked()
		}
		q.mu.Unlock()
	}
}

// tryStore calls Store. A panic becomes an error, so that Flush returns.
func (q *Queue) tryStore(batch []Item) (err error) {
	if len(batch) == 0 { // the queue was stopped
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("store events: panic: %v", v)
		}
	}()
	return q.options.Store(batch)
}

// takeLocked makes the first of the waiting items the current batch.
func (q *Queue) takeLocked() {
	n, size := 0, 0
	for n < len(q.waiting) && n < maxItems {
		next := q.waiting[n].size()
		if n > 0 && size+next > q.options.Limit {
			break
		}
		n, size = n+1, size+next
	}
	q.current, q.waiting, q.size = q.waiting[:n:n], q.waiting[n:], q.size-size
	if len(q.waiting) == 0 {
		q.waiting = nil
	}
}
