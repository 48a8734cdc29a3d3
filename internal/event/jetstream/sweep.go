package jetstream

import (
	"time"

	"github.com/nats-io/nats.go"
)

// sweep wakes readers of runs that have been silent for a while, which is how lost
// messages are found, and forgets runs that nobody asks for.
func (l *Log) sweep() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			l.sweepAt(now)
		case <-l.ctx.Done():
			return
		}
	}
}

func (l *Log) sweepAt(now time.Time) {
	var idle []*nats.Subscription
	l.each(func(r *run) {
		silent := now.Sub(r.used)
		if r.stale || silent >= pollEvery {
			r.wakeLocked()
			r.wakeInLocked()
		}
		if silent < idleAfter {
			return
		}
		for _, s := range []**nats.Subscription{&r.sub, &r.inSub} {
			if *s != nil {
				idle = append(idle, *s)
				*s = nil
			}
		}
		if r.writer == nil || r.last.Terminal() {
			r.dropped = true
			delete(l.runs, r.id)
		}
	})
	for _, s := range idle {
		_ = s.Unsubscribe() // fails on a closed connection only
	}
}
