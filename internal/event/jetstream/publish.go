package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
)

const (
	appendTimeout  = 30 * time.Second // how long an append is repeated while the log does not answer
	createTimeout  = 5 * time.Second  // the same for a new run, whose caller can ask again
	attemptTimeout = time.Second      // of one attempt
	retryInterval  = 100 * time.Millisecond
)

// Error codes of the server.
const (
	storeFailedCode = 10077 // a limit of a stream, and a disk that fails
	accountFullCode = 10002 // the storage limit of an account
	serverFullCode  = 10023 // the storage limit of a server
	storageFullCode = 10047
	noPeersCode     = 10005 // a cluster has too few servers for the replicas of a stream
)

// errDiskFull means that recoverDisk has to free space first.
var errDiskFull = errors.New("the disk is full")

// errNoLeader means that a stream of a cluster has no leader at the moment.
var errNoLeader = errors.New("the stream has no leader")

// errUndecided means that a server refused an append that it should have accepted. In a cluster,
// an earlier attempt may be stored on one server before the others have agreed to it.
var errUndecided = errors.New("not decided yet")

// publishAfter appends msg to its subject and returns the pos of msg. The last message of the
// subject must be at pos last; 0 means that the subject must be empty. The append is repeated
// until it is certain whether the stream has msg, but no longer than within.
//
// This expectation fences writers: two processes that both believe to be the writer of a run
// expect the same last message, and the server accepts only one of them. The other one gets
// ErrFenced. After an attempt without an answer, the stream may already have msg. A repetition
// then fails like a fenced append, and resolveConflict tells the two cases apart. A Nats-Msg-Id
// would not help, because the server checks the expectation first.
func (c *client) publishAfter(ctx context.Context, stream string, msg *nats.Msg, last uint64, within time.Duration) (uint64, error) {
	return c.publishAfterTry(ctx, stream, msg, last, within, false)
}

// publishAfterTry does the same. repeated says that an earlier call for the same message was not certain whether the stream
// has it.
func (c *client) publishAfterTry(ctx context.Context, stream string, msg *nats.Msg, last uint64, within time.Duration, repeated bool) (uint64, error) {
	if c.diskFull.Load() { // the remaining space is for deleting runs
		return 0, unavailableError("append to the log", errDiskFull)
	}
	msg.Header.Set(js.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
	begun := time.Now()
	ack, err := c.publishOnce(ctx, msg)
	if err == nil {
		return ack.Sequence, nil
	}
	return c.publishAgain(ctx, stream, msg, last, begun.Add(within), err, repeated)
}

// publishAgain repeats an append after an attempt that failed with err, until it is certain whether the stream has
// msg, but no longer than until deadline. repeated says that there were other attempts before that one.
func (c *client) publishAgain(ctx context.Context, stream string, msg *nats.Msg, last uint64, deadline time.Time, err error, repeated bool) (uint64, error) {
	within := time.Until(deadline)
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, event.ErrUnavailable)
	defer cancel()
	for {
		switch {
		case isWrongLastSequence(err):
			if pos, err := c.resolveConflict(ctx, stream, msg, last, repeated); !errors.Is(err, errUndecided) {
				return pos, err
			}
		case c.diskFailed(), isFull(err) && within <= createTimeout: // the caller can create another run later
			c.expireSoon(err)
			return 0, unavailableError("append to the log", err)
		case isFull(err): // keep trying: runs may be deleted meanwhile
			c.expireSoon(err)
		case isPermanent(err):
			return 0, fmt.Errorf("append to the log: %w", err)
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return 0, unavailableError("append to the log", err)
		case <-c.ctx.Done():
			return 0, unavailableError("append to the log", err)
		}
		// The same bytes with the same expectation.
		var ack *js.PubAck
		if ack, err = c.publishOnce(ctx, msg); err == nil {
			return ack.Sequence, nil
		}
		repeated = true
	}
}

// sentMessage is a message that is not acknowledged yet.
type sentMessage struct {
	stream string
	m      *nats.Msg
	ack    js.PubAckFuture
}

// send sends a message to a subject that must be empty, and does not wait for the acknowledgement.
func (c *client) send(stream string, msg *nats.Msg) (sentMessage, error) {
	if c.diskFull.Load() {
		return sentMessage{}, unavailableError("append to the log", errDiskFull)
	}
	msg.Header.Set(js.ExpectedLastSubjSeqHeader, "0")
	ack, err := c.js.PublishMsgAsync(msg)
	if err != nil {
		return sentMessage{}, unavailableError("append to the log", err)
	}
	return sentMessage{stream, msg, ack}, nil
}

// awaitSent waits until a message is stored. If it was not, awaitSent repeats the append as publishAfter does.
func (c *client) awaitSent(ctx context.Context, sent sentMessage) error {
	deadline := time.Now().Add(createTimeout)
	_, err := c.awaitAck(ctx, sent)
	if err == nil || c.ctx.Err() != nil {
		return err
	}
	_, err = c.publishAgain(context.WithoutCancel(ctx), sent.stream, sent.m, 0, deadline, err, true)
	return c.createError(err)
}

// awaitAck waits for the acknowledgement of a message and returns the message's pos. After an error, the message may be
// stored or not. A message has one acknowledgement, so awaitAck must be called once for each.
func (c *client) awaitAck(ctx context.Context, sent sentMessage) (uint64, error) {
	select {
	case ack := <-sent.ack.Ok(): // as nearly always
		return ack.Sequence, nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	select {
	case ack := <-sent.ack.Ok():
		return ack.Sequence, nil
	case err := <-sent.ack.Err():
		return 0, err
	case <-ctx.Done():
		return 0, unavailableError("append to the log", ctx.Err())
	case <-c.ctx.Done():
		return 0, unavailableError("append to the log", c.ctx.Err())
	}
}

// resolveConflict finds out why the last message of m's subject is not at last. If the last
// message is msg, stored by an earlier attempt whose acknowledgement was lost, it returns the pos
// of msg. If another writer's message is last, it returns ErrFenced.
func (c *client) resolveConflict(ctx context.Context, stream string, msg *nats.Msg, last uint64, repeated bool) (uint64, error) {
	found, err := c.readLastFromLeader(ctx, stream, msg.Subject)
	switch {
	case errors.Is(err, event.ErrUnavailable), err == nil && found == nil && last == 0, err == nil && found != nil && found.pos <= last:
		return 0, errUndecided
	case err != nil:
		return 0, err
	case found == nil:
		return 0, event.ErrGone // neither the expected message nor those before it are kept
	case repeated && string(found.data) == string(msg.Data) && found.header.Get(writerHeader) == msg.Header.Get(writerHeader):
		return found.pos, nil
	}
	return 0, event.ErrFenced
}

// publishUnordered appends msg without an expectation about the last message of its subject. It
// repeats the append until it is acknowledged, so the stream may get msg twice. accepts reports
// errors that count as success; nil accepts none.
func (c *client) publishUnordered(ctx context.Context, attempted string, msg *nats.Msg, accepts func(error) bool) error {
	if c.diskFull.Load() {
		return unavailableError(attempted, errDiskFull)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, appendTimeout, event.ErrUnavailable)
	defer cancel()
	for {
		_, err := c.publishOnce(ctx, msg)
		switch {
		case err == nil, accepts != nil && accepts(err):
			return nil
		case c.diskFailed():
			return unavailableError(attempted, err)
		case isFull(err):
			c.expireSoon(err)
		case isPermanent(err):
			return fmt.Errorf("%s: %w", attempted, err)
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return unavailableError(attempted, err)
		case <-c.ctx.Done():
			return unavailableError(attempted, err)
		}
	}
}

// publishRemoval makes one attempt to append m in place of its subject's last message, which must be at
// last. It returns ErrFenced if it is not. A log that recovers from a full disk has space for it.
func (c *client) publishRemoval(ctx context.Context, _ string, m *nats.Msg, last uint64) (uint64, error) {
	m.Header.Set(js.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
	ack, err := c.publishOnce(ctx, m)
	switch {
	case isWrongLastSequence(err):
		return 0, event.ErrFenced
	case err != nil:
		return 0, unavailableError("remove from the log", err)
	}
	return ack.Sequence, nil
}

// publishOnce makes one attempt to append m. It is a plain request, because PublishMsg of the client library
// would try again by itself.
func (c *client) publishOnce(ctx context.Context, m *nats.Msg) (*js.PubAck, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	answer, err := c.write.RequestMsgWithContext(ctx, m)
	if err != nil {
		return nil, err
	}
	var ack struct {
		js.PubAck
		Error *js.APIError `json:"error"`
	}
	err = json.Unmarshal(answer.Data, &ack)
	switch {
	case err != nil:
		return nil, js.ErrInvalidJSAck
	case ack.Error != nil:
		return nil, ack.Error
	case ack.Stream == "":
		return nil, js.ErrInvalidJSAck
	}
	return &ack.PubAck, nil
}

// isWrongLastSequence reports whether the subject's last message was not the one that an append
// expected.
func isWrongLastSequence(err error) bool {
	var api *js.APIError
	if !errors.As(err, &api) {
		return false
	}
	return api.ErrorCode == js.JSErrCodeStreamWrongLastSequence || api.ErrorCode == js.JSErrCodeStreamWrongLastSequenceConstant
}

// isDuplicate reports whether a message was refused because its subject already has one: the
// stream of jobs keeps one message per subject.
func isDuplicate(err error) bool {
	var api *js.APIError
	return errors.As(err, &api) && api.ErrorCode == storeFailedCode && strings.Contains(api.Description, "per subject")
}

// isFull reports whether a stream, its account or its server has reached a limit and accepts no
// message until others are deleted.
func isFull(err error) bool {
	var api *js.APIError
	if !errors.As(err, &api) {
		return false
	}
	isStreamFull := api.ErrorCode == storeFailedCode && strings.Contains(api.Description, "maximum") && !isDuplicate(err)
	return isStreamFull || isAccountFull(err)
}

// isAccountFull reports whether an account or its server has reached a limit.
func isAccountFull(err error) bool {
	var api *js.APIError
	if !errors.As(err, &api) {
		return false
	}
	return api.ErrorCode == accountFullCode || api.ErrorCode == serverFullCode || api.ErrorCode == storageFullCode
}

// isPermanent reports whether a server would refuse a message again if it were repeated. It takes a message later that it
// refuses with 408 or 429: 429 means that too many messages wait to be stored (nats-server 2.15, JSStreamTooManyRequests).
func isPermanent(err error) bool {
	if errors.Is(err, nats.ErrMaxPayload) || isDuplicate(err) {
		return true
	}
	var api *js.APIError
	if !errors.As(err, &api) || api.Code == 408 || api.Code == 429 {
		return false
	}
	return api.Code/100 == 4 && !isFull(err)
}

// createError returns the error of Create for an error of publishAfter.
func (c *client) createError(err error) error {
	switch {
	case errors.Is(err, event.ErrFenced), errors.Is(err, event.ErrGone):
		return event.ErrExists
	case isFull(err):
		c.logger.Error("the event log is full: raise EVENTS_MAX_BYTES or the limits of its NATS account, or lower EVENTS_RETENTION", "error", err)
	}
	return err
}
