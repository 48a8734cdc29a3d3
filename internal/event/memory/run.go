package memory

import (
	"sync"
	"time"

	"answerd/internal/event"
)

// run holds one run of a Log.
type run struct {
	number int64 // in the order of creation, from 1
	began  time.Time
	usage  *ownerUsage

	mu      sync.Mutex    // guards the fields below
	record  event.Run     // its Last stays unset: the newest of events has that role
	events  []event.Event // without a gap; the newest event is always kept; pages share parts of it
	bytes   int64         // of events, results, notes and inputs
	results results
	inbox   inbox
	notes   []event.Note
	job     *job          // nil before CreateJob and after Done
	ended   time.Time     // when the terminal event was appended; zero before
	dropped bool          // only record is left
	more    chan struct{} // closed at the next append; nil while no caller waits
}

// appendEvent adds an event with the next number.
func (r *run) appendEvent(b event.Body) (e event.Event, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkWritableLocked(); err != nil {
		return event.Event{}, err
	}
	// The monotonic clock keeps the times of a run in order when the system clock is set back.
	// It omits the time for which the machine was suspended.
	now := r.began.Add(time.Since(r.began))
	e = event.Event{RunID: r.record.ID, Seq: r.newestLocked().Seq + 1, Time: now.UnixMilli(), Body: b}
	if event.OwnSize(b) == 0 { // readers encode the others, see event.Event.AppendJSON
		if e, err = event.Encode(e.RunID, e.Seq, e.Time, b); err != nil {
			return event.Event{}, err
		}
	}
	r.events = append(r.events, e)
	if e.Terminal() {
		r.ended = now
	}
	r.bytes += eventSize(e)
	wakeWaiters(&r.more)
	return e, nil
}

// eventSize estimates the bytes of e in memory. The text of small events is stored twice, as JSON
// and in the body.
func eventSize(e event.Event) int64 {
	if e.JSON == nil {
		return int64(event.OwnSize(e.Body)) + entryOverhead
	}
	return 2*int64(len(e.JSON)) + entryOverhead
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

// pageLocked returns the events after seq.
func (r *run) pageLocked(seq int64) (event.Page, error) {
	following := r.newestLocked().Seq - seq // kept or not
	switch {
	case seq < 0 || following < 0:
		return event.Page{}, event.ErrInvalidPosition
	case following > int64(len(r.events)):
		return event.Page{}, event.ErrGone
	}
	events := r.events[len(r.events)-int(following):]
	n := min(len(events), maxPageEvents)
	hasNext := n < len(events)
	p := event.Page{Events: events[:n:n], Ended: !r.ended.IsZero() && !hasNext, HasNext: hasNext}
	if !p.Ended && n == 0 {
		p.More = waitChannel(&r.more)
	}
	return p, nil
}

// snapshotLocked returns what is known of the run, its newest event included.
func (r *run) snapshotLocked() event.Run {
	record := r.record
	record.Last = r.newestLocked()
	return record
}

// newestLocked returns the newest event, or a zero event if the run has none.
func (r *run) newestLocked() (newest event.Event) {
	if n := len(r.events); n > 0 {
		newest = r.events[n-1]
	}
	return newest
}

// endTime returns when the terminal event was appended, zero before.
func (r *run) endTime() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// waitChannel returns the channel that the next wakeWaiters closes.
func waitChannel(more *chan struct{}) <-chan struct{} {
	if *more == nil {
		*more = make(chan struct{})
	}
	return *more
}

// wakeWaiters closes the channel that waitChannel returned.
func wakeWaiters(more *chan struct{}) {
	if *more != nil {
		close(*more)
		*more = nil
	}
}
