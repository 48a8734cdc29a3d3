package session

//lint:file-ignore SA1019 2026-07-28 deprecates logging (SEP-2577); servers still use it.

import (
	"bytes"
	"encoding/json"
	"slices"
	"sync"

	"answerd/internal/mcp/schema"
	"answerd/internal/mcp/wire"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	maxProgressQueue = 64      // notifications that wait for a slow reader
	maxProgressText  = 4 << 10 // bytes of a message; a longer one is cut
	maxLogQueue      = 64      // log messages that wait for a slow reader
	maxLogs          = 1000    // log messages of one call that are delivered at all
)

// Progress is one notifications/progress of a call.
type Progress struct {
	Progress float64
	Total    float64 // 0 where unknown
	Message  string
}

// notification is what a server sends during a call: exactly one of the two is set.
type notification struct {
	progress *Progress
	log      *LogMessage
}

// notificationQueue delivers the notifications of a call to their reader, on a goroutine of
// its own and in the order in which they came, so that a slow reader delays neither the
// stream that brings them nor other calls.
//
// It is bounded. If it is full of progress, the latest notification replaces the one before
// it: progress only ever grows (MCP basic/utilities/progress), so the one that is left out
// was out of date. Log messages beyond the bounds are counted, and the count is delivered
// with the next one or at the end.
type notificationQueue struct {
	deliver func(notification)
	wake    chan struct{} // of capacity 1: there is something to do
	ended   chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex // protects what follows
	queue   []notification
	waiting int // log messages in queue
	logs    int // log messages so far that were not left out
	omitted int // log messages left out since the last one that was not
	closed  bool
}

// newNotificationQueue starts the goroutine; closeQueue ends it.
func newNotificationQueue(deliver func(notification)) *notificationQueue {
	q := &notificationQueue{deliver: deliver, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go q.deliverLoop()
	return q
}

// enqueue adds one notification. It never waits: it runs where the stream is read.
func (q *notificationQueue) enqueue(n notification) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return
	case n.log == nil:
		q.limitProgressLocked()
	case q.waiting == maxLogQueue || q.logs == maxLogs:
		q.omitted++
		return
	default:
		n.log.Omitted, q.omitted = q.omitted, 0
		q.waiting++
		q.logs++
	}
	q.queue = append(q.queue, n)
	q.signalLocked()
}

// limitProgressLocked removes the latest progress if there is too much of it.
func (q *notificationQueue) limitProgressLocked() {
	if len(q.queue)-q.waiting < maxProgressQueue {
		return
	}
	for i := len(q.queue) - 1; i >= 0; i-- {
		if q.queue[i].progress != nil {
			q.queue = slices.Delete(q.queue, i, i+1)
			return
		}
	}
}

// signalLocked wakes the goroutine; one pending signal stands for all.
func (q *notificationQueue) signalLocked() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// deliverLoop delivers the queue, without holding the lock, until the queue is closed and
// empty.
func (q *notificationQueue) deliverLoop() {
	defer close(q.ended)
	for range q.wake {
		for {
			n, closed := q.dequeue()
			if n != (notification{}) {
				q.deliver(n)
				continue
			}
			if closed {
				return
			}
			break
		}
	}
}

// dequeue returns the next notification; the zero value if there is none.
func (q *notificationQueue) dequeue() (n notification, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.queue) > 0:
		n, q.queue = q.queue[0], q.queue[1:]
		if n.log != nil {
			q.waiting--
		}
	case q.closed && q.omitted > 0: // no further message can carry the count
		n.log = &LogMessage{Omitted: q.omitted}
		q.omitted = 0
	}
	return n, q.closed
}

// closeQueue waits until the reader has received what is queued, or, unless all is set, has
// finished with what it has. Nothing is delivered afterwards.
func (q *notificationQueue) closeQueue(all bool) {
	q.mu.Lock()
	q.closed = true
	if !all {
		q.queue, q.omitted = nil, 0
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
