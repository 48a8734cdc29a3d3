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
	err = l.createEntry(ctx, w, owner, nil)
	if err == nil {
		err = l.createEntry(ctx, w, recordPrefix+run.ID, body)
	}
	if err == nil && rec.Key != "" {
		err = l.claimKey(ctx, rec.Key, keyRecord{run.ID, run.Fingerprint})
	}
	if err != nil {
		if !errors.Is(err, event.ErrExists) { // else the messages are those of the other run
			// No caller knows of the run yet. If the removal fails, retention repeats it.
			cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
			defer cancel()
			_ = purgeSubject(cleanup, l.indexStream, recordPrefix+run.ID)
			_ = purgeSubject(cleanup, l.indexStream, owner)
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

// createEntry writes a message about a run to a subject of the index, which must be empty.
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

// BeginThread implements event.Log. It sends the head of the thread and does not wait for the acknowledgement. If the
// server refuses the head or does not answer, BeginTurn tries again, and deletes other threads if the stream is full.
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
	sent, err := w.sendAhead(threads.HeadsStream, m, func(ctx context.Context, sent sentMessage) error {
		pos, err := l.awaitAck(ctx, sent)
		if err != nil {
			return beginTurn(ctx)
		}
		addToIndex(pos)
		return nil
	})
	if err != nil || !sent {
		return beginTurn(ctx)
	}
	return nil
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
		last = 0
		if found == nil {
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
	var used keyRecord
	if err := json.Unmarshal(m.data, &used); err != nil {
		return event.Run{}, fmt.Errorf("decode a key: %w", err)
	}
	run, err := l.awaitStart(ctx, used.Run)
	if errors.Is(err, event.ErrGone) {
		err = event.ErrNotFound
	}
	run.Fingerprint = used.Fingerprint
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
	_, err = l.jobsStream.GetLastMsgForSubject(ctx, jobPrefix+id)

	switch {
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
