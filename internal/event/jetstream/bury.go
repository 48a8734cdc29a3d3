package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
)

// Delete implements event.Directory.
func (l *Log) Delete(ctx context.Context, run string) error {
	known, err := l.Run(ctx, run)
	if err != nil && !errors.Is(err, event.ErrGone) {
		return err
	}
	return l.bury(ctx, run, ownSubject(known))
}

// bury removes all of a run but its tombstone. The entry by owner goes last: as long as
// it is there, a burial that was cut short is done again.
func (l *Log) bury(ctx context.Context, id, own string) error {
	rec, err := l.readRecord(ctx, id)
	if err != nil && !errors.Is(err, event.ErrNotFound) {
		return err
	}
	if rec != nil {
		if err := l.entomb(ctx, id, *rec); err != nil {
			return err
		}
	}
	l.forgetHere(id)
	if err := l.forget(ctx, runsName, runRoot+runSubject(id)+".>"); err != nil {
		return err
	}
	for _, root := range []string{jobRoot, wakeRoot} {
		if err := l.forgetJob(ctx, root+id); err != nil {
			return err
		}
	}
	return l.forget(ctx, indexName, own)
}

// forgetJob removes a message of the work queue. To purge its subject would cost others
// theirs: on any purge the server forgets what it was to redeliver, of all subjects
// (nats-server 2.15, consumer.purge).
func (l *Log) forgetJob(ctx context.Context, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	m, err := l.jobsStream.GetLastMsgForSubject(ctx, subject)
	if err == nil {
		err = l.jobsStream.DeleteMsg(ctx, m.Sequence)
	}
	if err != nil && !errors.Is(err, js.ErrMsgNotFound) {
		return unavailable("remove from the log", err)
	}
	return nil
}

// entomb replaces the record of a run by what is left of it, and frees its key.
func (l *Log) entomb(ctx context.Context, id string, rec record) error {
	if rec.Key != "" {
		m, err := l.last(ctx, indexName, rec.Key)
		if err != nil {
			return err
		}
		var k keyRecord
		if m != nil && json.Unmarshal(m.data, &k) == nil && k.Run == id {
			if err := l.forget(ctx, indexName, rec.Key); err != nil {
				return err
			}
		}
	}
	if rec.Gone {
		return nil
	}
	rec.Gone, rec.Key, rec.Request = true, "", nil
	body, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	m := nats.NewMsg(recRoot + id)
	m.Data = body
	m.Header.Set(js.MsgTTLHeader, strconv.Itoa(int(tombstone.Seconds()))+"s")
	if _, err := l.tryPublish(ctx, m); err != nil {
		return unavailable("forget a run", err)
	}
	return nil
}

// forgetHere makes what this log knows of a run what is left of it.
func (l *Log) forgetHere(id string) {
	r := l.known(id)
	if r == nil {
		return
	}
	r.mu.Lock()
	w := r.writer
	r.mu.Unlock()
	if w != nil {
		w.mu.Lock()
		w.loseLocked(event.ErrGone)
		w.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.record != nil {
		gone := *r.record
		gone.Gone, gone.Request = true, nil
		r.record = &gone
	}
	r.stale = true
	r.wakeLocked()
	r.wakeInLocked()
}
