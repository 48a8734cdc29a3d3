package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

// keyRecord is what an idempotency key stands for.
type keyRecord struct {
	Run         string   `json:"run"`
	Fingerprint [32]byte `json:"fingerprint"`
}

func keySubject(o event.Owner, key string) string { return keyRoot + digest(o.Issuer, o.Subject, key) }

// claimKey makes a key stand for a run, unless it stands for one that is kept.
func (l *Log) claimKey(ctx context.Context, subject string, k keyRecord) error {
	body, err := json.Marshal(k)
	if err != nil {
		return fmt.Errorf("encode a key: %w", err)
	}
	for last := uint64(0); ; {
		m := nats.NewMsg(subject)
		m.Data = body
		m.Header.Set(writerHeader, l.name)
		_, err := l.publish(ctx, indexName, m, last, createPatience)
		if !errors.Is(err, event.ErrFenced) && !errors.Is(err, event.ErrGone) {
			return l.created(err)
		}
		found, err := l.lastAtLeader(ctx, indexName, subject)
		if err != nil {
			return err
		}
		if last = 0; found == nil {
			continue
		}
		var other keyRecord
		if err := json.Unmarshal(found.data, &other); err != nil {
			return fmt.Errorf("decode a key: %w", err)
		}
		switch _, err := l.Run(ctx, other.Run); {
		case err == nil:
			return &event.KeyError{Run: other.Run, Same: other.Fingerprint == k.Fingerprint}
		case !errors.Is(err, event.ErrGone) && !errors.Is(err, event.ErrNotFound):
			return err
		}
		last = found.at
	}
}

// RunByKey implements event.Directory.
func (l *Log) RunByKey(ctx context.Context, owner event.Owner, key string) (event.Run, error) {
	m, err := l.last(ctx, indexName, keySubject(owner, key))
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
	run, err := l.Run(ctx, k.Run)
	if errors.Is(err, event.ErrGone) {
		err = event.ErrNotFound
	}
	run.Fingerprint = k.Fingerprint
	return run, err
}
