package openai

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"answerd/internal/llm"
)

// maxStream is the largest size of one reply, in raw bytes. A token needs about 250 bytes of framing, so this limit is
// far above maxAnswer. It stops an endless reply of heartbeats.
const maxStream = 256 << 20

// afterFinish is how long to wait for usage and [DONE] after finish_reason. Endpoints that send them do so at once.
// Without this limit, an endpoint that keeps the connection open would delay a complete answer by the whole idle time.
const afterFinish = 2 * time.Second

// afterDone is how long to wait for the end of a reply after [DONE]. A connection can be reused only if its reply was
// read to the end.
const afterDone = 100 * time.Millisecond

// maxDrained is how many events are read after [DONE]. Endpoints send none, or a few heartbeats.
const maxDrained = 8

// idleTimer cancels a request that receives no bytes for too long. Until the first byte of the body it runs all the
// time. After that it runs only while a read waits for bytes, so that a slow consumer does not look like a slow
// endpoint. Only the attempt's goroutine uses it.
type idleTimer struct {
	timer        *time.Timer
	cancel       context.CancelCauseFunc // cancels the request, with errFirstByte or errIdle
	firstLimit   time.Duration           // from the start of the request to the first byte of the body
	idleLimit    time.Duration           // for each later read
	gotFirstByte bool                    // the first byte of the body has arrived
}

// newIdleTimer starts a timer that cancels the request with errFirstByte if no byte arrives for first, and later with
// errIdle if no further byte arrives for idle. The caller must call stopTimer.
func newIdleTimer(cancel context.CancelCauseFunc, first, idle time.Duration) *idleTimer {
	t := &idleTimer{cancel: cancel, firstLimit: first, idleLimit: idle}
	t.timer = time.AfterFunc(first, func() { cancel(errFirstByte) })
	return t
}

// stopTimer stops the timer. It does not cancel the request's context.
func (t *idleTimer) stopTimer() { t.timer.Stop() }

// shortenIdle limits each later read to d, unless the limit is already shorter.
func (t *idleTimer) shortenIdle(d time.Duration) { t.idleLimit = min(t.idleLimit, d) }

// timeoutError returns the error for a request that the timer has cancelled, or nil if it has not. ctx is the context
// that the timer cancels.
func (t *idleTimer) timeoutError(ctx context.Context) *llm.Error {
	cause := context.Cause(ctx)
	var modelErr *llm.Error
	switch {
	case errors.Is(cause, errFirstByte):
		modelErr = newError(llm.ModelTimeout, publicNoFirstByte, fmt.Errorf("%w (%s)", cause, t.firstLimit))
	case errors.Is(cause, errIdle):
		modelErr = newError(llm.ModelTimeout, publicIdle, fmt.Errorf("%w (%s)", cause, t.idleLimit))
	default:
		return nil
	}
	modelErr.Retryable, modelErr.Unavailable = true, true
	return modelErr
}

// timedBody runs an idleTimer while a reply's body is read, and limits the size of the body.
type timedBody struct {
	io.ReadCloser
	timer     *idleTimer
	remaining int64 // bytes that may still be read
}

// Read reads from the body and runs the timer while it waits. The read that gets the first byte ends the first limit,
// which has run since the request was sent. Each later read gets the whole idle limit. If the body exceeds its size
// limit, Read returns an error that wraps errStreamTooLarge.
func (b *timedBody) Read(p []byte) (int, error) {
	if b.remaining <= 0 {
		return 0, fmt.Errorf("read the answer: %w", errStreamTooLarge)
	}
	idle := b.timer
	if idle.gotFirstByte {
		idle.timer.Reset(idle.idleLimit)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.remaining)])
	b.remaining -= int64(n)
	if n > 0 && !idle.gotFirstByte {
		idle.startIdle()
	}
	if idle.gotFirstByte {
		idle.timer.Stop()
	}
	return n, err
}

// startIdle replaces the limit for the first byte with the idle limit. It creates a new timer, because a timer cannot
// change its function, and the two limits cancel with different causes.
func (t *idleTimer) startIdle() {
	t.gotFirstByte = true
	t.timer.Stop()
	t.timer = time.AfterFunc(t.idleLimit, func() { t.cancel(errIdle) })
}
