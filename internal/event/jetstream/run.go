package jetstream

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

const (
	// maxTail bounds the newest events of a run that are kept at hand, and
	// maxTailBytes their bytes.
	maxTail      = 256
	maxTailBytes = 256 << 10
	// pollEvery is how often a run that is read is looked at without being told of
	// anything new: a last live message that got lost is followed by none that shows it.
	pollEvery = 5 * time.Second
	// idleAfter is how long a run is followed that nobody asks for.
	idleAfter = 3 * pollEvery
	// failedFor is how long a failure to read counts for all who want the same.
	failedFor = 500 * time.Millisecond
)

var errRecently = errors.New("it could not be read a moment ago")

// run is what this log knows of one run: its record, its newest events, and what is
// needed to write it, if this process does.
type run struct {
	log *Log
	id  string

	fill sync.Mutex // held while the newest events are read from the stream

	mu      sync.Mutex // guards what follows
	record  *record    // nil until it was read
	writer  *writer    // nil unless this process writes the run
	sub     *nats.Subscription
	inSub   *nats.Subscription
	loaded  bool          // tail, last and at are as they once were
	stale   bool          // there may be more
	seen    uint64        // the highest number of a live message that was seen
	tail    []event.Event // the newest events, without a gap; shared with readers
	tailAt  []uint64      // their numbers in the stream
	bytes   int           // of tail
	last    event.Event   // the newest event; Seq is 0 while there is none
	at      uint64        // number of the last message of the subject, a claim included
	by      writerID      // who wrote that
	marks   []mark        // where some older events are
	more    chan struct{} // for readers; nil while nobody waits
	moreIn  chan struct{} // for the executor, who waits for inputs
	used    time.Time     // when somebody asked last
	checked time.Time     // when the stream was asked last
	failed  time.Time     // when it was asked in vain
	dropped bool          // the log has forgotten this run: ask it for another
}

// run returns what is known of a run, which may be nothing yet.
func (l *Log) run(id string) (*run, error) {
	if !event.Token(id) {
		return nil, event.ErrNotFound
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.runs[id]
	if r == nil {
		r = &run{log: l, id: id}
		l.runs[id] = r
	}
	r.mu.Lock()
	r.used = time.Now()
	r.mu.Unlock()
	return r, nil
}

// known returns a run that there is something to know of, nil else.
func (l *Log) known(id string) *run {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs[id]
}

func (r *run) subject(kind string) string { return runRoot + runSubject(r.id) + "." + kind }

// currentLocked reports whether the tail is kept up to date without being read.
func (r *run) currentLocked() bool {
	if !r.loaded || r.stale || r.record == nil {
		return false
	}
	return r.writer != nil || (r.sub != nil || r.last.Terminal()) && time.Since(r.checked) < pollEvery
}

// wakeLocked lets whoever waits ask again.
func (r *run) wakeLocked() {
	if r.more != nil {
		close(r.more)
		r.more = nil
	}
}

func (r *run) wakeInLocked() {
	if r.moreIn != nil {
		close(r.moreIn)
		r.moreIn = nil
	}
}

// pushLocked adds an event to the tail; before is the message that it follows.
func (r *run) pushLocked(e event.Event, at, before uint64, by writerID) {
	if at <= r.at {
		return
	}
	if !r.loaded || before != r.at {
		r.stale = true
	} else {
		r.tail, r.tailAt = append(r.tail, e), append(r.tailAt, at)
		r.bytes += len(e.JSON)
		r.last, r.at, r.by = e, at, by
		r.trimLocked()
	}
	r.wakeLocked()
}

// trimLocked drops the older half of a tail that has grown too long. What readers hold
// of it stays as it is.
func (r *run) trimLocked() {
	if len(r.tail) <= 2*maxTail && (r.bytes <= 2*maxTailBytes || len(r.tail) == 1) {
		return
	}
	n, bytes := 0, r.bytes
	for n < len(r.tail)-1 && (len(r.tail)-n > maxTail || bytes > maxTailBytes) {
		bytes -= len(r.tail[n].JSON)
		n++
	}
	r.markLocked(r.tail[n].Seq-1, r.tailAt[n]-1)
	r.tail = append([]event.Event(nil), r.tail[n:]...)
	r.tailAt = append([]uint64(nil), r.tailAt[n:]...)
	r.bytes = bytes
}

// refresh brings the tail up to what the stream has. One caller reads, the others use
// what it found.
func (r *run) refresh(ctx context.Context) error {
	r.fill.Lock()
	defer r.fill.Unlock()
	for try := 0; ; try++ {
		r.mu.Lock()
		rec, seen := r.record, r.seen
		if r.currentLocked() && r.at >= seen {
			r.mu.Unlock()
			return nil
		}
		if time.Since(r.failed) < failedFor {
			r.mu.Unlock()
			return unavailable("read the log", errRecently)
		}
		r.stale = false // what comes from now on makes it stale again
		r.mu.Unlock()
		err := r.load(ctx, rec)
		r.mu.Lock()
		if err != nil {
			r.stale = true
			if errors.Is(err, event.ErrUnavailable) {
				r.failed = time.Now()
			}
			r.mu.Unlock()
			return err
		}
		behind := r.at < r.seen
		r.stale = r.stale || behind
		r.mu.Unlock()
		// A replica that lags behind its leader has not got what we were told of.
		if !behind || try == 20 {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil
		}
	}
}

// load reads the record, unless it is known, and the newest events.
func (r *run) load(ctx context.Context, rec *record) error {
	found, err := r.log.last(ctx, runsName, r.subject(evKind))
	if err != nil {
		return err
	}
	if rec == nil || found == nil { // without an event, it may have been deleted meanwhile
		if rec, err = r.log.readRecord(ctx, r.id); err != nil {
			return err
		}
	}
	if found == nil && !rec.Gone {
		if rec.Gone, err = r.log.dropped(ctx, rec); err != nil {
			return err
		}
	}
	r.mu.Lock()
	r.record, r.checked = rec, time.Now()
	loaded, from := r.loaded, r.at
	gap := uint64(0)
	if found != nil {
		gap = found.at - from
	}
	r.mu.Unlock()
	switch {
	case found == nil:
		r.mu.Lock()
		r.loaded = true
		r.mu.Unlock()
		return nil
	case found.at <= from:
		return nil
	case loaded && gap < 4*maxBatch: // likely few of them ours
		return r.catchUp(ctx, from)
	}
	e, by, err := r.log.event(ctx, *found)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if found.at > r.at {
		r.tail, r.tailAt, r.bytes = nil, nil, 0
		r.last, r.at, r.by, r.loaded = e, found.at, by, true
		if !by.claim && e.Seq > 0 {
			r.tail, r.tailAt, r.bytes = []event.Event{e}, []uint64{found.at}, len(e.JSON)
		}
		r.wakeLocked()
	}
	return nil
}

// stillborn is how long a run may be without its first event. What begins a run takes
// 30 s at most, so whoever created it has died, or was told that it failed.
const stillborn = time.Minute

// dropped reports whether a run that has no events will never have any, or has lost
// them all in a stream that is full: what is left there is younger than the run.
func (l *Log) dropped(ctx context.Context, rec *record) (bool, error) {
	if time.Since(rec.Created) > stillborn {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	info, err := l.runsStream.Info(ctx)
	if err != nil {
		return false, unavailable("read the log", err)
	}
	return info.State.Bytes > uint64(l.maxBytes)/4*3 && info.State.FirstTime.After(rec.Created), nil
}

// catchUp reads what follows the message at from.
func (r *run) catchUp(ctx context.Context, from uint64) error {
	for {
		found, more, err := r.log.batch(ctx, runsName, query{Next: r.subject(evKind), From: from + 1})
		if err != nil {
			return err
		}
		for _, m := range found {
			e, by, err := r.log.event(ctx, m)
			if err != nil {
				return err
			}
			r.mu.Lock()
			if by.claim {
				r.claimedLocked(m.at, by)
			} else {
				r.pushLocked(e, m.at, max(r.at, from), by)
			}
			r.mu.Unlock()
			from = m.at
		}
		if !more || len(found) == 0 {
			return nil
		}
	}
}

// claimedLocked takes in that somebody claimed the run. A claim is no event.
func (r *run) claimedLocked(at uint64, by writerID) {
	if at > r.at {
		r.at, r.by = at, by
	}
}
