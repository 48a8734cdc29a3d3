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

// afterFinish limits the wait for usage and [DONE] after finish_reason. Endpoints that send them
// do so at once. Without this limit, an endpoint that keeps the connection open would delay a
// complete answer by the whole idle time.
const afterFinish = 2 * time.Second

// afterDone limits the wait for the end of a reply after [DONE]. Only a reply that is read to
// its end leaves its connection reusable.
const afterDone = 100 * time.Millisecond

// idleTimer cancels a request that receives no bytes for too long. One timer serves the whole
// request. It runs only while a read waits for bytes, so that a slow consumer does not look like
// a slow endpoint. Only the goroutine that reads uses it.
type idleTimer struct {
	timer        *time.Timer
	cancel       context.CancelCauseFunc
	firstLimit   time.Duration
	idleLimit    time.Duration
	gotFirstByte bool // the first byte of the body has arrived
}

// newIdleTimer starts a timer that allows first until the first byte.
func newIdleTimer(cancel context.CancelCauseFunc, first, idle time.Duration) *idleTimer {
	w := &idleTimer{cancel: cancel, firstLimit: first, idleLimit: idle}
	w.timer = time.AfterFunc(first, func() { cancel(errFirstByte) })
	return w
}

// stopTimer stops the timer. The request's context stays as it is.
func (w *idleTimer) stopTimer() { w.timer.Stop() }

// shortenIdle sets the idle time to d from now on, unless it is already shorter.
func (w *idleTimer) shortenIdle(d time.Duration) { w.idleLimit = min(w.idleLimit, d) }

// currentLimit returns the limit that was exceeded, for the text of an error.
func (w *idleTimer) currentLimit() time.Duration {
	if w.gotFirstByte {
		return w.idleLimit
	}
	return w.firstLimit
}

// timedBody runs an idleTimer while a reply's body is read, and bounds its size.
type timedBody struct {
	io.ReadCloser
	timer     *idleTimer
	remaining int64 // bytes that are still allowed
}

// Read runs the timer while it waits. The limit for the first byte covers the whole request,
// headers included. Each later read has its own idle limit.
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

// startIdle replaces the limit for the first byte by the idle limit. It makes a new timer,
// because the cause differs; this happens once per request.
func (w *idleTimer) startIdle() {
	w.gotFirstByte = true
	w.timer.Stop()
	w.timer = time.AfterFunc(w.idleLimit, func() { w.cancel(errIdle) })
}
