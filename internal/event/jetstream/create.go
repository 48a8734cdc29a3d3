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
	"answerd/internal/event/jetstream/threads"
)

// NewID implements event.Log. The id is random, so that it cannot be guessed.
func (l *Log) NewID() string { return "run_" + strings.ToLower(rand.Text()) }

// Create implements event.Log. It writes the owner's index entry first. Retention finds runs by these entries, so it
// also removes a run whose creation was interrupted.
func (l *Log) Create(ctx context.Context, run event.Run) error {
	if l.diskFull.Load() {
		return fmt.Errorf("create a run: %w", event.ErrUnavailable)
	}
	r, err := l.getOrAddRun(run.ID)
	if err != nil {
		return err
	}
	rec := newRecord(run)
	r.mu.Lock()
	exists := r.record != nil
	r.mu.Unlock()
	if exists {
		return event.ErrExists
	}
	w := newWriter(r, 0, event.Event{}, firstAttempt) // the run has no messages yet
	if err := l.createEntries(ctx, w, run, &rec); err != nil {
		if !errors.Is(err, event.ErrExists) { // otherwise the entries belong to the existing run
			l.removeEntries(ctx, run)
		}
		return err
	}
	l.updateRun(r, func() {
		r.record = &rec
		r.loaded = true
		r.hasNoInputs = true
		r.writer = w
	})
	return nil
}

// createEntries writes the owner's index entry, the record and the idempotency key of a new run. It returns
// event.ErrExists if the run exists, and an *event.KeyError if the key refers to another run.
func (l *Log) createEntries(ctx context.Context, w *writer, run event.Run, rec *record) error {
	body, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode a run's record: %w", err)
	}
	if err := l.createEntry(ctx, w, ownerSubject(run), nil); err != nil {
		return err
	}
	if err := l.createEntry(ctx, w, recordPrefix+run.ID, body); err != nil {
		return err
	}
	if rec.Key == "" {
		return nil
	}
	return l.claimKey(ctx, rec.Key, keyRecord{Run: run.ID, Fingerprint: run.Fingerprint})
}

// removeEntries removes what Create has written for a run that could not be created. The run's id has not been returned
// to any caller yet. If removeEntries fails, retention removes the entries later.
func (l *Log) removeEntries(ctx context.Context, run event.Run) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()
	_ = purgeSubject(ctx, l.indexStream, recordPrefix+run.ID)
	_ = purgeSubject(ctx, l.indexStream, ownerSubject(run))
}

// createEntry writes a message about a new run to a subject of the index. If no other process uses the log (l.alone),
// createEntry only sends the message, and the run's first append waits until it is stored (sendAhead). Otherwise
// createEntry waits, and returns event.ErrExists if the subject already has a message.
func (l *Log) createEntry(ctx context.Context, w *writer, subject string, body []byte) error {
	m := nats.NewMsg(subject)
	m.Data = body
	m.Header.Set(writerHeader, l.instanceID)
	if l.alone {
		_, err := w.sendAhead(indexName, m, l.awaitSent)
		return err
	}
	_, err := l.publishAfter(ctx, indexName, m, 0, createTimeout)
	return l.createError(err)
}

// BeginThread implements event.Log. It sends the thread's head without waiting for the acknowledgement. The run's first
// append waits for it (sendAhead). If the server refuses the head or does not answer, that append calls BeginTurn,
// which tries again and deletes other threads if the stream is full.
func (l *Log) BeginThread(ctx context.Context, run event.Run, title string) error {
	w, err := l.writerFor(ctx, run.ID)
	if err != nil {
		return err
	}
	m, addToIndex, err := l.threads.FirstTurn(ctx, run, title)
	if err != nil {
		return err
	}
	beginTurn := func(ctx context.Context) error {
		_, err := l.BeginTurn(ctx, run.Owner, run.ThreadID, run.ID, run.Agent, title)
		return err
	}
	isEarly, err := w.sendAhead(threads.HeadsStream, m, func(ctx context.Context, sent sentMessage) error {
		pos, err := l.awaitAck(ctx, sent)
		if err != nil {
			return beginTurn(ctx)
		}
		addToIndex(pos)
		return nil
	})
	if err != nil || !isEarly {
		return beginTurn(ctx)
	}
	return nil
}

// claimKey stores key on subject, so that the idempotency key with that subject refers to the run key.Run. It returns
// an *event.KeyError if the key refers to another run that is still kept.
func (l *Log) claimKey(ctx context.Context, subject string, key keyRecord) error {
	body, err := json.Marshal(key)
	if err != nil {
		return fmt.Errorf("encode a key: %w", err)
	}
	for last := uint64(0); ; { // last is the pos of the record to replace; 0 if the key is unused
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
		if found == nil { // the record was removed after publishAfter failed
			last = 0
			continue
		}
		if err := l.checkKeyUnused(ctx, *found, key); err != nil {
			return err
		}
		last = found.Pos
	}
}

// checkKeyUnused returns nil if the run that a stored idempotency key refers to is no longer kept. If it is still kept,
// it returns an *event.KeyError. found is the stored record, and key is the record that is to replace it.
func (l *Log) checkKeyUnused(ctx context.Context, found message, key keyRecord) error {
	var other keyRecord
	if err := json.Unmarshal(found.Data, &other); err != nil {
		return fmt.Errorf("decode a key: %w", err)
	}
	_, err := l.Run(ctx, other.Run)
	switch {
	case err == nil:
		return &event.KeyError{Run: other.Run, Same: other.Fingerprint == key.Fingerprint}
	case errors.Is(err, event.ErrGone), errors.Is(err, event.ErrNotFound):
		return nil
	}
	return err
}

// RunByKey implements event.Directory. It waits for the run's first event for up to several leases (see awaitStart).
func (l *Log) RunByKey(ctx context.Context, owner event.Owner, key string) (event.Run, error) {
	m, err := l.readLast(ctx, indexName, keySubject(owner, key))
	if err != nil {
		return event.Run{}, err
	}
	if m == nil {
		return event.Run{}, event.ErrNotFound
	}
	var k keyRecord
	if err := json.Unmarshal(m.Data, &k); err != nil {
		return event.Run{}, fmt.Errorf("decode a key: %w", err)
	}
	run, err := l.awaitStart(ctx, k.Run)
	if errors.Is(err, event.ErrGone) { // the run is gone, so the key may be used again
		err = event.ErrNotFound
	}
	run.Fingerprint = k.Fingerprint
	return run, err
}

// awaitStart waits until a run has its first event, and returns the run. An instance that dies while it creates a run
// leaves a key that refers to a run without events, so awaitStart waits for only one lease. After that it returns
// event.ErrStarting if this instance creates the run or the run has a job, which another instance will soon claim.
// Otherwise it abandons the run and returns event.ErrGone, so that the key may be used again. The lease is measured
// with this instance's monotonic clock, because the clocks of instances may differ.
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
		if len(page.Events) > 0 { // the first event has arrived since l.Run
			continue
		}
		select {
		case <-page.More:
		case <-lease.C:
			if err := l.abandonUnstarted(ctx, id); !errors.Is(err, event.ErrFenced) {
				return run, err
			}
			// Another instance appended a message first. If it is the first event, the next iteration returns the run.
			// If it abandons the run, the next iteration returns ErrGone. If it is a claim, which is not an event, the
			// claiming instance gets one more lease to append an event.
			lease.Reset(l.lease)
		case <-ctx.Done():
			return run, unavailableError("wait for the start of a run", context.Cause(ctx))
		case <-l.ctx.Done():
			return run, unavailableError("wait for the start of a run", l.ctx.Err())
		}
	}
}

// abandonUnstarted abandons a run that has no messages (see abandon), and returns event.ErrGone. It returns
// event.ErrStarting if this instance is the run's writer or the run has a job, and event.ErrFenced if the run has
// received a message.
func (l *Log) abandonUnstarted(ctx context.Context, id string) error {
	r, err := l.getOrAddRun(id)
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
	_, err = l.jobsStream.GetLastMsgForSubject(ctx, jobPrefix+id)
	switch {
	case err == nil:
		return event.ErrStarting
	case !errors.Is(err, js.ErrMsgNotFound):
		return unavailableError("look for the job of a run", err)
	}
	if err := l.abandon(ctx, id); err != nil {
		return err
	}
	l.logger.Warn("a run was not started by the process that created it", "run_id", id)
	return event.ErrGone
}
