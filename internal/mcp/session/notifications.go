package session

//lint:file-ignore SA1019 2026-07-28 deprecates logging (SEP-2577); servers still use it.

import (
	"bytes"
	"encoding/json"
	"sync"
	"time"

	"answerd/internal/mcp/schema"
	"answerd/internal/mcp/wire"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	progressInterval = 100 * time.Millisecond // least time between two deliveries of progress
	maxProgress      = 1000                   // progress notifications of one call that are delivered
	maxProgressText  = 4 << 10                // bytes of a message; a longer one is cut
	maxProgressSize  = 64 << 10               // bytes of a notification; a larger one is left out
	maxLogQueue      = 64                     // log messages that wait for a slow reader
	maxLogs          = 1000                   // log messages of one call that are delivered at all
)

// Progress is one notifications/progress of a call.
type Progress struct {
	Progress float64
	Total    float64 // 0 where unknown
	Message  string
}

// notification is what a server sends during a call: exactly one of the two is set.
type notification struct {
	progress json.RawMessage // the text of the notification
	log      *LogMessage
}

// notificationQueue delivers the notifications of a call to their reader, on a goroutine of
// its own, so that a slow reader delays neither the stream that brings them nor other calls.
//
// It is bounded. Of progress it delivers one per progressInterval and maxProgress in all. The
// latest one that came too early is held until the interval is over, or the call ends; progress
// only ever grows (MCP basic/utilities/progress), so those that it replaces were out of date. They
// are never decoded. Log messages beyond the bounds are counted, and the count is delivered with
// the next one or at the end. Notifications are delivered in the order in which they came, except
// that log messages overtake progress that is held.
type notificationQueue struct {
	deliver func(notification)
	wake    chan struct{} // of capacity 1: there is something to do
	ended   chan struct{} // closed when the goroutine has ended

	mu       sync.Mutex // protects what follows
	queue    []notification
	logs     int       // log messages in queue
	accepted int       // log messages so far that were not left out
	omitted  int       // log messages left out since the last one that was not
	held     []byte    // progress that waits for its time; empty: none
	next     time.Time // before which no progress is delivered
	progress int       // progress notifications so far that were delivered or are in queue
	closed   bool
}

// newNotificationQueue starts the goroutine; closeQueue ends it.
func newNotificationQueue(deliver func(notification)) *notificationQueue {
	q := &notificationQueue{deliver: deliver, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go q.deliverLoop()
	return q
}

// enqueueProgress adds a progress notification, of whose text it keeps a copy. Like enqueueLog it
// never waits: it runs where the stream is read.
func (q *notificationQueue) enqueueProgress(message []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(message) > maxProgressSize {
		return
	}
	if len(q.held) == 0 && len(q.queue) == q.logs && q.mayDeliverLocked(time.Now()) {
		q.progress++
		q.queue = append(q.queue, notification{progress: bytes.Clone(message)})
		q.signalLocked()
		return
	}
	if len(q.held) == 0 {
		q.signalLocked() // for the goroutine to wait until its time
	}
	q.held = append(q.held[:0], message...)
}

// mayDeliverLocked reports whether progress may be delivered now. The last of maxProgress is for
// the end of the call.
func (q *notificationQueue) mayDeliverLocked(now time.Time) bool {
	if q.closed {
		return true
	}
	return !now.Before(q.next) && q.progress < maxProgress-1
}

// enqueueLog adds the log message that decode returns. It does not call decode if the message is
// left out.
func (q *notificationQueue) enqueueLog(decode func() *LogMessage) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if q.logs == maxLogQueue || q.accepted == maxLogs {
		q.omitted++
		return
	}
	m := decode()
	if m == nil {
		return
	}
	m.Omitted, q.omitted = q.omitted, 0
	q.logs++
	q.accepted++
	q.queue = append(q.queue, notification{log: m})
	q.signalLocked()
}

// signalLocked wakes the goroutine of deliverLoop. A signal that it has not received yet is enough for several calls.
func (q *notificationQueue) signalLocked() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// deliverLoop delivers the notifications, without holding the lock, until the queue is closed and
// empty.
func (q *notificationQueue) deliverLoop() {
	defer close(q.ended)
	for {
		n, wait, closed := q.dequeue(time.Now())
		if n.log != nil || n.progress != nil {
			q.deliver(n)
			continue
		}
		if closed {
			return
		}
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-q.wake:
		case <-due:
		}
	}
}

// dequeue returns the next notification; the zero value if there is none yet, and then in wait
// when progress that is held is due, 0 if none is.
func (q *notificationQueue) dequeue(now time.Time) (note notification, wait time.Duration, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.queue) > 0:
		note, q.queue = q.queue[0], q.queue[1:]
		if note.log != nil {
			q.logs--
		} else {
			q.next = now.Add(progressInterval)
		}
	case len(q.held) > 0 && q.mayDeliverLocked(now):
		note.progress, q.held = q.held, nil
		q.progress++
		q.next = now.Add(progressInterval)
	case len(q.held) > 0 && q.progress < maxProgress-1:
		wait = q.next.Sub(now)
	case q.closed && q.omitted > 0: // no further message can carry the count
		note.log = &LogMessage{Omitted: q.omitted}
		q.omitted = 0
	}
	return note, wait, q.closed
}

// closeQueue waits until the reader has received what is queued, or, unless all is set, has
// finished with what it has. Nothing is delivered afterwards.
func (q *notificationQueue) closeQueue(all bool) {
	q.mu.Lock()
	q.closed = true
	if !all {
		q.queue = nil
		q.held = nil
		q.omitted = 0
	}
	q.signalLocked()
	q.mu.Unlock()
	<-q.ended
}

// LogMessage is one notifications/message during a call.
type LogMessage struct {
	Level  string // one of the eight of RFC 5424, such as "warning"
	Logger string // the server's name for the part that logs; "" if it gave none
	// Data is any JSON, as received. Data that is too large or too deep is replaced by a
	// string of its beginning. It is nil in a message that only has Omitted, at the end.
	Data json.RawMessage
	// Omitted is how many messages were left out right before this one, because they came
	// faster than they were read, or beyond the bound of a call.
	Omitted int
}

const (
	// logLevel is the least severe level that we ask servers for.
	logLevel     = "info"
	metaLogLevel = sdk.MetaKeyLogLevel
	// unknownLevel replaces a level that MCP does not have.
	unknownLevel = "notice"

	maxLogger  = 256     // bytes of a logger's name
	maxLogData = 8 << 10 // bytes of a message's data
)

// logLevels are the levels of MCP, which are those of RFC 5424.
var logLevels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// boundLogData returns the data of a message within its bounds.
func boundLogData(raw json.RawMessage) json.RawMessage {
	raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	switch {
	case len(raw) == 0:
		return json.RawMessage("null")
	case len(raw) <= maxLogData && wire.Depth(raw) <= schema.MaxDepth:
		return raw
	}
	begin := string(raw[:min(len(raw), maxLogData)])
	var s string
	if json.Unmarshal(raw, &s) == nil {
		begin = s
	}
	short, _ := json.Marshal(wire.Truncate(begin, maxLogData) + " […]") // strings always marshal
	return short
}
