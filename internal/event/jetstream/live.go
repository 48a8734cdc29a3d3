package jetstream

import (
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// dispatchLoop hands live messages to their runs. It never waits for a run: a message that it
// cannot use marks the run as stale, and the next reader of the run reads the stream.
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

// dispatchMessage passes a republished message to its run, if this instance has the run in its cache.
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

// acceptLive adds one live message to the cache of its run, or marks the run as stale.
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
		r.advanceHeadLocked(msg.pos, by)
		return
	}
	events, err := decodeEvents(msg.data, by)
	if err != nil {
		r.log.logger.Error("an event from the log could not be decoded", "run_id", r.id, "error", err)
		r.stale = true
		return
	}
	r.appendTailLocked(events, msg.pos, msg.previous, by)
}

// requestResync marks all cached runs as stale. Live messages may be missing after a reconnect,
// or because this process was too slow to receive them.
func (l *Log) requestResync() {
	select {
	case l.resync <- struct{}{}:
	default: // a request is pending
	}
}

// pollLoop calls pollRuns every second, and evictEndedRuns when the cache is full.
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

// pollRuns wakes the readers of runs that got no message for pollInterval, so that they find
// lost messages. It evicts runs from the cache that were not used for evictAfter.
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

// evictEndedRuns evicts runs that have ended until three quarters of the cache are used, those first
// that were used longest ago. Their readers read the stream.
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

// evictLocked removes r from the cache. Only pollLoop calls it. Log.mu is held too.
func (r *run) evictLocked() {
	r.evicted = true
	delete(r.log.runs, r.id)
	r.countCachedLocked()
}

// takeSubscriptionsLocked removes the subscriptions of r, to be unsubscribed without a lock.
func (r *run) takeSubscriptionsLocked() (subs []*nats.Subscription) {
	for _, sub := range []**nats.Subscription{&r.eventSub, &r.inputSub} {
		if *sub != nil {
			subs = append(subs, *sub)
			*sub = nil
		}
	}
	return subs
}

func unsubscribe(subs []*nats.Subscription) {
	for _, sub := range subs {
		_ = sub.Unsubscribe() // fails only on a closed connection
	}
}
