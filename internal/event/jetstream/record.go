package jetstream

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
	"answerd/internal/values"
)

// record is the content of a run's message in the index: the run's properties without its events, or a tombstone.
type record struct {
	ThreadID   string    `json:"thread"`
	TraceID    string    `json:"trace"`
	Issuer     string    `json:"issuer"`
	Subject    string    `json:"subject"`
	Created    time.Time `json:"created"`
	Background bool      `json:"background,omitempty"`
	Request    []byte    `json:"request,omitempty"`
	Key        string    `json:"key,omitempty"`  // subject of the idempotency key's record; "" without a key
	Gone       bool      `json:"gone,omitempty"` // the record is a tombstone
	Agent      string    `json:"agent,omitempty"`
	ParentID   string    `json:"parent,omitempty"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

// newRecord returns the record of a run.
func newRecord(run event.Run) record {
	rec := record{
		ThreadID:   run.ThreadID,
		TraceID:    run.TraceID,
		Issuer:     run.Owner.Issuer,
		Subject:    run.Owner.Subject,
		Created:    run.Created,
		Background: run.Background,
		Metadata:   run.Metadata,
		Request:    run.Request,
		Agent:      run.Agent,
		ParentID:   run.ParentID,
	}
	if run.Key != "" {
		rec.Key = keySubject(run.Owner, run.Key)
	}
	return rec
}

// toRun returns the run with the given id and the properties in rec. Its newest event and its idempotency key are not
// set.
func (rec *record) toRun(id string) event.Run {
	return event.Run{
		ID:         id,
		ThreadID:   rec.ThreadID,
		TraceID:    rec.TraceID,
		Owner:      event.Owner{Issuer: rec.Issuer, Subject: rec.Subject},
		Created:    rec.Created,
		Background: rec.Background,
		Metadata:   rec.Metadata,
		Request:    rec.Request,
		Agent:      rec.Agent,
		ParentID:   rec.ParentID,
	}
}

// readRecord reads a run's record, which may be a tombstone. It returns event.ErrNotFound if the run has no record.
func (c *client) readRecord(ctx context.Context, id string) (*record, error) {
	m, err := c.readLast(ctx, indexName, recordPrefix+id)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, event.ErrNotFound
	}
	return decodeRecord(m)
}

// decodeRecord decodes a record from its message in the index.
func decodeRecord(msg *message) (*record, error) {
	var rec record
	if err := json.Unmarshal(msg.Data, &rec); err != nil {
		return nil, fmt.Errorf("decode a run's record: %w", err)
	}
	return &rec, nil
}

// keyRecord is the content of an idempotency key's message in the index. It says which run the key refers to.
type keyRecord struct {
	Run         string   `json:"run"`         // the run's id
	Fingerprint [32]byte `json:"fingerprint"` // the Fingerprint of event.Run
}

// removalTTL is how long the server keeps the empty message that removes a value.
const removalTTL = time.Minute

// Value implements values.Store. The revision is the stream position of the key's message. Value asks the leader,
// because a replica of the stream may still have an older value, such as a refresh token that was already used.
func (c *client) Value(ctx context.Context, key values.Key) (value []byte, revision uint64, _ error) {
	m, err := c.readLastFromLeader(ctx, valuesName, valuePrefix+key.String())
	if err != nil || m == nil {
		return nil, 0, err
	}
	return m.Data, m.Pos, nil
}

// SetValue implements values.Store. The server compares the revision, and it removes the value after ttl, so the clocks
// of instances do not matter. An empty value is stored as an empty message, which the server removes after removalTTL.
// newRevision is 0 if revision is out of date.
func (c *client) SetValue(ctx context.Context, key values.Key, value []byte, revision uint64, ttl time.Duration) (newRevision uint64, _ error) {
	if len(value) > values.MaxSize {
		return 0, values.ErrTooLarge
	}
	if len(value) == 0 {
		ttl = removalTTL
	}
	m := nats.NewMsg(valuePrefix + key.String())
	m.Data = value
	// Use a random header for each call. Otherwise resolveConflict could mistake an equal value from another goroutine
	// for a message that this call has sent.
	m.Header.Set(writerHeader, c.instanceID+" "+rand.Text())
	seconds := max(1, int64(ttl/time.Second)) // the server accepts no shorter time
	m.Header.Set(js.MsgTTLHeader, strconv.FormatInt(seconds, 10)+"s")
	pos, err := c.publishAfter(ctx, valuesName, m, revision, createTimeout)
	switch {
	case errors.Is(err, event.ErrFenced), errors.Is(err, event.ErrGone):
		return 0, nil
	case isFull(err):
		return 0, fmt.Errorf("%w: %w", values.ErrFull, err)
	}
	return pos, err
}
