package jetstream

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
)

// tombstone is how long the owner of a run that is gone is remembered.
const tombstone = 7 * 24 * time.Hour

// createPatience is how long a new run waits for a log that is away: somebody waits
// for it in turn, who can ask again.
const createPatience = 5 * time.Second

// record is a run besides its events, as the index keeps it.
type record struct {
	ThreadID   string    `json:"thread"`
	TraceID    string    `json:"trace"`
	Issuer     string    `json:"issuer"`
	Subject    string    `json:"subject"`
	Created    time.Time `json:"created"`
	Background bool      `json:"background,omitempty"`
	Request    []byte    `json:"request,omitempty"`
	Key        string    `json:"key,omitempty"` // its subject, not the key itself
	Gone       bool      `json:"gone,omitempty"`
}

func recordOf(r event.Run) record {
	rec := record{ThreadID: r.ThreadID, TraceID: r.TraceID, Issuer: r.Owner.Issuer, Subject: r.Owner.Subject, Created: r.Created, Background: r.Background, Request: r.Request}
	if r.Key != "" {
		rec.Key = keySubject(r.Owner, r.Key)
	}
	return rec
}

func (rec *record) run(id string) event.Run {
	return event.Run{ID: id, ThreadID: rec.ThreadID, TraceID: rec.TraceID, Owner: event.Owner{Issuer: rec.Issuer, Subject: rec.Subject}, Created: rec.Created, Background: rec.Background, Request: rec.Request}
}

// NewID implements event.Log.
func (l *Log) NewID() string { return "run_" + strings.ToLower(rand.Text()) }

// Create implements event.Log. The entry by owner comes first: it is what a run is
// found by when it is to be forgotten, whatever of the rest was written.
func (l *Log) Create(ctx context.Context, run event.Run) error {
	if l.full.Load() {
		return fmt.Errorf("create a run: %w", event.ErrUnavailable)
	}
	r, err := l.run(run.ID)
	if err != nil {
		return err
	}
	rec := recordOf(run)
	body, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode a run's record: %w", err)
	}
	own := ownSubject(run)
	if err := l.claimName(ctx, own, nil); err != nil {
		return err
	}
	if err := l.claimName(ctx, recRoot+run.ID, body); err != nil {
		return err
	}
	if rec.Key != "" {
		if err := l.claimKey(ctx, rec.Key, keyRecord{run.ID, run.Fingerprint}); err != nil {
			// Nobody knows of the run yet. What cannot be removed now goes when its time is over.
			_ = l.forget(context.WithoutCancel(ctx), indexName, recRoot+run.ID)
			_ = l.forget(context.WithoutCancel(ctx), indexName, own)
			return err
		}
	}
	l.adopt(r, func() {
		r.record, r.loaded = &rec, true
		r.writer = newWriter(r, 0, event.Event{}, 1)
	})
	return nil
}

// adopt makes r the run of its id, whatever has become of it meanwhile, and calls f
// with it locked.
func (l *Log) adopt(r *run, f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	l.runs[r.id], r.dropped, r.used = r, false, time.Now()
	f()
}

// claimName writes a message to a subject of the index that has none.
func (l *Log) claimName(ctx context.Context, subject string, body []byte) error {
	m := nats.NewMsg(subject)
	m.Data = body
	m.Header.Set(writerHeader, l.name)
	_, err := l.publish(ctx, indexName, m, 0, createPatience)
	return l.created(err)
}

// created is the error of Create for one of publish.
func (l *Log) created(err error) error {
	switch {
	case errors.Is(err, event.ErrFenced), errors.Is(err, event.ErrGone):
		return event.ErrExists
	case limited(err):
		l.logger.Error("the index of the event log is full: raise EVENTS_MAX_BYTES, or lower EVENTS_RETENTION")
		return unavailable("create a run", err)
	}
	return err
}

// readRecord reads the record of a run. With ErrGone it is what is left.
func (l *Log) readRecord(ctx context.Context, id string) (*record, error) {
	m, err := l.last(ctx, indexName, recRoot+id)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, event.ErrNotFound
	}
	return decodeRecord(m)
}

func decodeRecord(m *message) (*record, error) {
	var rec record
	if err := json.Unmarshal(m.data, &rec); err != nil {
		return nil, fmt.Errorf("decode a run's record: %w", err)
	}
	return &rec, nil
}

// Run implements event.Log.
func (l *Log) Run(ctx context.Context, id string) (event.Run, error) {
	r, err := l.run(id)
	if err != nil {
		return event.Run{}, err
	}
	r.mu.Lock()
	current := r.currentLocked()
	r.mu.Unlock()
	if !current {
		if err := r.look(ctx, func() bool { return false }); err != nil {
			return event.Run{}, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.record.run(id)
	if r.goneLocked() {
		return known, event.ErrGone
	}
	known.Last = r.last
	return known, nil
}

// goneLocked reports whether the run's time is over, or it was deleted.
func (r *run) goneLocked() bool {
	return r.record.Gone || r.last.Terminal() && time.Since(time.UnixMilli(r.last.Time)) >= r.log.retention
}

// forget removes what a stream has on a subject, which may have wildcards.
func (l *Log) forget(ctx context.Context, stream, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	s := map[string]js.Stream{runsName: l.runsStream, indexName: l.indexStream}[stream]
	if err := s.Purge(ctx, js.WithPurgeSubject(subject)); err != nil {
		return unavailable("remove from the log", err)
	}
	return nil
}
