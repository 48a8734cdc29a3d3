package openai

import (
	"context"
	"fmt"
	"io"
	"time"
)

// maxStream bounds the raw bytes of one reply. A token comes in some 250 bytes of
// framing, so this is far above maxAnswer; it stops a reply of endless heartbeats.
const maxStream = 256 << 20

// afterFinish is how long to wait for usage and [DONE] once finish_reason has come.
// Both follow at once where they follow at all; an endpoint that keeps the connection
// open instead must not hold a complete answer back for the whole idle time.
const afterFinish = 2 * time.Second

// afterDone is how long to wait for a reply's end once [DONE] has come. A reply that
// is read to its end leaves its connection to the next request.
const afterDone = 100 * time.Millisecond

// idleTimer cancels a request that receives no bytes for too long. One timer serves the
// whole request and runs only while a read waits for bytes, so that a slow consumer does not
// look like a slow endpoint. Only the goroutine that reads uses it.
type idleTimer struct {
	timer        *time.Timer
	cancel       context.CancelCauseFunc
	firstLimit   time.Duration
	idleLimit    time.Duration
	gotFirstByte bool // the first byte of the body has come
}

// newIdleTimer starts a timer that allows first until the first byte.
func newIdleTimer(cancel context.CancelCauseFunc, first, idle time.Duration) *idleTimer {
	w := &idleTimer{cancel: cancel, firstLimit: first, idleLimit: idle}
	w.timer = time.AfterFunc(first, func() { cancel(errFirstByte) })
	return w
}

// stopTimer stops the timer. The request's context stays as it is.
func (w *idleTimer) stopTimer() { w.timer.Stop() }

// shortenIdle makes the idle time d from now on, unless it is shorter already.
func (w *idleTimer) shortenIdle(d time.Duration) { w.idleLimit = min(w.idleLimit, d) }

// currentLimit returns the time that ran out, for an error's text.
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
	remaining int64 // bytes that may still come
}

// Read runs the timer while it waits. The wait for the first byte runs through the whole
// of the request, headers included; from then on each wait is one of its own.
func (b *timedBody) Read(p []byte) (int, error) {
	if b.remaining <= 0 {
		return 0, fmt.Errorf("read the answer: %w", errStreamTooLarge)
	}
	w := b.timer
	if w.gotFirstByte {
		w.timer.Reset(w.idleLimit)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.remaining)])
	b.remaining -= int64(n)
	if n > 0 && !w.gotFirstByte {
		w.startIdle()
	}
	if w.gotFirstByte {
		w.timer.Stop()
	}
	return n, err
}

// startIdle turns the wait for the first byte into one for further bytes. The timer is
// made anew since its cause differs; this happens once per request.
func (w *idleTimer) startIdle() {
	w.gotFirstByte = true
	w.timer.Stop()
	w.timer = time.AfterFunc(w.idleLimit, func() { w.cancel(errIdle) })
}
