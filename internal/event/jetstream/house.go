package jetstream

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
)

// abandoned is how long a run may be silent without having ended. It may wait for a
// person all that time; one that nobody could ever take up again must go some day.
const abandoned = 7 * 24 * time.Hour

// keepHouse forgets runs whose time is over, and when room is short, those that ended.
// Every process that shares the streams does it, which is work done twice and no harm.
func (l *Log) keepHouse() {
	every := min(max(l.retention/10, time.Second), time.Minute)
	for {
		select {
		case <-time.After(every + rand.N(every/4)):
		case <-l.ctx.Done():
			return
		}
		l.tidy()
	}
}

func (l *Log) tidy() {
	defer l.survived("remove runs whose time is over")
	if err := l.expire(l.ctx); err != nil && l.ctx.Err() == nil {
		l.logger.Warn("runs whose time is over could not be removed from the event log", "error", err)
	}
}

// expire looks through all runs that are older than the retention, or through all if
// room is short, the oldest first.
func (l *Log) expire(ctx context.Context) error {
	short, err := l.isShort(ctx)
	if err != nil {
		return err
	}
	for from := uint64(0); ; {
		entries, more, err := l.batch(ctx, indexName, query{Next: ownRoot + ">", From: from})
		if err != nil {
			return err
		}
		for i, m := range entries {
			if from = m.at + 1; time.Since(m.time) < l.retention && !short {
				entries, more = entries[:i], false
				break
			}
		}
		if short, err = l.expireEach(ctx, entries, short); err != nil {
			return err
		}
		if !more || len(entries) == 0 {
			return nil
		}
	}
}

// isShort reports whether a stream is so full that it would soon drop, or refuse, what
// is still needed.
func (l *Log) isShort(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	for _, s := range []js.Stream{l.runsStream, l.indexStream} {
		info, err := s.Info(ctx)
		if err != nil {
			return false, unavailable("look at the log", err)
		}
		if info.State.Bytes > uint64(info.Config.MaxBytes)/10*8 {
			return true, nil
		}
	}
	return false, nil
}

// expireEach buries those of some runs whose time is over, and while room is short those
// that ended. It returns whether room is short still.
func (l *Log) expireEach(ctx context.Context, entries []message, short bool) (bool, error) {
	if len(entries) == 0 {
		return short, nil
	}
	events := make([]string, len(entries))
	for i, m := range entries {
		events[i] = runRoot + runSubject(lastToken(m.subject)) + "." + evKind
	}
	lasts, err := l.lastOfEach(ctx, runsName, events)
	if err != nil {
		return short, err
	}
	for i, m := range entries {
		silent, ended := time.Since(m.time), false
		if last, some := lasts[events[i]]; some {
			silent = time.Since(last.time)
			e, _, err := l.event(ctx, last)
			if err != nil && !errors.Is(err, event.ErrGone) {
				return short, err
			}
			ended = err != nil || e.Terminal()
		} else {
			ended = silent >= l.retention // it never began, or has lost all it had
		}
		if silent < abandoned && !(ended && (short || silent >= l.retention)) {
			continue
		}
		if err := l.bury(ctx, lastToken(m.subject), m.subject); err != nil {
			return short, err
		}
		if short {
			if short, err = l.isShort(ctx); err != nil {
				return short, err
			}
		}
	}
	return short, nil
}
