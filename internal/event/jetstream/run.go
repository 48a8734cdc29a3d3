package jetstream

import (
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
	if !event.ValidID(id) {
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
