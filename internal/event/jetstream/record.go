package jetstream

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
	"answerd/internal/values"
)

// record stores the properties of a run in the index; the run's events are elsewhere.
type record struct {
	ThreadID   string    `json:"thread"`
	TraceID    string    `json:"trace"`
	Issuer     string    `json:"issuer"`
	Subject    string    `json:"subject"`
	Created    time.Time `json:"created"`
	Background bool      `json:"background,omitempty"`
	Request    []byte    `json:"request,omitempty"`
	Key        string    `json:"key,omitempty"`  // the key's subject, not the key itself
	Gone       bool      `json:"gone,omitempty"` // the record is a tombstone
	Agent      string    `json:"agent,omitempty"`
	ParentID   string    `json:"parent,omitempty"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

func newRecord(r event.Run) record {
	rec := record{ThreadID: r.ThreadID, TraceID: r.TraceID, Issuer: r.Owner.Issuer, Subject: r.Owner.Subject, Created: r.Created, Background: r.Background, Metadata: r.Metadata, Request: r.Request, Agent: r.Agent, ParentID: r.ParentID}
	if r.Key != "" {
		rec.Key = keySubject(r.Owner, r.Key)
	}
	return rec
}

func (rec *record) toRun(id string) event.Run {
	return event.Run{ID: id, ThreadID: rec.ThreadID, TraceID: rec.TraceID, Owner: event.Owner{Issuer: rec.Issuer, Subject: rec.Subject}, Created: rec.Created, Background: rec.Background, Metadata: rec.Metadata, Request: rec.Request, Agent: rec.Agent, ParentID: rec.ParentID}
}

// readRecord reads the record of a run, which may be a tombstone.
func (l *Log) readRecord(ctx context.Context, id string) (*record, error) {
	m, err := l.readLast(ctx, indexName, recordPrefix+id)
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

// NewID implements event.Log.
func (l *Log) NewID() string { return "run_" + strings.ToLower(rand.Text()) }

// Create implements event.Log. It writes the entry by owner first. Retention finds runs by that
// entry, so it also removes a run whose creation was interrupted.
func (l *Log) Create(ctx context.Context, run event.Run) error {
	if l.diskFull.Load() {
		return fmt.Errorf("create a run: %w", event.ErrUnavailable)
	}
	r, err := l.getRun(run.ID)
	if err != nil {
		return err
	}
	rec := newRecord(run)
	body, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode a run's record: %w", err)
	}
	owner, w := ownerSubject(run), newWriter(r, 0, event.Event{}, 1)
	r.mu.Lock()
	exists := r.record != nil
	r.mu.Unlock()
	if exists {
		return event.ErrExists
	}
	if err := l.createEntry(ctx, w, owner, nil); err != nil {
		return err
	}
	if err := l.createEntry(ctx, w, recordPrefix+run.ID, body); err != nil {
		return err
	}
	if rec.Key != "" {
		if err := l.claimKey(ctx, rec.Key, keyRecord{run.ID, run.Fingerprint}); err != nil {
			// No caller knows of the run yet. If the removal fails, retention repeats it.
			_ = purgeSubject(context.WithoutCancel(ctx), l.indexStream, recordPrefix+run.ID)
			_ = purgeSubject(context.WithoutCancel(ctx), l.indexStream, owner)
			return err
		}
	}
	l.updateRun(r, func() {
		r.record, r.loaded, r.noInputs = &rec, true, true
		r.writer = w
	})
	return nil
}

// createEntry writes a message about a run to a subject of the index, which must be empty.
func (l *Log) createEntry(ctx context.Context, w *writer, subject string, body []byte) error {
	m := nats.NewMsg(subject)
	m.Data = body
	m.Header.Set(writerHeader, l.instanceID)
	if sent, err := w.sendAhead(indexName, m); sent {
		return err
	}
	_, err := l.publishAfter(ctx, indexName, m, 0, createTimeout)
	return l.createError(err)
}

// sendAhead sends a message that must be stored before readers see the first event of the run, and does not wait for
// that. It reports false, and sends nothing, if the run has an event already or other processes share the log: the
// caller then has to wait until the message is stored.
func (w *writer) sendAhead(stream string, m *nats.Msg) (sent bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.run.log.alone || w.last.Seq > 0 {
		return false, nil
	}
	s, err := w.run.log.send(stream, m)
	if err == nil {
		w.ahead = append(w.ahead, s)
	}
	return true, err
}

// awaitAhead waits until what was sent ahead is stored. If that fails, the run cannot be written any more, since a
// part of it is missing.
//
// With a log on disk, no other process sees a run that is being created. So its record, its job and its first event
// need not wait for each other: at 16 callers, that was half of the time until the first event. If the process dies in
// between, repairRuns deletes or ends the run, of which no caller knows. If only the event was stored, it stays until the
// stream drops its oldest messages.
func (w *writer) awaitAhead(ctx context.Context) error {
	w.awaiting.Lock() // an acknowledgement has one receiver
	defer w.awaiting.Unlock()
	w.mu.Lock()
	ahead := w.ahead
	w.mu.Unlock()
	var failed error
	for _, s := range ahead { // all of them, or a later one could be stored after the run was deleted
		failed = errors.Join(failed, w.run.log.awaitSent(ctx, s))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ahead = w.ahead[len(ahead):]
	if failed != nil {
		w.revokeLocked(failed)
	}
	return failed
}

// createError returns the error of Create for an error of publishAfter.
func (l *Log) createError(err error) error {
	switch {
	case errors.Is(err, event.ErrFenced), errors.Is(err, event.ErrGone):
		return event.ErrExists
	case isFull(err):
		l.logger.Error("the event log is full: raise EVENTS_MAX_BYTES or the limits of its NATS account, or lower EVENTS_RETENTION", "error", err)
	}
	return err
}

// keyRecord names the run that an idempotency key refers to.
type keyRecord struct {
	Run         string   `json:"run"`
	Fingerprint [32]byte `json:"fingerprint"`
}

// claimKey makes a key refer to a run. It returns a *event.KeyError if the key refers to
// another run that is still kept.
func (l *Log) claimKey(ctx context.Context, subject string, k keyRecord) error {
	body, err := json.Marshal(k)
	if err != nil {
		return fmt.Errorf("encode a key: %w", err)
	}
	for last := uint64(0); ; {
		m := nats.NewMsg(subject)
		m.Data = body
		m.Header.Set(writerHeader, l.instanceID)
		_, err := l.publishAfter(ctx, indexName, m, last, createTimeout)
		if !errors.Is(err, event.ErrFenced) && !errors.Is(err, event.ErrGone) {
			return l.createError(err)
		}
		found, err := l.readLastFromLeader(ctx, indexName, subject)
		if err != nil {
			return err
		}
		if last = 0; found == nil {
			continue
		}
		if err := l.checkKeyUnused(ctx, *found, k); err != nil {
			return err
		}
		last = found.pos
	}
}

// checkKeyUnused returns a *event.KeyError if the run that a stored key refers to is kept.
func (l *Log) checkKeyUnused(ctx context.Context, found message, k keyRecord) error {
	var other keyRecord
	if err := json.Unmarshal(found.data, &other); err != nil {
		return fmt.Errorf("decode a key: %w", err)
	}
	_, err := l.Run(ctx, other.Run)
	switch {
	case err == nil:
		return &event.KeyError{Run: other.Run, Same: other.Fingerprint == k.Fingerprint}
	case errors.Is(err, event.ErrGone), errors.Is(err, event.ErrNotFound):
		return nil
	}
	return err
}

// RunByKey implements event.Directory.
func (l *Log) RunByKey(ctx context.Context, owner event.Owner, key string) (event.Run, error) {
	m, err := l.readLast(ctx, indexName, keySubject(owner, key))
	if err != nil {
		return event.Run{}, err
	}
	if m == nil {
		return event.Run{}, event.ErrNotFound
	}
	var k keyRecord
	if err := json.Unmarshal(m.data, &k); err != nil {
		return event.Run{}, fmt.Errorf("decode a key: %w", err)
	}
	run, err := l.awaitStart(ctx, k.Run)
	if errors.Is(err, event.ErrGone) {
		err = event.ErrNotFound
	}
	run.Fingerprint = k.Fingerprint
	return run, err
}

// awaitStart returns a run once it has its first event. An instance that dies while it creates a
// run leaves a key that refers to a run without events. So awaitStart waits for one lease only.
// It then returns ErrStarting if the run has a job, which another instance will soon claim, and
// otherwise ErrGone: the run was abandoned, and its key may be used again. The lease is measured
// here, because the clocks of instances may differ.
func (l *Log) awaitStart(ctx context.Context, id string) (event.Run, error) {
	lease := time.NewTimer(l.lease)
	defer lease.Stop()
	for {
		run, err := l.Run(ctx, id)
		if err != nil || run.Last.Seq > 0 {
			return run, err
		}
		page, err := l.After(ctx, id, 0)
		if err != nil {
			return run, err
		}
		if len(page.Events) > 0 {
			continue
		}
		select {
		case <-page.More:
		case <-lease.C:
			if err := l.abandonUnstarted(ctx, id); !errors.Is(err, event.ErrFenced) {
				return run, err
			}
			// Another instance appended a message first. The next round returns the run if
			// that was its first event, and ErrGone if the run was abandoned. A claim is not an
			// event, so the instance that claimed the run gets one more lease to append one.
			lease.Reset(l.lease)
		case <-ctx.Done():
			return run, unavailableError("wait for the start of a run", context.Cause(ctx))
		case <-l.ctx.Done():
			return run, unavailableError("wait for the start of a run", l.ctx.Err())
		}
	}
}

// abandonUnstarted makes a run without messages impossible to start, and returns ErrGone. It returns
// ErrFenced if the run got a message meanwhile, and ErrStarting if an instance executes it or
// will soon. The run's creator may be alive and slow: its first append expects that the run has
// no message, and fails.
func (l *Log) abandonUnstarted(ctx context.Context, id string) error {
	r, err := l.getRun(id)
	if err != nil {
		return err
	}
	r.mu.Lock()
	isCreator := r.writer != nil
	r.mu.Unlock()
	if isCreator {
		return event.ErrStarting
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	switch _, err := l.jobsStream.GetLastMsgForSubject(ctx, jobPrefix+id); {
	case err == nil:
		return event.ErrStarting
	case !errors.Is(err, js.ErrMsgNotFound):
		return unavailableError("look for the job of a run", err)
	}
	rec, err := l.readRecord(ctx, id)
	if err != nil {
		return err
	}
	m := nats.NewMsg(runSubject(id, eventToken))
	m.Header.Set(writerHeader, writerID{instance: l.instanceID, attempt: 1, kind: kindAbandoned}.String())
	if _, err := l.publishAfter(ctx, runsName, m, 0, createTimeout); err != nil {
		return err
	}
	l.logger.Warn("a run was not started by the process that created it", "run_id", id)
	l.markGone(id)
	if err := l.writeTombstone(ctx, id, *rec); err != nil {
		return err
	}
	return event.ErrGone
}

// removalTTL is how long the message that removes a value is kept.
const removalTTL = time.Minute

// Value implements values.Store. The revision is the position of the key's message. It asks the
// leader, since a replica of the stream may have an older value, such as a refresh token that was
// used already.
func (l *Log) Value(ctx context.Context, key values.Key) ([]byte, uint64, error) {
	m, err := l.readLastFromLeader(ctx, valuesName, valuePrefix+key.String())
	if err != nil || m == nil {
		return nil, 0, err
	}
	return m.data, m.pos, nil
}

// SetValue implements values.Store. The server compares the position and removes the value after
// its ttl, so the clocks of instances do not matter.
func (l *Log) SetValue(ctx context.Context, key values.Key, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	if len(value) > values.MaxSize {
		return 0, values.ErrTooLarge
	}
	if len(value) == 0 {
		ttl = removalTTL
	}
	m := nats.NewMsg(valuePrefix + key.String())
	m.Data = value
	// The attempt is part of the writer: resolveConflict must not take the same value of another
	// goroutine for a message that this call has sent.
	m.Header.Set(writerHeader, l.instanceID+" "+rand.Text())
	m.Header.Set(js.MsgTTLHeader, strconv.FormatInt(max(1, int64(ttl/time.Second)), 10)+"s")
	pos, err := l.publishAfter(ctx, valuesName, m, revision, createTimeout)
	switch {
	case errors.Is(err, event.ErrFenced), errors.Is(err, event.ErrGone):
		return 0, nil
	case isFull(err):
		return 0, fmt.Errorf("%w: %w", values.ErrFull, err)
	}
	return pos, err
}
