package openai

import (
	"context"
	"fmt"
	"io"
	"time"
)

// maxStream bounds the raw bytes of one reply. A token needs about 250 bytes of framing, so this
// limit is far above maxAnswer; it stops an endless reply of heartbeats.
const maxStream = 256 << 20

// afterFinish limits the wait for usage and [DONE] after finish_reason. Endpoints that send them do so at once. Without
// this limit, an endpoint that keeps the connection open would delay a complete answer by the whole idle time.
const afterFinish = 2 * time.Second

// afterDone limits the wait for the end of a reply after [DONE]. Only a reply that is read to
// its end leaves its connection reusable.
const afterDone = 100 * time.Millisecond

// idleTimer cancels a request that receives no bytes for too long. Until the first byte of the body it runs all
// the time. After that it runs only while a read waits for bytes, so that a slow consumer does not look like
// a slow endpoint. Only the goroutine that makes the attempt uses it.
type idleTimer struct {
	timer        *time.Timer
	cancel       context.CancelCauseFunc // of the request; gets errFirstByte or errIdle
	firstLimit   time.Duration           // from the start of the request to the first byte of the body
	idleLimit    time.Duration           // for each later read
	gotFirstByte bool                    // the first byte of the body has arrived
}

// newIdleTimer starts a timer that cancels the request with errFirstByte after first, and later, when bytes arrive,
// with errIdle after idle. The caller must call stopTimer.
func newIdleTimer(cancel context.CancelCauseFunc, first, idle time.Duration) *idleTimer {
	t := &idleTimer{cancel: cancel, firstLimit: first, idleLimit: idle}
	t.timer = time.AfterFunc(first, func() { cancel(errFirstByte) })
	return t
}

// stopTimer stops the timer. The request's context stays as it is.
func (t *idleTimer) stopTimer() { t.timer.Stop() }

// shortenIdle limits each further read to d, unless its limit is already shorter.
func (t *idleTimer) shortenIdle(d time.Duration) { t.idleLimit = min(t.idleLimit, d) }

// currentLimit returns the limit that applies now; after a timeout, the one that was exceeded.
func (t *idleTimer) currentLimit() time.Duration {
	if t.gotFirstByte {
		return t.idleLimit
	}
	return t.firstLimit
}

// timedBody runs an idleTimer while a reply's body is read, and bounds the size of the body.
type timedBody struct {
	io.ReadCloser
	timer     *idleTimer
	remaining int64 // bytes that are still allowed
}

// Read reads from the body and runs the timer during that. The read that gets the first byte ends the first limit,
// which has run since the request was sent; each later read has the idle limit for itself. Beyond the size limit, Read
// returns an error that wraps errStreamTooLarge.
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

// startIdle starts the idle limit in place of the limit for the first byte. It makes a new timer,
// because a timer cannot change its function, and the two limits differ in the cause with which they cancel.
func (t *idleTimer) startIdle() {
	t.gotFirstByte = true
	t.timer.Stop()
	t.timer = time.AfterFunc(t.idleLimit, func() { t.cancel(errIdle) })
}
