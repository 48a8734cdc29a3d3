package jetstream

import (
	"bytes"
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
	appendTimeout  = 30 * time.Second       // how long an append is repeated while the log does not answer
	createTimeout  = 5 * time.Second        // how long if the caller can ask again, as for a new run
	attemptTimeout = time.Second            // bounds one attempt
	retryInterval  = 100 * time.Millisecond // between two attempts
)

// Error codes of the server.
const (
	storeFailedCode = 10077 // a limit of the stream is reached, or its disk fails; the description says which
	accountFullCode = 10002 // the storage limit of the account is reached
	serverFullCode  = 10023 // the storage limit of the server is reached
	storageFullCode = 10047 // the server or the account has too little storage
	noPeersCode     = 10005 // a cluster has too few servers for the replicas of a stream
)

// errDiskFull means that the disk of an embedded log is full; recoverDisk frees space.
var errDiskFull = errors.New("the disk is full")

// errNoLeader means that a stream of a cluster has no leader at the moment.
var errNoLeader = errors.New("the stream has no leader")

// errUndecided means that a server refused an append that it should have accepted. In a cluster,
// an earlier attempt may be stored on one server before the others have agreed to it.
var errUndecided = errors.New("not decided yet")

// publishAfter appends msg to its subject and returns the pos of msg. The last message of the subject must be at pos
// last; 0 means that the subject must be empty. It repeats the append until it is certain whether the stream has msg,
// but no longer than within. It returns event.ErrFenced if another message is last, event.ErrGone if last is not 0 and
// the subject is empty, and event.ErrUnavailable if the log did not accept msg in time: the stream may have it then.
//
// The expectation of last fences writers: of two processes that both append after the same message, the server accepts
// one. A repeated append may fail because the earlier attempt was stored; resolveConflict finds that out. A Nats-Msg-Id
// would not help, because the server checks the expectation first.
func (c *client) publishAfter(ctx context.Context, stream string, msg *nats.Msg, last uint64, within time.Duration) (uint64, error) {
	return c.publishConditional(ctx, conditionalAppend{stream: stream, msg: msg, last: last}, within)
}

// conditionalAppend is a message to append, and the condition for it.
type conditionalAppend struct {
	stream      string
	msg         *nats.Msg
	last        uint64 // the pos of the last message of msg's subject; 0 if the subject must be empty
	maybeStored bool   // an earlier attempt failed or has no answer yet, so the stream may have msg
}

// publishConditional acts like publishAfter, for a message that earlier attempts may have stored (a.maybeStored).
func (c *client) publishConditional(ctx context.Context, a conditionalAppend, within time.Duration) (uint64, error) {
	if c.diskFull.Load() { // the remaining space is for deleting runs
		return 0, unavailableError("append to the log", errDiskFull)
	}
	a.msg.Header.Set(js.ExpectedLastSubjSeqHeader, strconv.FormatUint(a.last, 10))
	deadline := time.Now().Add(within)
	ack, err := c.publishOnce(ctx, a.msg)
	if err == nil {
		return ack.Sequence, nil
	}
	return c.retryPublish(ctx, a, deadline, err)
}

// retryPublish continues publishConditional after an attempt that failed with err. It returns at deadline at the
// latest. a.maybeStored says whether an attempt before that one may have stored the message.
func (c *client) retryPublish(ctx context.Context, a conditionalAppend, deadline time.Time, err error) (uint64, error) {
	callerCanAskAgain := time.Until(deadline) <= createTimeout
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, event.ErrUnavailable)
	defer cancel()
	for {
		switch {
		case isWrongLastSequence(err):
			if pos, err := c.resolveConflict(ctx, a); !errors.Is(err, errUndecided) {
				return pos, err
			}
		case c.diskFailed(), isFull(err) && callerCanAskAgain:
			c.expireSoon(err)
			return 0, unavailableError("append to the log", err)
		case isFull(err): // a run must not fail: repeat the append until expireLoop has deleted other runs
			c.expireSoon(err)
		case isPermanent(err):
			return 0, fmt.Errorf("append to the log: %w", err)
		}
		if !c.pause(ctx, retryInterval) {
			return 0, unavailableError("append to the log", err)
		}
		// Send the same bytes with the same expectation.
		var ack *js.PubAck
		if ack, err = c.publishOnce(ctx, a.msg); err == nil {
			return ack.Sequence, nil
		}
		a.maybeStored = true
	}
}

// sentMessage is a message that send has sent, and that may not be acknowledged yet.
type sentMessage struct {
	conditionalAppend
	ack js.PubAckFuture
}

// send sends a message to a subject that must be empty, and does not wait for the acknowledgement. The caller then
// calls awaitSent or awaitAck. After an error, the message was not sent.
func (c *client) send(stream string, msg *nats.Msg) (sentMessage, error) {
	if c.diskFull.Load() {
		return sentMessage{}, unavailableError("append to the log", errDiskFull)
	}
	msg.Header.Set(js.ExpectedLastSubjSeqHeader, "0")
	ack, err := c.js.PublishMsgAsync(msg)
	if err != nil {
		return sentMessage{}, unavailableError("append to the log", err)
	}
	return sentMessage{conditionalAppend{stream: stream, msg: msg, last: 0, maybeStored: true}, ack}, nil
}

// awaitSent waits until the stream has the message. If the server refuses it or does not answer, awaitSent repeats the
// append as publishAfter does, up to createTimeout and also if ctx ends. It returns the error of Create (createError).
// It must be called at most once for each message.
func (c *client) awaitSent(ctx context.Context, sent sentMessage) error {
	deadline := time.Now().Add(createTimeout)
	_, err := c.awaitAck(ctx, sent)
	if err == nil || c.ctx.Err() != nil {
		return err
	}
	_, err = c.retryPublish(context.WithoutCancel(ctx), sent.conditionalAppend, deadline, err)
	return c.createError(err)
}

// awaitAck waits for the acknowledgement of a message, up to attemptTimeout, and returns the message's pos. After an
// error, the message may be stored or not. It must be called at most once for each message, because it consumes the
// acknowledgement.
func (c *client) awaitAck(ctx context.Context, sent sentMessage) (uint64, error) {
	select {
	case ack := <-sent.ack.Ok(): // nearly always: no timer is needed
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

// resolveConflict finds out why the server refused an append because the last message of the subject is not at a.last.
// If a.msg itself is last, because an earlier attempt stored it (only if a.maybeStored), it returns the pos of a.msg.
// If another message is last, it returns event.ErrFenced; if the subject is empty and a.last is not 0, event.ErrGone.
// It returns errUndecided if the leader does not answer, or its answer contradicts the refusal: the caller tries again.
func (c *client) resolveConflict(ctx context.Context, a conditionalAppend) (uint64, error) {
	found, err := c.readLastFromLeader(ctx, a.stream, a.msg.Subject)
	switch {
	case errors.Is(err, event.ErrUnavailable):
		return 0, errUndecided
	case err != nil:
		return 0, err
	case found == nil && a.last == 0, found != nil && found.pos <= a.last:
		return 0, errUndecided
	case found == nil:
		return 0, event.ErrGone // neither the expected message nor those before it are kept
	}
	hasSameWriter := found.header.Get(writerHeader) == a.msg.Header.Get(writerHeader)
	if a.maybeStored && hasSameWriter && bytes.Equal(found.data, a.msg.Data) {
		return found.pos, nil
	}
	return 0, event.ErrFenced
}

// publishUnordered appends msg without an expectation about the last message of its subject. It repeats the append
// until the server acknowledges it, so the stream may get msg twice, but no longer than appendTimeout. attempted is the
// beginning of the error's text. isSuccess reports the errors of the server that count as success; nil means that none
// does.
func (c *client) publishUnordered(ctx context.Context, attempted string, msg *nats.Msg, isSuccess func(error) bool) error {
	if c.diskFull.Load() {
		return unavailableError(attempted, errDiskFull)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, appendTimeout, event.ErrUnavailable)
	defer cancel()
	for {
		_, err := c.publishOnce(ctx, msg)
		switch {
		case err == nil, isSuccess != nil && isSuccess(err):
			return nil
		case c.diskFailed():
			return unavailableError(attempted, err)
		case isFull(err):
			c.expireSoon(err)
		case isPermanent(err):
			return fmt.Errorf("%s: %w", attempted, err)
		}
		if !c.pause(ctx, retryInterval) {
			return unavailableError(attempted, err)
		}
	}
}

// publishRemoval makes one attempt to append msg, which replaces its subject's last message by a smaller one, and
// returns the pos of msg. It returns event.ErrFenced if the last message is not at last. Unlike publishAfter, it does
// not check diskFull: while a log recovers from a full disk, there is space for removals.
func (c *client) publishRemoval(ctx context.Context, _ string, msg *nats.Msg, last uint64) (uint64, error) {
	msg.Header.Set(js.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
	ack, err := c.publishOnce(ctx, msg)
	switch {
	case isWrongLastSequence(err):
		return 0, event.ErrFenced
	case err != nil:
		return 0, unavailableError("remove from the log", err)
	}
	return ack.Sequence, nil
}

// publishOnce makes one attempt to append msg, of up to attemptTimeout. It returns a *js.APIError if the server refused
// msg; after other errors msg may be stored. It is a plain request, because PublishMsg of the client library repeats
// attempts.
func (c *client) publishOnce(ctx context.Context, msg *nats.Msg) (*js.PubAck, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	answer, err := c.write.RequestMsgWithContext(ctx, msg)
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

// isWrongLastSequence reports whether the server refused an append because the last message of its subject was not at
// the expected pos.
func isWrongLastSequence(err error) bool {
	var api *js.APIError
	if !errors.As(err, &api) {
		return false
	}
	return api.ErrorCode == js.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == js.JSErrCodeStreamWrongLastSequenceConstant
}

// isDuplicate reports whether the stream of jobs refused a message because its subject already has one. The code is
// that of other failures too, so only the text of the error shows the difference.
func isDuplicate(err error) bool {
	var api *js.APIError
	return errors.As(err, &api) && api.ErrorCode == storeFailedCode && strings.Contains(api.Description, "per subject")
}

// isFull reports whether a message was refused because its stream, account or server has reached a limit of storage. It
// is accepted after messages were deleted.
func isFull(err error) bool {
	var api *js.APIError
	if !errors.As(err, &api) {
		return false
	}
	isStreamFull := api.ErrorCode == storeFailedCode && strings.Contains(api.Description, "maximum") && !isDuplicate(err)
	return isStreamFull || isAccountFull(err)
}

// isAccountFull reports whether a message was refused because an account or its server has reached a limit of storage.
func isAccountFull(err error) bool {
	var api *js.APIError
	if !errors.As(err, &api) {
		return false
	}
	return api.ErrorCode == accountFullCode || api.ErrorCode == serverFullCode || api.ErrorCode == storageFullCode
}

// isPermanent reports whether the server would refuse a message again. A message that is refused with 408 or 429 may be
// accepted later: 429 means that too many messages wait to be stored (nats-server 2.15, JSStreamTooManyRequests). So
// may a message for a full stream (isFull).
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

// createError returns the error of Log.Create for an error of publishAfter: ErrExists if the subject was not empty. It
// logs what to change if the log is full.
func (c *client) createError(err error) error {
	switch {
	case errors.Is(err, event.ErrFenced), errors.Is(err, event.ErrGone):
		return event.ErrExists
	case isFull(err):
		c.logger.Error("the event log is full: raise EVENTS_MAX_BYTES or the limits of its NATS account, "+
			"or lower EVENTS_RETENTION", "error", err)
	}
	return err
}
