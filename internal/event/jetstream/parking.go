package jetstream

import (
	"context"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// parkedFor is how long a job's message is put off at most; it is looked at then, and put
// off again.
const parkedFor = 24 * time.Hour

// parking is what a parked run waits for, as the last message of its subject tells.
type parking struct {
	seen  int64     // an input after this position
	until time.Time // or this time; zero never comes
}

func (p parking) header() nats.Header {
	h := nats.Header{seenHeader: {strconv.FormatInt(p.seen, 10)}}
	if !p.until.IsZero() {
		h.Set(untilHeader, strconv.FormatInt(p.until.UnixMilli(), 10))
	}
	return h
}

// parkingOf reads it back. What cannot be read is over.
func parkingOf(h nats.Header) (p parking) {
	p.seen, _ = strconv.ParseInt(h.Get(seenHeader), 10, 64)
	if until := h.Get(untilHeader); until != "" {
		ms, _ := strconv.ParseInt(until, 10, 64)
		p.until = time.UnixMilli(ms)
	}
	return p
}

// left is how long it can still take, at most parkedFor.
func (p parking) left() time.Duration {
	if p.until.IsZero() {
		return parkedFor
	}
	return min(max(time.Until(p.until), time.Millisecond), parkedFor)
}

// stays reports whether a parked run is left parked by who got a message of its job, and
// puts that message off, or away.
func (l *Log) stays(ctx context.Context, id string, p parking, m *delivery) (bool, error) {
	if !p.until.IsZero() && !time.Now().Before(p.until) {
		return false, nil
	}
	page, err := l.inputs(ctx, id, p.seen)
	if err != nil || len(page) > 0 {
		return false, err
	}
	if m.subject != wakeRoot+id {
		return true, m.giveBack(p.left())
	}
	if err := m.done(ctx); err != nil {
		return true, err
	}
	return true, l.rouse(ctx, id, p.seen)
}
