package jetstream

import (
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// dispatchLoop passes live messages to their runs until Close. It never reads the stream: a message that cannot extend
// the tail of its run marks the run as stale, and the next reader of the run reads the stream. It also executes
// requestResync.
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

// dispatchMessage passes a live message to its run, if this instance has the run in its cache.
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

// acceptLive adds a live message to the tail of its run, or marks the run as stale if the message does not directly
// follow head or cannot be decoded. kind is the token after the run's id. An input only wakes the executor.
func (r *run) acceptLive(msg message, kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if kind == inputToken {
		r.wakeExecutorLocked()
		return
	}
	r.liveHead = max(r.liveHead, msg.pos)
	if msg.pos <= r.head {
		return
	}
	by, err := parseWriterID(msg.header)
	follows := r.loaded && msg.previous == r.head
	inParts := msg.header.Get(partsHeader) != ""
	if err != nil || !follows || inParts {
		r.stale = true
		r.wakeReadersLocked()
		return
	}
	if by.isControl() {
		r.advanceHeadLocked(msg.pos)
		return
	}
	events, err := decodeEvents(msg.data, by)
	if err != nil {
		r.log.logger.Error("an event from the log could not be decoded", "run_id", r.id, "error", err)
		r.stale = true // pollRuns wakes the readers
		return
	}
	r.appendTailLocked(events, msg.pos, msg.previous)
}

// requestResync makes dispatchLoop mark all cached runs as stale, and wake their readers and executors. Live messages
// may be missing after a reconnect, or because this process was too slow to receive them.
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

// pollRuns wakes the readers and executors of runs that are stale or that no caller has used for pollInterval: they ask
// again, and so find messages whose live copy was lost. It ends the subscriptions of runs that were not used for
// evictAfter, and evicts those runs from the cache, except running ones that this instance writes.
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

// evictEndedRuns evicts runs that have ended, the least recently used first, until at most three quarters of the cache
// are used. Later readers of these runs read the stream.
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

// takeSubscriptionsLocked removes the subscriptions from r and returns them. The caller unsubscribes them when it holds
// no lock.
func (r *run) takeSubscriptionsLocked() (subs []*nats.Subscription) {
	for _, sub := range []**nats.Subscription{&r.eventSub, &r.inputSub} {
		if *sub != nil {
			subs = append(subs, *sub)
			*sub = nil
		}
	}
	return subs
}

// unsubscribe ends subscriptions.
func unsubscribe(subs []*nats.Subscription) {
	for _, sub := range subs {
		_ = sub.Unsubscribe() // fails only on a closed connection
	}
}
