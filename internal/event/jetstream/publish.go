package jetstream

import (
	"context"
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
)

// errDiskFull says that recoverDisk has to free space first.
var errDiskFull = errors.New("the disk is full")

// errUndecided says that a server refused an append that it should have accepted. In a
// cluster, an earlier attempt may be stored on one server while the others have not agreed
// to it yet.
var errUndecided = errors.New("not decided yet")

// publishAfter appends m to its subject, whose last message must be at pos last (0: there
// must be none), and returns the pos of m. It repeats the append until it is certain whether
// the stream has m, at most for a time of within.
//
// The expectation is the fence of this log: two processes that believe to be the writer of
// a run expect the same last message, and the server accepts only one of them. The other
// gets ErrFenced. After an attempt without an answer, the stream may have m already; a
// repetition then fails in the same way, and resolveConflict tells the two cases apart. A
// Nats-Msg-Id would not help, because the server checks the expectation first.
func (l *Log) publishAfter(ctx context.Context, stream string, m *nats.Msg, last uint64, within time.Duration) (uint64, error) {
	if l.diskFull.Load() { // the space that is free now is for deleting runs
		return 0, unavailable("append to the log", errDiskFull)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, within, event.ErrUnavailable)
	defer cancel()
	m.Header.Set(js.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
	for tries := 1; ; tries++ {
		ack, err := l.publishOnce(ctx, m)
		switch {
		case err == nil:
			return ack.Sequence, nil
		case isWrongLastSequence(err):
			if pos, err := l.resolveConflict(ctx, stream, m, last, tries > 1); !errors.Is(err, errUndecided) {
				return pos, err
			}
		case l.diskFailed(), isFull(err) && within <= createTimeout: // another run can be created later
			l.expireSoon()
			return 0, unavailable("append to the log", err)
		case isFull(err): // until then, runs may be deleted
			l.expireSoon()
		case isPermanent(err):
			return 0, fmt.Errorf("append to the log: %w", err)
		}
		select {
		case <-time.After(retryInterval): // then the same bytes with the same expectation
		case <-ctx.Done():
			return 0, unavailable("append to the log", err)
		case <-l.ctx.Done():
			return 0, unavailable("append to the log", err)
		}
	}
}

// resolveConflict finds out why the last message of m's subject is not at last. It returns
// the pos of m if the last message is m itself, from an earlier attempt whose
// acknowledgement was lost, and ErrFenced if another writer's message is last.
func (l *Log) resolveConflict(ctx context.Context, stream string, m *nats.Msg, last uint64, repeated bool) (uint64, error) {
	found, err := l.readLastFromLeader(ctx, stream, m.Subject)
	switch {
	case errors.Is(err, event.ErrUnavailable), err == nil && found == nil && last == 0, err == nil && found != nil && found.pos <= last:
		return 0, errUndecided
	case err != nil:
		return 0, err
	case found == nil:
		return 0, event.ErrGone // the expected message is no longer kept, nor are those before it
	case repeated && string(found.data) == string(m.Data) && found.header.Get(writerHeader) == m.Header.Get(writerHeader):
		return found.pos, nil
	}
	return 0, event.ErrFenced
}

// publishUnordered appends m, whatever the last message of its subject is, and repeats it
// until it is acknowledged. The stream may have it twice then. accepts reports errors that
// count as success, nil for none.
func (l *Log) publishUnordered(ctx context.Context, attempted string, m *nats.Msg, accepts func(error) bool) error {
	if l.diskFull.Load() {
		return unavailable(attempted, errDiskFull)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, appendTimeout, event.ErrUnavailable)
	defer cancel()
	for {
		_, err := l.publishOnce(ctx, m)
		switch {
		case err == nil, accepts != nil && accepts(err):
			return nil
		case l.diskFailed():
			return unavailable(attempted, err)
		case isFull(err):
			l.expireSoon()
		case isPermanent(err):
			return fmt.Errorf("%s: %w", attempted, err)
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return unavailable(attempted, err)
		case <-l.ctx.Done():
			return unavailable(attempted, err)
		}
	}
}

// publishOnce makes one attempt to append m.
func (l *Log) publishOnce(ctx context.Context, m *nats.Msg) (*js.PubAck, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return l.js.PublishMsg(ctx, m)
}

// isWrongLastSequence reports whether an append expected another last message than there is.
func isWrongLastSequence(err error) bool {
	var api *js.APIError
	return errors.As(err, &api) && (api.ErrorCode == js.JSErrCodeStreamWrongLastSequence || api.ErrorCode == js.JSErrCodeStreamWrongLastSequenceConstant)
}

// isDuplicate reports whether a message was refused because its subject has one already: the
// jobs' stream keeps one message per subject.
func isDuplicate(err error) bool {
	var api *js.APIError
	return errors.As(err, &api) && api.ErrorCode == storeFailedCode && strings.Contains(api.Description, "per subject")
}

// isFull reports whether a stream, its account or its server has reached a limit, so that it
// takes no message before others are deleted.
func isFull(err error) bool {
	var api *js.APIError
	if !errors.As(err, &api) {
		return false
	}
	switch api.ErrorCode {
	case accountFullCode, serverFullCode, storageFullCode:
		return true
	}
	return api.ErrorCode == storeFailedCode && strings.Contains(api.Description, "maximum") && !isDuplicate(err)
}

// isPermanent reports whether a server will refuse a message however often it is sent.
func isPermanent(err error) bool {
	if errors.Is(err, nats.ErrMaxPayload) || isDuplicate(err) {
		return true
	}
	var api *js.APIError
	return errors.As(err, &api) && api.Code >= 400 && api.Code < 500 && api.Code != 408 && !isFull(err)
}
