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
	createTimeout  = 5 * time.Second        // the same if the caller can ask again, as for a new run
	attemptTimeout = time.Second            // how long one attempt may take
	retryInterval  = 100 * time.Millisecond // the pause between two attempts
)

// Error codes of the server.
const (
	storeFailedCode = 10077 // a limit of the stream was reached, or its disk failed; the description says which
	accountFullCode = 10002 // the account's storage limit was reached
	serverFullCode  = 10023 // the server's storage limit was reached
	storageFullCode = 10047 // the server or the account has too little storage
	noPeersCode     = 10005 // the cluster has too few servers for the replicas of a stream
)

// errDiskFull says that the disk of an embedded log is full. recoverDisk frees space.
var errDiskFull = errors.New("the disk is full")

// errNoLeader says that a stream of a cluster has no leader at the moment.
var errNoLeader = errors.New("the stream has no leader")

// errUndecided says that the server refused an append that it should have accepted. In a cluster, an earlier attempt
// may be stored on one server before the others have agreed to it.
var errUndecided = errors.New("not decided yet")

// publishAfter appends msg to its subject and returns the position of msg. It requires that the subject's last message
// is at position last, or that the subject is empty if last is 0. It repeats the append until it is certain whether the
// stream has msg, but for no longer than within. It returns event.ErrFenced if another message is last, and
// event.ErrGone if the subject is empty but last is not 0. It returns event.ErrUnavailable if the log did not accept
// msg in time. The stream may then have msg or not.
//
// The expected position fences writers: if two processes append after the same message, the server accepts only one of
// them. A repeated append may be refused because the earlier attempt was stored. resolveConflict detects that. A
// Nats-Msg-Id would not help, because the server checks the expected position first.
func (c *client) publishAfter(ctx context.Context, stream string, msg *nats.Msg, last uint64, within time.Duration) (uint64, error) {
	return c.publishConditional(ctx, conditionalAppend{stream: stream, msg: msg, last: last}, within)
}

// conditionalAppend is a message to append, with the condition for the append.
type conditionalAppend struct {
	stream      string
	msg         *nats.Msg
	last        uint64 // expected position of the last message of msg's subject; 0 if the subject must be empty
	maybeStored bool   // an earlier attempt failed or was not answered yet, so the stream may have msg
}

// publishConditional is publishAfter for a message that earlier attempts may have stored (request.maybeStored).
func (c *client) publishConditional(ctx context.Context, request conditionalAppend, within time.Duration) (uint64, error) {
	if c.diskFull.Load() { // the remaining space is needed to delete runs
		return 0, unavailableError("append to the log", errDiskFull)
	}
	request.msg.Header.Set(js.ExpectedLastSubjSeqHeader, strconv.FormatUint(request.last, 10))
	deadline := time.Now().Add(within)
	ack, err := c.publishOnce(ctx, request.msg)
	if err == nil {
		return ack.Sequence, nil
	}
	return c.retryPublish(ctx, request, deadline, err)
}

// retryPublish continues publishConditional after an attempt that failed with lastErr. It returns at deadline at the
// latest. request.maybeStored says whether an attempt before the failed one may have stored the message.
func (c *client) retryPublish(ctx context.Context, request conditionalAppend, deadline time.Time, lastErr error) (uint64, error) {
	callerCanAskAgain := time.Until(deadline) <= createTimeout // an append has appendTimeout
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, event.ErrUnavailable)
	defer cancel()
	for {
		switch {
		case isWrongLastSequence(lastErr):
			pos, err := c.resolveConflict(ctx, request)
			if !errors.Is(err, errUndecided) {
				return pos, err
			}
		case c.diskFailed(), isFull(lastErr) && callerCanAskAgain:
			c.expireSoon(lastErr)
			return 0, unavailableError("append to the log", lastErr)
		case isFull(lastErr): // a run must not fail because of this: repeat the append until expireLoop has deleted other runs
			c.expireSoon(lastErr)
		case isPermanent(lastErr):
			return 0, fmt.Errorf("append to the log: %w", lastErr)
		}
		if !c.pause(ctx, retryInterval) {
			return 0, unavailableError("append to the log", lastErr)
		}
		ack, err := c.publishOnce(ctx, request.msg) // the same bytes with the same expected position
		if err == nil {
			return ack.Sequence, nil
		}
		lastErr = err
		request.maybeStored = true
	}
}

// sentMessage is a message that send has sent. It may not be acknowledged yet.
type sentMessage struct {
	conditionalAppend
	ack js.PubAckFuture
}

// send sends a message to a subject that must be empty, without waiting for the acknowledgement. The caller must then
// call awaitSent or awaitAck. If send returns an error, the message was not sent.
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

// awaitSent waits until the stream has the message. If the server refuses the message or does not answer, awaitSent
// repeats the append like publishAfter, for up to createTimeout, even if ctx ends. It returns the error that Create
// would return (createError). Call it at most once per message.
func (c *client) awaitSent(ctx context.Context, sent sentMessage) error {
	deadline := time.Now().Add(createTimeout)
	_, err := c.awaitAck(ctx, sent)
	if err == nil || c.ctx.Err() != nil {
		return err
	}
	_, err = c.retryPublish(context.WithoutCancel(ctx), sent.conditionalAppend, deadline, err)
	return c.createError(err)
}

// awaitAck waits for a message's acknowledgement, for up to attemptTimeout, and returns the message's position. After
// an error, the message may or may not be stored. Call it at most once per message, because it consumes the
// acknowledgement.
func (c *client) awaitAck(ctx context.Context, sent sentMessage) (uint64, error) {
	select {
	case ack := <-sent.ack.Ok(): // the usual case, which needs no timer
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

// resolveConflict finds out why the server refused an append because the subject's last message is not at request.last.
// If request.msg itself is last, because an earlier attempt stored it (request.maybeStored), it returns the position of
// request.msg. If another message is last, it returns event.ErrFenced. If the subject is empty but request.last is not
// 0, it returns event.ErrGone. If the leader does not answer, or its answer contradicts the refusal, it returns
// errUndecided, and the caller tries again.
func (c *client) resolveConflict(ctx context.Context, request conditionalAppend) (uint64, error) {
	found, err := c.readLastFromLeader(ctx, request.stream, request.msg.Subject)
	switch {
	case errors.Is(err, event.ErrUnavailable):
		return 0, errUndecided
	case err != nil:
		return 0, err
	case found == nil && request.last == 0, found != nil && found.Pos <= request.last:
		return 0, errUndecided
	case found == nil:
		return 0, event.ErrGone // neither the expected message nor any earlier one is kept
	}
	hasSameWriter := found.Header.Get(writerHeader) == request.msg.Header.Get(writerHeader)
	if request.maybeStored && hasSameWriter && bytes.Equal(found.Data, request.msg.Data) {
		return found.Pos, nil
	}
	return 0, event.ErrFenced
}

// publishUnordered appends msg without a condition. It repeats the append until the server acknowledges it, so the
// stream may receive msg twice. It gives up after appendTimeout. attempted is the beginning of the error's text.
// isSuccess reports whether an error from the server counts as success; if isSuccess is nil, no error does.
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

// publishRemoval makes one attempt to append msg, which replaces the last message of its subject with a smaller one. It
// returns the position of msg, or event.ErrFenced if the last message is not at last. Unlike publishAfter, it works
// while diskFull is set, because the space that is left on a full disk is meant for removals.
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

// publishOnce makes one attempt to append msg, which takes at most attemptTimeout. It returns a *js.APIError if the
// server refused msg. After any other error, msg may have been stored. It uses a plain request, because the client
// library's PublishMsg repeats attempts.
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
// the expected position.
func isWrongLastSequence(err error) bool {
	api, ok := errors.AsType[*js.APIError](err)
	return ok && (api.ErrorCode == js.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == js.JSErrCodeStreamWrongLastSequenceConstant)
}

// isDuplicate reports whether the stream of jobs refused a message because its subject already has one. Other failures
// have the same error code, so isDuplicate also checks the text of the error.
func isDuplicate(err error) bool {
	api, ok := errors.AsType[*js.APIError](err)
	return ok && api.ErrorCode == storeFailedCode && strings.Contains(api.Description, "per subject")
}

// isFull reports whether the server refused a message because its stream, account or server has reached a storage
// limit. Such a message is accepted once other messages were deleted.
func isFull(err error) bool {
	api, ok := errors.AsType[*js.APIError](err)
	isStreamFull := ok && api.ErrorCode == storeFailedCode && strings.Contains(api.Description, "maximum") && !isDuplicate(err)
	return isStreamFull || isAccountFull(err)
}

// isAccountFull reports whether the server refused a message because the account or the server has reached its storage
// limit.
func isAccountFull(err error) bool {
	api, ok := errors.AsType[*js.APIError](err)
	return ok && (api.ErrorCode == accountFullCode || api.ErrorCode == serverFullCode || api.ErrorCode == storageFullCode)
}

// isPermanent reports whether the server would refuse a message again. A message refused with code 408 or 429 may be
// accepted later: 429 means that too many messages are waiting to be stored (nats-server 2.15,
// JSStreamTooManyRequests). A message for a full stream (isFull) may also be accepted later.
func isPermanent(err error) bool {
	if errors.Is(err, nats.ErrMaxPayload) || isDuplicate(err) {
		return true
	}
	api, ok := errors.AsType[*js.APIError](err)
	mayAcceptLater := !ok || api.Code == 408 || api.Code == 429 || isFull(err)
	return !mayAcceptLater && api.Code/100 == 4
}

// createError converts an error of publishAfter to the error that Log.Create returns: ErrExists if the subject was not
// empty. If the log is full, it also logs what the operator can change.
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
