package share

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
)

const (
	// batch bounds the messages of one pull request.
	batch = 512
	// pullTimeout bounds the time until the server has answered a pull request.
	pullTimeout = 5 * time.Second
	// inactiveThreshold is after how long without a pull request the server removes the consumer.
	inactiveThreshold = time.Minute
	// rebuildInterval separates two times at which the whole stream is read.
	rebuildInterval = time.Minute
	// messageOverhead is what the server counts for a message besides its subject, headers and payload,
	// and headerOverhead for the headers besides their names and values (nats-server 2.15).
	messageOverhead = 34
	headerOverhead  = 12
)

// errGap means that the consumer has lost a message, or is not the one that was made.
var errGap = errors.New("a message of the consumer is missing")

// Follow updates the Table with what the log stored since the last call. used is how many bytes the stream has.
// The Table does not see the deletions by other processes. When it counts an eighth more bytes than the stream has,
// or too many runs, Follow reads the whole stream again, at most once per rebuildInterval.
//
// If Follow fails, the next call continues where it stopped. As long as there is only one owner, Follow does not read
// the sizes of runs: a single owner cannot be above their share.
func (t *Table) Follow(ctx context.Context, used int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	countsDeleted := t.complete && t.total > used/8*9
	outdated := countsDeleted || len(t.runs) >= maxRuns
	switch {
	case t.built.IsZero():
		t.built = time.Now()
	case outdated && time.Since(t.built) > rebuildInterval:
		t.closeLocked(ctx)
		t.resetLocked()
		t.built = time.Now()
	}
	if err := t.readOwnersLocked(ctx); err != nil || len(t.owners) < 2 {
		return err
	}
	for more := true; more && len(t.runs) < maxRuns; {
		var err error
		if more, err = t.pullLocked(ctx); err != nil {
			t.closeLocked(ctx)
			return fmt.Errorf("read the sizes of runs: %w", err)
		}
	}
	t.complete = true
	// The entry of a run is stored before its first message, so the runs found above have theirs now.
	return t.readOwnersLocked(ctx)
}

// readOwnersLocked reads the entries that were added to the index.
func (t *Table) readOwnersLocked(ctx context.Context) error {
	for more := true; more && len(t.runs) < maxRuns+maxRuns/8; {
		entries, further, err := t.source.Entries(ctx, t.entry)
		if err != nil {
			return fmt.Errorf("read the owners of runs: %w", err)
		}
		for _, e := range entries {
			t.setOwnerLocked(e.ID, e.Owner)
			t.entry = e.Pos + 1
		}
		more = further && len(entries) > 0
	}
	return nil
}

// Reset forgets all runs and removes the consumer, while the log has so much space that nobody needs
// them.
func (t *Table) Reset(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.built.IsZero() {
		return
	}
	t.closeLocked(ctx)
	t.resetLocked()
}

// closeLocked removes the consumer. If that fails, the server does it after inactiveThreshold.
func (t *Table) closeLocked(ctx context.Context) {
	if t.consumer != "" {
		ctx, cancel := context.WithTimeout(ctx, pullTimeout)
		defer cancel()
		_ = t.source.JetStream.DeleteConsumer(ctx, t.source.Stream, t.consumer)
		t.consumer = ""
	}
}

// openLocked makes a consumer that delivers the headers of messages, from where Follow stopped. It is in
// the server's memory, so a full disk or account does not prevent it.
func (t *Table) openLocked(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	c, err := t.source.JetStream.CreateConsumer(ctx, t.source.Stream, js.ConsumerConfig{
		DeliverPolicy: js.DeliverByStartSequencePolicy, OptStartSeq: t.next, AckPolicy: js.AckNonePolicy, HeadersOnly: true,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: inactiveThreshold,
	})
	if err == nil {
		t.consumer, t.received = c.CachedInfo().Name, 0
	}
	return err
}

// pullLocked reads one batch of messages. more reports whether the stream has further ones.
func (t *Table) pullLocked(ctx context.Context) (more bool, err error) {
	if t.consumer == "" {
		if err := t.openLocked(ctx); err != nil {
			return false, err
		}
	}

	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	answers := make(chan *nats.Msg, batch+1)
	sub, err := t.source.Conn.ChanSubscribe(t.source.Conn.NewInbox(), answers)
	if err != nil {
		return false, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails on a closed connection only
	body, err := json.Marshal(map[string]any{"batch": batch, "no_wait": true})
	if err == nil {
		err = t.source.Conn.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+t.source.Stream+"."+t.consumer, sub.Subject, body)
	}
	if err != nil {
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
		case "404", "408": // no message, or no further one
			return false, nil
		default:
			return false, fmt.Errorf("status %s", status)
		}
		about, err := msg.Metadata()
		if err != nil {
			return false, err
		}
		t.received++
		if about.Sequence.Consumer != t.received {
			return false, errGap
		}
		// A message without others after it is not the end of the request: until the server says so, it delivers
		// to the request what is stored meanwhile.
		t.countLocked(msg, about.Sequence.Stream)
	}
	return true, nil
}

// countLocked counts a message of the stream.
func (t *Table) countLocked(msg *nats.Msg, pos uint64) {
	t.next = pos + 1
	payload, _ := strconv.ParseInt(msg.Header.Get(nats.MsgSize), 10, 64) // the server writes it
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
	id, isEvent := t.source.Run(msg.Subject)
	t.addLocked(id, isEvent, pos, size)
}
