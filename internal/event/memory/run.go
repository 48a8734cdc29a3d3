package memory

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"answerd/internal/event"
)

const (
	// runOverhead estimates how many bytes a run needs in addition to its entries.
	runOverhead = 1 << 10
	// maxPageEvents is the largest number of events on a page that must be decoded. It lets the reader of a long run
	// regain control between pages, for example to flush or to notice that its request has ended.
	maxPageEvents = 64
	// maxPageBytes is the largest size of the JSON on a page that must be decoded. A single event may be larger.
	maxPageBytes = 1 << 20
)

// run holds one run of a Log.
type run struct {
	number int64 // order of creation, from 1
	began  time.Time
	usage  *ownerUsage
	recent bool // the run is in Log.recent; guarded by Log.mu

	mu         sync.Mutex   // guards the fields below
	record     event.Run    // Last stays unset
	status     event.Status // the status that the newest event implies
	events     events
	tail       tail  // empty some time after the run has ended; see Log.recent
	otherBytes int64 // size of everything but events and tail
	counted    int64 // what countLocked has counted for the run so far
	results    results
	inbox      inbox
	notes      []event.Note
	job        *job          // nil before CreateJob and after Done
	ended      time.Time     // when the terminal event was appended; zero before
	dropped    bool          // the run was dropped; only record is left, without Request and Metadata
	more       chan struct{} // closed at the next append; nil while no caller waits
	settled    chan struct{} // closed at the next append that settles the run; nil while no caller waits
}

// recordSize estimates the size of a run without events, in bytes.
func recordSize(r event.Run) int64 {
	size := runOverhead + cap(r.Request) + len(r.ThreadID) + len(r.Agent) + len(r.Key)
	for name, value := range r.Metadata {
		size += len(name) + len(value) + entryOverhead
	}
	return int64(size)
}

// lineBuffers has buffers in which appendEvent encodes events.
var lineBuffers = sync.Pool{New: func() any { return new([]byte) }}

// appendEvent adds an event with the next number, wakes the callers that wait for it, and returns how many bytes the
// run grew. A terminal event ends the run. If the run accepts no events, appendEvent returns the error of
// checkWritableLocked.
func (r *run) appendEvent(body event.Body) (e event.Event, grown int64, err error) {
	buffer := lineBuffers.Get().(*[]byte)
	defer lineBuffers.Put(buffer)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkWritableLocked(); err != nil {
		return event.Event{}, 0, err
	}
	// The monotonic clock keeps the times of a run in order even if the system clock is set back. It does not count the
	// time for which the machine was suspended.
	now := r.began.Add(time.Since(r.began))
	e = event.Event{RunID: r.record.ID, Seq: r.events.newest + 1, Time: now.UnixMilli(), Body: body}
	line, err := event.AppendEncode((*buffer)[:0], e.RunID, e.Seq, e.Time, body)
	if err != nil {
		return event.Event{}, 0, err
	}
	e.JSON = r.events.add(line)
	if cap(line) <= maxBlock {
		*buffer = line // the block has a copy; a larger line has itself become a block
	}
	r.tail.add(e)
	r.status = event.Run{Last: e}.Status()
	if e.Terminal() {
		r.ended = now
		r.events.seal()
	}
	wakeWaiters(&r.more)
	if e.Settled() {
		wakeWaiters(&r.settled)
	}
	return e, r.countLocked(), nil
}

// withLoss estimates how much process memory n bytes of a run take: a third more. Go's allocator does not reuse the
// space between objects of different ages, and the runtime keeps a tenth of the heap. In an idle process with 256 MiB
// for the log, that was 100 MB after 50,000 answers.
func withLoss(n int64) int64 { return n + n/3 }

// countLocked returns how many bytes the run has grown since the last call. The caller holds r.mu, and must pass the
// result to ownerUsage.count.
func (r *run) countLocked() (grown int64) {
	size := withLoss(r.events.bytes + r.tail.bytes + r.otherBytes)
	grown = size - r.counted
	r.counted = size
	return grown
}

// applyChange calls change, unless the run has ended or is no longer kept (Log.changeRun). It returns how many bytes
// the run grew.
func (r *run) applyChange(retention time.Duration, change func(*run) error) (grown int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.expiredLocked(retention):
		return 0, event.ErrGone
	case !r.ended.IsZero():
		return 0, event.ErrEnded
	}
	if err := change(r); err != nil {
		return 0, err
	}
	return r.countLocked(), nil
}

// checkWritableLocked returns the error for an append to the run, or nil if appends are allowed. The caller holds r.mu.
func (r *run) checkWritableLocked() error {
	switch {
	case r.dropped:
		return event.ErrGone
	case !r.ended.IsZero():
		return event.ErrEnded
	case r.job != nil && !r.job.claimed:
		return event.ErrFenced
	}
	return nil
}

// readPage returns the next events after seq. If the tail does not have them, it returns at most maxPageEvents of them
// as JSON in undecoded, and page.Events is empty. If the run has no later events and has not ended, page.More is closed
// at the next append. readPage returns event.ErrGone if the run or the event after seq is no longer kept.
func (r *run) readPage(seq int64, retention time.Duration) (page event.Page, undecoded [][]byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.expiredLocked(retention):
		return page, nil, event.ErrGone
	case seq < 0 || seq > r.events.newest:
		return page, nil, event.ErrInvalidPosition
	case seq+1 < r.events.first():
		return page, nil, event.ErrGone
	}
	if following, ok := r.tail.eventsAfter(seq); ok {
		page.Events = following
	} else if seq < r.events.newest {
		undecoded = r.events.linesAfter(seq, maxPageEvents, maxPageBytes)
	}
	count := len(page.Events) + len(undecoded) // one of them is empty
	page.HasNext = seq+int64(count) < r.events.newest
	page.Ended = !r.ended.IsZero() && !page.HasNext
	if !page.Ended && count == 0 {
		page.More = waitChannel(&r.more)
	}
	return page, undecoded, nil
}

// decodePage decodes undecoded, which readPage returned, into page.Events. It needs no lock, because the blocks of a
// run do not change.
func (r *run) decodePage(page event.Page, undecoded [][]byte) (event.Page, error) {
	if len(undecoded) == 0 {
		return page, nil
	}
	page.Events = make([]event.Event, len(undecoded))
	for i, line := range undecoded {
		var err error
		if page.Events[i], err = event.Decode(line); err != nil {
			return event.Page{}, fmt.Errorf("read an event of the log: %w", err)
		}
	}
	return page, nil
}

// expiredLocked reports whether the run was dropped, or its retention has passed, so that the timer or the next Create
// will drop it. The caller holds r.mu.
func (r *run) expiredLocked(retention time.Duration) bool {
	hasEnded := !r.ended.IsZero()
	return r.dropped || hasEnded && time.Since(r.ended) >= retention
}

// snapshot returns the run's record with its newest event as Last. kept is false if the run was dropped or its
// retention has passed. Last is then not set. snapshot decodes the event without holding r.mu.
func (r *run) snapshot(retention time.Duration) (record event.Run, kept bool, err error) {
	r.mu.Lock()
	record, kept = r.record, !r.expiredLocked(retention)
	var undecoded [][]byte
	if newest := r.events.newest; kept && newest > 0 {
		if last, ok := r.tail.eventsAfter(newest - 1); ok {
			record.Last = last[0]
		} else {
			undecoded = r.events.linesAfter(newest-1, 1, 0)
		}
	}
	r.mu.Unlock()
	for _, line := range undecoded {
		if record.Last, err = event.Decode(line); err != nil {
			return record, kept, fmt.Errorf("read an event of the log: %w", err)
		}
	}
	return record, kept, nil
}

// endTime returns when the terminal event was appended, or the zero time if it was not.
func (r *run) endTime() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// waitChannel returns the channel that the next call of wakeWaiters closes, and creates it if necessary. The caller
// holds the lock that guards *more.
func waitChannel(more *chan struct{}) <-chan struct{} {
	if *more == nil {
		*more = make(chan struct{})
	}
	return *more
}

// wakeWaiters closes the channel that waitChannel has returned since the last call of wakeWaiters, if any. The caller
// holds the lock that guards *more.
func wakeWaiters(more *chan struct{}) {
	if *more != nil {
		close(*more)
		*more = nil
	}
}

// inbox holds the inputs of one run. The position of an input is its index plus 1.
type inbox struct {
	inputs []event.Input
	more   chan struct{} // closed at the next input; nil while no caller waits
}

// ownerUsage counts how much of the log one owner's runs use.
type ownerUsage struct {
	owner event.Owner
	bytes atomic.Int64
	total *atomic.Int64 // size of the whole log

	runs  int    // number of runs; Log.mu guards runs and ended
	ended []*run // the runs that have ended, in that order
}

// count adds n bytes to the size of the owner's runs and of the log. It returns the log's new size.
func (u *ownerUsage) count(n int64) int64 {
	u.bytes.Add(n)
	return u.total.Add(n)
}

// canDropLocked reports whether the owner's run that ended first is not r and ended before endedBefore. The caller
// holds Log.mu.
func (u *ownerUsage) canDropLocked(r *run, endedBefore time.Time) bool {
	return len(u.ended) > 0 && u.ended[0] != r && u.ended[0].endTime().Before(endedBefore)
}

// trimContent drops the run's oldest results, then its tail except for the last part, and then its oldest events, until
// wanted bytes are free or only the newest block of events is left. It returns how many bytes the run grew, which is at
// most 0.
func (r *run) trimContent(wanted int64) (grown int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	freed := r.results.dropOldest(wanted)
	r.otherBytes -= freed
	if !r.dropped && freed < wanted && r.events.newest > 0 {
		tailBytes := r.tail.bytes
		r.tail.dropOldest(0)
		freed += tailBytes - r.tail.bytes
		r.events.dropOldest(wanted - freed)
	}
	return r.countLocked()
}

// currentStatus returns the run's status.
func (r *run) currentStatus() event.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// addNote adds a note to the run, and returns how many bytes the run grew.
func (r *run) addNote(note []byte) (grown int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkWritableLocked(); err != nil {
		return 0, err
	}
	r.notes = append(r.notes, event.Note{After: r.events.newest, Data: note})
	r.otherBytes += int64(cap(note)) + entryOverhead
	return r.countLocked(), nil
}
