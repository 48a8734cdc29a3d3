package jetstream

import (
	"strings"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

// dispatch takes live messages to their runs. It never waits for anything: what it
// cannot use makes a run stale, and whoever reads that run asks the stream.
func (l *Log) dispatch() {
	for {
		select {
		case m := <-l.live:
			l.pass(m)
		case <-l.stale:
			l.each(func(r *run) {
				r.stale = true
				r.wakeLocked()
				r.wakeInLocked()
			})
		case <-l.ctx.Done():
			return
		}
	}
}

// pass takes one live message to its run.
func (l *Log) pass(m *nats.Msg) {
	defer l.survived("take in a message")
	f := strings.Split(m.Subject, ".") // answerd live SHARD ID KIND …
	if len(f) < 5 {
		return
	}
	if r := l.known(f[3]); r != nil {
		r.deliver(messageOf(m), f[4])
	}
}

// hint says that live messages may be missing: the connection was away, or we were too
// slow.
func (l *Log) hint() {
	select {
	case l.stale <- struct{}{}:
	default:
	}
}

// deliver takes in one live message.
func (r *run) deliver(m message, kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if kind == inKind {
		r.wakeInLocked()
		return
	}
	r.seen = max(r.seen, m.at)
	if m.at <= r.at {
		return
	}
	by, err := parseWriter(m.header.Get(writerHeader))
	if err != nil || !r.loaded || m.before != r.at || m.header.Get(partsHeader) != "" {
		r.stale = true
		r.wakeLocked()
		return
	}
	if by.silent() {
		r.passLocked(m.at, by)
		return
	}
	e, err := event.Decode(m.data)
	if err != nil {
		r.log.logger.Error("an event of the log cannot be read", "run_id", r.id, "error", err)
		r.stale = true
		return
	}
	r.pushLocked(e, m.at, m.before, by)
}

// each calls f with every run, locked.
func (l *Log) each(f func(*run)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := func(r *run) {
		defer l.survived("look after a run")
		r.mu.Lock()
		defer r.mu.Unlock()
		f(r)
	}
	for _, r := range l.runs {
		one(r)
	}
}
