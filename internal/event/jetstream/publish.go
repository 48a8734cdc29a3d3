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

// wrongLast reports whether an append expected another last message than there is.
func wrongLast(err error) bool {
	var api *js.APIError
	return errors.As(err, &api) && (api.ErrorCode == js.JSErrCodeStreamWrongLastSequence || api.ErrorCode == js.JSErrCodeStreamWrongLastSequenceConstant)
}

// storeFailed is the server's code for a limit of a stream, and for a disk that fails.
const storeFailed = 10077

// limited reports whether a stream has no room for a message; jobs have room for one of
// each run.
func limited(err error) bool {
	var api *js.APIError
	return errors.As(err, &api) && api.ErrorCode == storeFailed && strings.Contains(api.Description, "maximum")
}

const (
	patience    = 30 * time.Second // how long an append is repeated while the log is away
	tryTimeout  = time.Second      // of one attempt
	tryInterval = 100 * time.Millisecond
)

// publish appends a message whose subject must have last as its last message, however
// often that takes, and returns its number. The answer is ErrFenced if another message
// is last, unless that is the very one: the acknowledgement of an earlier attempt may
// have been lost, and a Msg-Id doesn't help, since the expectation is looked at first.
func (l *Log) publish(ctx context.Context, stream string, m *nats.Msg, last uint64, within time.Duration) (uint64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, event.ErrUnavailable)
	defer cancel()
	m.Header.Set(js.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
	for tries := 1; ; tries++ {
		ack, err := l.tryPublish(ctx, m)
		switch {
		case err == nil:
			return ack.Sequence, nil
		case wrongLast(err):
			if at, err := l.fenced(ctx, stream, m, last, tries > 1); !errors.Is(err, errUndecided) {
				return at, err
			}
		case l.diskFailed():
			return 0, unavailable("append to the log", err)
		case refused(err):
			return 0, fmt.Errorf("append to the log: %w", err)
		}
		select {
		case <-time.After(tryInterval): // then the same bytes, with the same expectation
		case <-ctx.Done():
			return 0, unavailable("append to the log", err)
		case <-l.ctx.Done():
			return 0, unavailable("append to the log", err)
		}
	}
}

// refused reports whether a server will never keep a message, however often it is sent.
func refused(err error) bool {
	var api *js.APIError
	return errors.Is(err, nats.ErrMaxPayload) || limited(err) || errors.As(err, &api) && api.Code >= 400 && api.Code < 500 && api.Code != 408
}

func (l *Log) tryPublish(ctx context.Context, m *nats.Msg) (*js.PubAck, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	return l.js.PublishMsg(ctx, m)
}

// errUndecided: a server refused an append that it should have taken. In a cluster an
// earlier attempt may be stored on one server and not yet agreed on by the others.
var errUndecided = errors.New("not decided yet")

// fenced tells a message of another writer from ours, when last is not the last one.
func (l *Log) fenced(ctx context.Context, stream string, m *nats.Msg, last uint64, repeated bool) (uint64, error) {
	found, err := l.lastAtLeader(ctx, stream, m.Subject)
	switch {
	case errors.Is(err, event.ErrUnavailable), err == nil && found == nil && last == 0, err == nil && found != nil && found.at <= last:
		return 0, errUndecided
	case err != nil:
		return 0, err
	case found == nil:
		return 0, event.ErrGone // what was last is no longer kept, and so is all before it
	case repeated && string(found.data) == string(m.Data) && found.header.Get(writerHeader) == m.Header.Get(writerHeader):
		return found.at, nil
	}
	return 0, event.ErrFenced
}
