package jetstream

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
)

// dispatchLoop passes live messages to the cached runs until Close. It never reads the stream. A message that cannot
// extend the tail of its run marks the run as stale, so that the run's next reader reads the stream. dispatchLoop also
// executes requestResync.
func (l *Log) dispatchLoop() {
	for {
		select {
		case m := <-l.live:
			l.dispatchMessage(m)
		case <-l.resync:
			l.forEachRun(func(r *run) {
				r.stale = true
				r.wakeReadersLocked()
				r.wakeExecutorLocked()
			})
		case <-l.ctx.Done():
			return
		}
	}
}

// dispatchMessage passes a live message to its run, if the run is in this instance's cache.
func (l *Log) dispatchMessage(msg *nats.Msg) {
	defer l.recoverPanic("accept a live message")
	tokens := strings.Split(msg.Subject, ".") // answerd live SHARD ID KIND …
	if len(tokens) < 5 {
		return
	}
	id, kind := tokens[3], tokens[4]
	if r := l.cachedRun(id); r != nil {
		r.acceptLive(newMessage(msg), kind)
	}
}

// acceptLive adds a live message to the run's tail. It marks the run as stale instead if the message does not directly
// follow r.lastPos, is in parts, or cannot be decoded. kind is the token after the run's id in the subject. An input
// only wakes the executor.
func (r *run) acceptLive(msg message, kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if kind == inputToken {
		r.wakeExecutorLocked()
		return
	}
	r.livePos = max(r.livePos, msg.Pos)
	if msg.Pos <= r.lastPos {
		return
	}
	info, err := parseMessageInfo(msg.Header)
	previous, _ := strconv.ParseUint(msg.Header.Get(js.LastSequenceHeader), 10, 64) // the server writes this header
	follows := r.loaded && previous == r.lastPos
	inParts := msg.Header.Get(partsHeader) != ""
	if err != nil || !follows || inParts {
		r.stale = true
		r.wakeReadersLocked()
		return
	}
	if info.isControl() {
		r.advanceLastPosLocked(msg.Pos)
		return
	}
	events, err := decodeEvents(msg.Data, info)
	if err != nil {
		r.log.logger.Error("an event from the log could not be decoded", "run_id", r.id, "error", err)
		r.stale = true // pollRuns wakes the readers
		return
	}
	r.appendTailLocked(events, msg.Pos, previous)
}

// requestResync makes dispatchLoop mark all cached runs as stale and wake their readers and executors. It is needed
// when live messages may have been lost: after a reconnect, or if this process was too slow to receive them. It does
// not block.
func (l *Log) requestResync() {
	select {
	case l.resync <- struct{}{}:
	default: // a request is pending
	}
}

// pollLoop calls pollRuns every second, and evictEndedRuns when the cache is full, until Close.
func (l *Log) pollLoop() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			l.pollRuns(now)
		case <-l.evictNow:
			l.evictEndedRuns()
		case <-l.ctx.Done():
			return
		}
	}
}

// pollRuns wakes the readers and executors of runs that are stale or have not been used for pollInterval. They ask
// again, and so find messages whose live copy was lost. If a run has not been used for evictAfter, pollRuns ends its
// subscriptions and evicts it from the cache, unless this instance writes the run and the run has not ended.
func (l *Log) pollRuns(now time.Time) {
	var idle []*nats.Subscription
	l.forEachRun(func(r *run) {
		unused := now.Sub(r.lastUsed)
		if r.stale || unused >= pollInterval {
			r.wakeReadersLocked()
			r.wakeExecutorLocked()
		}
		if unused < evictAfter {
			return
		}
		idle = append(idle, r.takeSubscriptionsLocked()...)
		if r.writer == nil || r.last.Terminal() {
			r.evictLocked()
		}
	})
	unsubscribe(idle)
}

// evictEndedRuns evicts runs that have ended from the cache, least recently used first, until at most three quarters of
// the cache are in use. Later readers of these runs read the stream.
func (l *Log) evictEndedRuns() {
	type candidate struct {
		run  *run
		used time.Time
	}
	var ended []candidate
	l.forEachRun(func(r *run) {
		if r.last.Terminal() {
			ended = append(ended, candidate{r, r.lastUsed})
		}
	})
	slices.SortFunc(ended, func(a, b candidate) int { return a.used.Compare(b.used) })
	var idle []*nats.Subscription
	l.mu.Lock()
	for _, c := range ended {
		if l.cached.Load() <= l.maxCached/4*3 {
			break
		}
		c.run.mu.Lock()
		idle = append(idle, c.run.takeSubscriptionsLocked()...)
		c.run.evictLocked()
		c.run.mu.Unlock()
	}
	l.mu.Unlock()
	unsubscribe(idle)
}

// evictLocked removes r from the cache. The caller holds r.mu and Log.mu.
func (r *run) evictLocked() {
	r.evicted = true
	delete(r.log.runs, r.id)
	r.countCachedLocked()
}

// takeSubscriptionsLocked removes the subscriptions from r and returns them. The caller holds r.mu, and must
// unsubscribe them once it holds no lock.
func (r *run) takeSubscriptionsLocked() (subs []*nats.Subscription) {
	if r.eventSub != nil {
		subs = append(subs, r.eventSub)
		r.eventSub = nil
	}
	if r.inputSub != nil {
		subs = append(subs, r.inputSub)
		r.inputSub = nil
	}
	return subs
}

// unsubscribe ends the subscriptions subs.
func unsubscribe(subs []*nats.Subscription) {
	for _, sub := range subs {
		_ = sub.Unsubscribe() // fails only on a closed connection
	}
}
