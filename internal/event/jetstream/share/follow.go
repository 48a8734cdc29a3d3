package share

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
)

const (
	// batch is the largest number of messages that one pull request asks for.
	batch = 512
	// pullTimeout is how long the server may take to answer a pull request.
	pullTimeout = 5 * time.Second
	// inactiveThreshold is how long the server keeps a consumer without pull requests.
	inactiveThreshold = time.Minute
	// rebuildInterval is the shortest time between two calls of Follow that read the whole stream.
	rebuildInterval = time.Minute
	// messageOverhead is how many bytes the server counts for a message in addition to its subject, headers and
	// payload. headerOverhead is how many it counts for the headers in addition to their lines (nats-server 2.15).
	messageOverhead = 34
	headerOverhead  = 12
)

// pullRequest is the body of a pull request. The server answers it at once, with fewer messages if it has no more.
var pullRequest = fmt.Appendf(nil, `{"batch":%d,"no_wait":true}`, batch)

// errGap says that the consumer's sequence numbers have a gap, because a message did not arrive or the server has
// created the consumer again.
var errGap = errors.New("a message of the consumer is missing")

// Follow reads what the log has stored since the last call, and adds it to the Table. used is the stream's current size
// in bytes. A Table does not notice deletions by other processes. So if it counts more than 9/8 of used, or has the
// sizes of maxRuns runs, Follow reads the whole stream again, but at most once per rebuildInterval.
//
// If Follow fails, the next call continues where this one stopped. While only one owner has runs, Follow does not read
// the sizes of runs, because a single owner cannot be above their share.
func (t *Table) Follow(ctx context.Context, used int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	countsDeleted := t.complete && t.total > used/8*9
	outdated := countsDeleted || t.sized >= maxRuns
	switch {
	case t.built.IsZero(): // the Table is empty
		t.built = time.Now()
	case outdated && time.Since(t.built) > rebuildInterval:
		t.closeLocked(ctx)
		t.resetLocked()
		t.built = time.Now()
	}
	if err := t.readOwnersLocked(ctx); err != nil || len(t.owners) < 2 {
		return err
	}
	for t.sized < maxRuns {
		more, err := t.pullLocked(ctx)
		if err != nil {
			t.closeLocked(ctx)
			return fmt.Errorf("read the sizes of runs: %w", err)
		}
		if !more {
			break
		}
	}
	t.complete = true
	// Read the index again, for the owners of runs that were created while the messages were being read.
	return t.readOwnersLocked(ctx)
}

// readOwnersLocked reads the entries that were added to the index since the last call. It accepts an eighth more runs
// than maxRuns, because the index may have runs without messages, and because the index and the stream may have runs
// that start at the same time in different orders. The caller holds t.mu.
func (t *Table) readOwnersLocked(ctx context.Context) error {
	for len(t.runs) < maxRuns+maxRuns/8 {
		entries, more, err := t.source.Entries(ctx, t.nextEntry)
		if err != nil {
			return fmt.Errorf("read the owners of runs: %w", err)
		}
		for _, e := range entries {
			t.setOwnerLocked(e.ID, e.Owner)
			t.nextEntry = e.Pos + 1
		}
		if !more || len(entries) == 0 {
			break
		}
	}
	return nil
}

// Reset empties the Table and removes its consumer, to save memory while the log has enough space and evicts no runs.
// The next call of Follow reads the whole stream.
func (t *Table) Reset(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.built.IsZero() {
		return
	}
	t.closeLocked(ctx)
	t.resetLocked()
}

// closeLocked removes the consumer, if one exists. If the request fails, the server removes the consumer after
// inactiveThreshold. The caller holds t.mu.
func (t *Table) closeLocked(ctx context.Context) {
	if t.consumer != "" {
		ctx, cancel := context.WithTimeout(ctx, pullTimeout)
		defer cancel()
		_ = t.source.JetStream.DeleteConsumer(ctx, t.source.Stream, t.consumer)
		t.consumer = ""
	}
}

// openLocked creates a consumer that delivers messages without their payloads, starting at t.next. The server keeps the
// consumer in memory, so it can be created even if the disk or the account is full. The caller holds t.mu.
func (t *Table) openLocked(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	c, err := t.source.JetStream.CreateConsumer(ctx, t.source.Stream, js.ConsumerConfig{
		DeliverPolicy:     js.DeliverByStartSequencePolicy,
		OptStartSeq:       t.next,
		AckPolicy:         js.AckNonePolicy,
		HeadersOnly:       true,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: inactiveThreshold,
	})
	if err != nil {
		return err
	}
	t.consumer = c.CachedInfo().Name
	t.received = 0
	return nil
}

// pullLocked counts the stream's next messages, at most batch of them. more is true if the stream may have more
// messages. After an error, the messages counted so far stay counted. The caller holds t.mu.
func (t *Table) pullLocked(ctx context.Context) (more bool, err error) {
	if t.consumer == "" {
		if err := t.openLocked(ctx); err != nil {
			return false, err
		}
	}

	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	answers := make(chan *nats.Msg, batch+1) // the messages, and a status
	sub, err := t.source.Conn.ChanSubscribe(t.source.Conn.NewInbox(), answers)
	if err != nil {
		return false, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails on a closed connection only
	subject := "$JS.API.CONSUMER.MSG.NEXT." + t.source.Stream + "." + t.consumer
	if err := t.source.Conn.PublishRequest(subject, sub.Subject, pullRequest); err != nil {
		return false, err
	}

	for range batch {
		var msg *nats.Msg
		select {
		case msg = <-answers:
		case <-ctx.Done():
			return false, ctx.Err()
		}
		switch status := msg.Header.Get("Status"); status {
		case "":
		case "404", "408": // no message, or no further one, is available for this request
			return false, nil
		default:
			return false, fmt.Errorf("status %s", status)
		}
		metadata, err := msg.Metadata()
		if err != nil {
			return false, err
		}
		t.received++
		if metadata.Sequence.Consumer != t.received {
			return false, errGap
		}
		// Continue even if no message is pending after this one, until the server sends the status. Until then,
		// messages that are being stored can still arrive.
		pos := metadata.Sequence.Stream
		id, isEvent := t.source.Run(msg.Subject)
		t.addLocked(id, isEvent, pos, storedSize(msg))
		t.next = pos + 1
	}
	return true, nil
}

// storedSize returns how many bytes the stream counts for a message that was delivered without its payload. Such a
// message has the payload's length in the header nats.MsgSize. storedSize removes that header, because it is not
// stored.
func storedSize(msg *nats.Msg) int64 {
	payload, _ := strconv.ParseInt(msg.Header.Get(nats.MsgSize), 10, 64) // the server writes a valid number
	msg.Header.Del(nats.MsgSize)
	size := payload + int64(len(msg.Subject)) + messageOverhead
	if len(msg.Header) > 0 {
		size += headerOverhead
	}
	for name, values := range msg.Header {
		for _, value := range values {
			size += int64(len(name) + len(value) + len(": \r\n"))
		}
	}
	return size
}
