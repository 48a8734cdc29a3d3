package api

import (
	"slices"
	"sync"
	"time"

	"answerd/internal/event"
)

const (
	// maxTracked bounds the runs whose delivery is tracked.
	maxTracked = 8192
	// redeliveryTime is how long after a run's end its stream is repeated if its delivery is
	// unknown. Pages reconnect within seconds after a stream broke.
	redeliveryTime = time.Minute
)

// deliveryTracker records whether the stream of a run was delivered to its end to the page that
// started it. It keeps the newest maxTracked runs, in memory only: it helps pages that
// reconnect, and nothing depends on it.
type deliveryTracker struct {
	mu        sync.Mutex // protects all fields
	runs      []string   // oldest first
	delivered map[string]bool
}

// record notes whether the stream of a run was delivered to its end. A stream that goes on is
// recorded as not delivered.
func (t *deliveryTracker) record(run string, delivered bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.delivered == nil {
		t.delivered = make(map[string]bool)
	}
	if i := slices.Index(t.runs, run); i >= 0 {
		t.runs = slices.Delete(t.runs, i, i+1)
	}
	if len(t.runs) >= maxTracked {
		delete(t.delivered, t.runs[0])
		t.runs = slices.Delete(t.runs, 0, 1)
	}
	t.runs = append(t.runs, run)
	t.delivered[run] = delivered
}

// missedEnd reports whether the page of an ended run should get the stream again.
//
// Delivery is unknown for streams served by another process or before a restart. Such a stream
// is repeated for redeliveryTime: to show a message twice does less harm than to show half of
// it. A cancelled run is not repeated, because its caller stopped it.
func (t *deliveryTracker) missedEnd(run event.Run, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if delivered, known := t.delivered[run.ID]; known {
		return !delivered
	}
	ended := time.UnixMilli(run.Last.Time)
	return run.Status() != event.StatusCancelled && now.Sub(ended) < redeliveryTime
}
