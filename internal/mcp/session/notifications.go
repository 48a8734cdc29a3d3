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
	progressInterval = 100 * time.Millisecond // minimum time between two deliveries of progress
	maxProgress      = 1000                   // progress notifications delivered to one call
	maxProgressText  = 4 << 10                // bytes of Progress.Message; a longer message is cut
	maxProgressSize  = 64 << 10               // bytes of a notification; a larger notification is left out
	maxLogQueue      = 64                     // log messages of one call that wait for a slow handler
	maxLogs          = 1000                   // log messages delivered to one call
)

// Progress is one notifications/progress message of a call.
type Progress struct {
	Progress float64
	Total    float64 // 0 if unknown
	Message  string
}

// notification is a notification that a server sent during a call. Exactly one field is set.
type notification struct {
	progress json.RawMessage // the text of notifications/progress, not decoded
	log      *LogMessage
}

// notificationQueue delivers a call's notifications to their handler on its own goroutine, so that a slow handler
// delays neither the stream that brings them nor other calls.
//
// The queue is bounded:
//   - It delivers one progress notification per progressInterval, and at most maxProgress. Progress that comes too
//     early is delayed until the interval is over or the call ends. Newer progress replaces it without being
//     decoded, because progress only grows (MCP basic/utilities/progress).
//   - Log messages beyond maxLogQueue and maxLogs are left out and counted. The next log message has the count; if
//     none follows, an additional one at the end has it.
//
// Notifications are delivered in the server's order, except that log messages overtake delayed progress.
type notificationQueue struct {
	deliver func(notification)
	wake    chan struct{} // of capacity 1: wakes deliverLoop
	ended   chan struct{} // closed when deliverLoop has ended

	mu            sync.Mutex     // protects the fields below
	queue         []notification // to be delivered as soon as possible
	queuedLogs    int            // log messages in queue
	acceptedLogs  int            // log messages added to queue so far
	omittedLogs   int            // log messages left out since the last one was added
	delayed       []byte         // the latest progress, if it came too early; else empty
	progressDue   time.Time      // when the next progress may be delivered
	progressCount int            // progress notifications that are in queue or were delivered
	closed        bool
}

// newNotificationQueue returns a queue and starts its goroutine, which calls deliver with one notification at a time.
// closeQueue ends the goroutine.
func newNotificationQueue(deliver func(notification)) *notificationQueue {
	q := &notificationQueue{deliver: deliver, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go q.deliverLoop()
	return q
}

// enqueueProgress queues or delays message, the text of a progress notification. It keeps a copy of message, and drops
// a message of more than maxProgressSize. It does not wait for deliver, because the reader of the stream calls it.
func (q *notificationQueue) enqueueProgress(message []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(message) > maxProgressSize {
		return
	}
	hasDelayed := len(q.delayed) > 0
	hasQueuedProgress := len(q.queue) > q.queuedLogs
	if !hasDelayed && !hasQueuedProgress && q.mayDeliverLocked(time.Now()) {
		q.progressCount++
		q.queue = append(q.queue, notification{progress: bytes.Clone(message)})
		q.signalLocked()
		return
	}
	if !hasDelayed {
		q.signalLocked() // deliverLoop must start to wait until progress is due
	}
	q.delayed = append(q.delayed[:0], message...) // replaces earlier progress
}

// mayDeliverLocked reports whether progress may be delivered at the time now. The last of the maxProgress
// notifications is reserved for the end of the call, so that the final progress is delivered. q.mu must be held.
func (q *notificationQueue) mayDeliverLocked(now time.Time) bool {
	if q.closed {
		return true
	}
	return !now.Before(q.progressDue) && q.progressCount < maxProgress-1
}

// enqueueLog queues the log message that decode returns; decode returns nil if the message does not decode. If the
// bounds are reached, enqueueLog only counts the message and does not call decode. It does not wait for deliver.
func (q *notificationQueue) enqueueLog(decode func() *LogMessage) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if q.queuedLogs == maxLogQueue || q.acceptedLogs == maxLogs {
		q.omittedLogs++
		return
	}
	message := decode()
	if message == nil {
		return
	}
	message.Omitted = q.omittedLogs
	q.omittedLogs = 0
	q.queuedLogs++
	q.acceptedLogs++
	q.queue = append(q.queue, notification{log: message})
	q.signalLocked()
}

// signalLocked wakes deliverLoop. A signal not received yet is enough for several calls. q.mu must be held.
func (q *notificationQueue) signalLocked() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// deliverLoop delivers notifications until the queue is closed and empty. It does not hold q.mu during a delivery.
func (q *notificationQueue) deliverLoop() {
	defer close(q.ended)
	for {
		next, wait, isClosed := q.dequeue(time.Now())
		if next.log != nil || next.progress != nil {
			q.deliver(next)
			continue
		}
		if isClosed {
			return
		}
		var due <-chan time.Time // nil, and so never ready, if no progress will be due
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-q.wake:
		case <-due:
		}
	}
}

// dequeue removes and returns the next notification that may be delivered at the time now. If there is none, next is
// the zero value, and wait is the time until delayed progress is due. wait is 0 if no progress is delayed, or if it
// must wait for the end of the call. isClosed says that the queue is closed.
func (q *notificationQueue) dequeue(now time.Time) (next notification, wait time.Duration, isClosed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.queue) > 0:
		next, q.queue = q.queue[0], q.queue[1:]
		if next.log != nil {
			q.queuedLogs--
		} else {
			q.progressDue = now.Add(progressInterval)
		}
	case len(q.delayed) > 0 && q.mayDeliverLocked(now):
		next.progress, q.delayed = q.delayed, nil
		q.progressCount++
		q.progressDue = now.Add(progressInterval)
	case len(q.delayed) > 0 && q.progressCount < maxProgress-1:
		wait = q.progressDue.Sub(now)
	case q.closed && q.omittedLogs > 0: // no other log message follows that could have the count
		next.log = &LogMessage{Omitted: q.omittedLogs}
		q.omittedLogs = 0
	}
	return next, wait, q.closed
}

// closeQueue closes the queue and waits until deliverLoop has ended, so that nothing is delivered after that. With
// deliverRest, queued and delayed notifications are delivered first. Without it, closeQueue only waits for a delivery
// that has begun.
func (q *notificationQueue) closeQueue(deliverRest bool) {
	q.mu.Lock()
	q.closed = true
	if !deliverRest {
		q.queue = nil
		q.delayed = nil
		q.omittedLogs = 0
	}
	q.signalLocked()
	q.mu.Unlock()
	<-q.ended
}

// LogMessage is one notifications/message message during a call.
type LogMessage struct {
	Level  string // one of the eight levels of RFC 5424, such as "warning"
	Logger string // the server's name for the component that logs; "" if it gave none
	// Data is any JSON value, as received. If the value is too large or too deep, Data is a string with its beginning.
	// Data is nil in an additional message at the end of the call that has only Omitted.
	Data json.RawMessage
	// Omitted is how many messages were left out directly before this one, because the handler was too slow or the
	// call had too many.
	Omitted int
}

const (
	// logLevel is the least severe level that answerd asks servers for.
	logLevel     = "info"
	metaLogLevel = sdk.MetaKeyLogLevel
	// unknownLevel replaces a level that MCP does not define.
	unknownLevel = "notice"

	maxLogger  = 256     // bytes of a logger's name
	maxLogData = 8 << 10 // bytes of a message's data
)

// logLevels are the levels of MCP, which are those of RFC 5424.
var logLevels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// boundLogData returns raw, the data of a log message, as valid UTF-8, or null if raw is empty. Data that is larger
// than maxLogData or deeper than schema.MaxDepth becomes a string with its beginning.
func boundLogData(raw json.RawMessage) json.RawMessage {
	raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	switch {
	case len(raw) == 0:
		return json.RawMessage("null")
	case len(raw) <= maxLogData && !wire.IsDeeper(raw, schema.MaxDepth):
		return raw
	}
	text := string(raw[:min(len(raw), maxLogData)])
	var content string
	if json.Unmarshal(raw, &content) == nil { // raw is a string
		text = content
	}
	beginning, _ := json.Marshal(wire.Truncate(text, maxLogData) + " […]") // cannot fail for a string
	return beginning
}
