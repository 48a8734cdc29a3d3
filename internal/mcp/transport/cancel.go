package transport

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const (
	// resendAfter is after how long a cancellation is sent for the second time; each further pause
	// is twice as long.
	resendAfter = 50 * time.Millisecond
	// readTime is the age from which on the server must have read a call.
	readTime = 2 * time.Second
	// maxResendPause bounds the pause: a cancellation that does not get through is given up 13 s
	// after the first, or up to 31 s if each one waits for its reply in vain.
	maxResendPause = 8 * time.Second
)

// cancelRequest sends notifications/cancelled for the request of x, and sends it again while the
// request is so new that the server may not have read it. They are two POSTs on two connections,
// neither of which waits for the other, and a server drops a cancellation of a request that it
// does not know: the call would then run to its end. No reply tells when the request was read,
// since many servers send the headers with the result. A repetition does no harm, because the
// receiver ignores it (2025-11-25 basic/utilities/cancellation).
//
// A call that is read within readTime, and t after it was cancelled, is so cancelled at most
// t + 50 ms later. From 2026-07-28 on the end of the call's stream is its cancellation, which
// nothing can overtake.
func (c *httpConn) cancelRequest(ctx context.Context, x *RoundTrip, m *jsonrpc.Request) {
	if x.Handshake || !x.sent.Load() || x.failed.Load() {
		// initialize must not be cancelled (2025-11-25 basic/lifecycle). Else there is nothing to
		// cancel.
		return
	}
	// The SDK gave it 5 s, which are over if the machine stood still that long.
	ctx = context.WithoutCancel(ctx)
	if !c.sendCancel(ctx, x, m) && x.life.Err() == nil && c.session.Protocol() < StatelessVersion {
		// The SDK's session does not wait for these.
		c.background.Go(func() { c.resendCancel(ctx, x, m) })
	}
}

// sendCancel sends m, which cancels the request of x, and reports whether it got through after the
// server must have read that request. A cancellation that is refused got through, too.
func (c *httpConn) sendCancel(ctx context.Context, x *RoundTrip, m *jsonrpc.Request) (certain bool) {
	read := time.Since(time.Unix(0, x.sentAt.Load())) >= readTime
	f, _ := errors.AsType[*Failure](c.notify(ctx, NotifyTimeout, http.MethodPost, m))
	return read && (f == nil || f.Kind != UnknownOutcome)
}

// resendCancel sends m, which cancels the request of x, until it is certain that the server has
// read it.
func (c *httpConn) resendCancel(ctx context.Context, x *RoundTrip, m *jsonrpc.Request) {
	defer Recover(c.Logger, func(*Failure) {})
	for wait := resendAfter; wait <= maxResendPause; wait *= 2 {
		// Some servers keep calls running after DELETE, so m is sent a last time during close.
		closing := !Pause(x.life, wait)
		if closing {
			Pause(ctx, resendAfter)
		}
		if c.sendCancel(ctx, x, m) || closing {
			return
		}
	}
}
