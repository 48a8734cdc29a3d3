package memory

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"answerd/internal/event"
)

const (
	// runOverhead estimates the bytes that a run needs in addition to its entries.
	runOverhead = 1 << 10
	// maxPageEvents bounds the events of a page that must be decoded, so that the reader of a long run regains
	// control between pages, for example to flush or to notice the end of its request.
	maxPageEvents = 64
	// maxPageBytes bounds the JSON of a page of more than one event that must be decoded.
	maxPageBytes = 1 << 20
)

// run holds one run of a Log.
type run struct {
	number int64 // in the order of creation, from 1
	began  time.Time
	usage  *ownerUsage
	recent bool // is in Log.recent, guarded by Log.mu

	mu         sync.Mutex   // guards the fields below
	record     event.Run    // its Last stays unset
	status     event.Status // that the newest event implies
	events     events
	tail       tail  // of events; empty when later runs have ended, see Log.recent
	otherBytes int64 // of everything but events and tail
	counted    int64 // the bytes of the run that are part of Log.bytes so far (countLocked)
	results    results
	inbox      inbox
	notes      []event.Note
	job        *job          // nil before CreateJob and after Done
	ended      time.Time     // when the terminal event was appended; zero before
	dropped    bool          // the run was dropped: only record is left, without Request and Metadata
	more       chan struct{} // closed at the next append; nil while no caller waits
	settled    chan struct{} // closed at the next append after which the run has settled; nil while no caller waits
}

// recordSize estimates the bytes of a run without events.
func recordSize(r event.Run) int64 {
	n := runOverhead + cap(r.Request) + len(r.ThreadID) + len(r.Agent) + len(r.Key)
	for name, value := range r.Metadata {
		n += len(name) + len(value) + entryOverhead
	}
	return int64(n)
}

// lines has buffers in which events are encoded.
var lines = sync.Pool{New: func() any { return new([]byte) }}

// appendEvent adds an event with the next number, wakes those who wait for it, and returns by how many bytes the run
// grew. A terminal event ends the run. A run that accepts no events has the error of checkWritableLocked.
func (r *run) appendEvent(body event.Body) (e event.Event, grown int64, err error) {
	buffer := lines.Get().(*[]byte)
	defer lines.Put(buffer)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkWritableLocked(); err != nil {
		return event.Event{}, 0, err
	}
	// The monotonic clock keeps the times of a run in order when the system clock is set back.
	// It omits the time for which the machine was suspended.
	now := r.began.Add(time.Since(r.began))
	e = event.Event{RunID: r.record.ID, Seq: r.events.newest + 1, Time: now.UnixMilli(), Body: body}
	line, err := event.AppendEncode((*buffer)[:0], e.RunID, e.Seq, e.Time, body)
	if err != nil {
		return event.Event{}, 0, err
	}
	e.JSON = r.events.add(line)
	if cap(line) <= maxBlock {
		*buffer = line // The block has a copy. A larger line has become a block itself.
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

// withLoss estimates how much memory of the process n bytes of a run take: a third more. Go's allocator does not reuse
// the space between objects of different ages, and the runtime keeps a tenth of the heap. That was 100 MB of an idle
// process with 256 MiB for the log, after 50,000 answers.
func withLoss(n int64) int64 { return n + n/3 }

// countLocked returns by how many bytes the run has grown since the last call. The caller holds r.mu, and passes the
// result to ownerUsage.count.
func (r *run) countLocked() (grown int64) {
	now := withLoss(r.events.bytes + r.tail.bytes + r.otherBytes)
	grown, r.counted = now-r.counted, now
	return grown
}

// checkWritableLocked returns the error that an append would get, nil if appends are allowed.
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

// pageLocked returns the events after seq, at most maxPageEvents. If the tail does not have them, the page is without
// events, and undecoded has their JSON. If there are none yet, and the run has not ended, page.More is closed at the
// next append.
func (r *run) pageLocked(seq int64) (page event.Page, undecoded [][]byte, err error) {
	switch {
	case seq < 0 || seq > r.events.newest:
		return page, nil, event.ErrInvalidPosition
	case seq+1 < r.events.first():
		return page, nil, event.ErrGone
	}
	n := 0
	if following, ok := r.tail.eventsAfter(seq); ok {
		n = len(following)
		page.Events = following
	} else if seq < r.events.newest {
		undecoded = r.events.linesAfter(seq, maxPageEvents, maxPageBytes)
		n = len(undecoded)
	}
	page.HasNext = seq+int64(n) < r.events.newest
	page.Ended = !r.ended.IsZero() && !page.HasNext
	if !page.Ended && n == 0 {
		page.More = waitChannel(&r.more)
	}
	return page, undecoded, nil
}

// decodePage returns the page of pageLocked with the events of undecoded. It needs no lock, because the blocks of a run
// do not change.
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

// expiredLocked reports whether the run was dropped, or will be by the timer or the next Create because its
// retention has passed.
func (r *run) expiredLocked(retention time.Duration) bool {
	hasEnded := !r.ended.IsZero()
	return r.dropped || hasEnded && time.Since(r.ended) >= retention
}

// snapshot returns the record of the run with its newest event as Last. kept is false if the run was dropped or its
// retention has passed; then Last is not set. The event is decoded without r.mu.
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

// endTime returns when the terminal event was appended, zero before.
func (r *run) endTime() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// waitChannel returns the channel that the next call of wakeWaiters closes, and makes one if there is none. The caller
// holds the lock that guards *more.
func waitChannel(more *chan struct{}) <-chan struct{} {
	if *more == nil {
		*more = make(chan struct{})
	}
	return *more
}

// wakeWaiters closes the channel that waitChannel has returned since the last call, if any. The caller holds the lock
// that guards *more.
func wakeWaiters(more *chan struct{}) {
	if *more != nil {
		close(*more)
		*more = nil
	}
}

// inbox stores the inputs of one run. The position of an input is its index plus 1.
type inbox struct {
	inputs []event.Input
	more   chan struct{} // closed at the next input; nil while no caller waits
}

// ownerUsage counts what the runs of one owner use of the log.
type ownerUsage struct {
	owner event.Owner
	bytes atomic.Int64
	total *atomic.Int64 // the bytes of the log

	runs  int    // guarded by Log.mu, as is ended
	ended []*run // in the order in which they ended
}

// count accounts for n more bytes of the owner's runs and returns the bytes of the log.
func (u *ownerUsage) count(n int64) int64 {
	u.bytes.Add(n)
	return u.total.Add(n)
}

// canDropLocked reports whether the owner's run that ended first is not r and ended before t.
func (u *ownerUsage) canDropLocked(r *run, t time.Time) bool {
	return len(u.ended) > 0 && u.ended[0] != r && u.ended[0].endTime().Before(t)
}

// trimContent drops the oldest results of a run, then its tail except for the last part, and then its oldest events,
// until wanted bytes are free or only the newest block of events remains. It returns by how many bytes the run grew,
// which is negative.
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

// currentStatus returns the status of r.
func (r *run) currentStatus() event.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// addNote adds a note to r and returns by how many bytes the run grew.
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
