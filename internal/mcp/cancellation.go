package mcp

import (
	"context"
	"net/http"
	"time"
)

const (
	// repeatAfter is after how long a cancellation is said for the second time; each
	// further pause is twice as long.
	repeatAfter = 50 * time.Millisecond
	// readTime is how old a call is that its server has certainly read.
	readTime = 2 * time.Second
)

// takeBack sends notifications/cancelled, and says it again while the call is so new that
// the server may not have read it. They are two POSTs on two connections, neither of which
// waits for the other, and a server drops a cancellation of what it doesn't know: the call
// would then run to its end (F13). No reply tells when the call was read; many servers
// send the headers with the result. A repetition does no harm, since whoever gets one too
// many has to ignore it (2025-11-25 basic/utilities/cancellation).
//
// A call that is read within readTime, and t after it was cancelled, is so cancelled at
// most t + 50 ms later. From 2026-07-28 on the end of the call's stream is its cancellation, which
// nothing can overtake.
func (g guard) takeBack(r *http.Request, x *exchange) (*http.Response, error) {
	if !x.sent.Load() {
		closeBody(r)
		return emptyReply(r, http.StatusAccepted), nil // there is nothing to cancel
	}
	resp, err := g.aside(r, x, http.StatusAccepted, sideTime)
	if x.life.Err() == nil && x.session.protocol() < statelessVersion {
		// The SDK's session does not wait for these.
		g.rests.Go(func() { g.repeat(r, x) })
	}
	return resp, err
}

// repeat sends r, which cancels the request of x, again and again until the server must
// have read that request.
func (g guard) repeat(r *http.Request, x *exchange) {
	defer recovered(g.log, func(*failure) {})
	// The SDK ends r's own context when the first one is sent.
	ctx := context.WithoutCancel(r.Context())
	for wait := repeatAfter; time.Since(time.Unix(0, x.sentAt.Load())) < readTime; wait *= 2 {
		// Not every server ends the calls of a session that is deleted, so it is said a last
		// time when that has begun.
		closing := !pause(x.life, wait)
		if closing {
			pause(ctx, repeatAfter)
		}
		again := r.Clone(ctx)
		var err error
		if again.Body, err = r.GetBody(); err != nil {
			return
		}
		// What fails here is no loss: the next one may come through, and nobody waits.
		if resp, err := g.aside(again, x, http.StatusAccepted, sideTime); err == nil {
			_ = resp.Body.Close()
		}
		if closing {
			return
		}
	}
}
