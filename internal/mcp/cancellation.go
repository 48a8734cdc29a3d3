package mcp

import (
	"context"
	"errors"
	"net/http"
	"time"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const (
	// repeatAfter is after how long a cancellation is said for the second time; each
	// further pause is twice as long.
	repeatAfter = 50 * time.Millisecond
	// readTime is how old a call is that its server has certainly read.
	readTime = 2 * time.Second
	// lastRepeat bounds the pause: a cancellation that doesn't get through is given up 13 s
	// after the first, or up to 31 s where each one waits for its reply in vain.
	lastRepeat = 8 * time.Second
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
func (c *streamable) takeBack(ctx context.Context, x *exchange, m *jsonrpc.Request) {
	if x.handshake || !x.sent.Load() || x.failed.Load() {
		// initialize must not be cancelled (2025-11-25 basic/lifecycle). Else there is nothing
		// to cancel.
		return
	}
	// The SDK gave it 5 s, which are over if the machine stood still that long.
	ctx = context.WithoutCancel(ctx)
	if !c.recall(ctx, x, m) && x.life.Err() == nil && c.of.protocol() < transport.StatelessVersion {
		// The SDK's session does not wait for these.
		c.rests.Go(func() { c.repeat(ctx, x, m) })
	}
}

// recall sends m, which cancels the request of x, and reports whether it came through after
// the server must have read that request. A refusal came through, too.
func (c *streamable) recall(ctx context.Context, x *exchange, m *jsonrpc.Request) (certain bool) {
	read := time.Since(time.Unix(0, x.sentAt.Load())) >= readTime
	f, _ := errors.AsType[*transport.Failure](c.aside(ctx, sideTime, http.MethodPost, m))
	return read && (f == nil || f.Kind != UnknownOutcome)
}

// repeat sends m, which cancels the request of x, again and again until that is certain.
func (c *streamable) repeat(ctx context.Context, x *exchange, m *jsonrpc.Request) {
	defer transport.Recover(c.log, func(*transport.Failure) {})
	for wait := repeatAfter; wait <= lastRepeat; wait *= 2 {
		// Not every server ends the calls of a session that is deleted, so it is said a last
		// time when that has begun.
		closing := !transport.Pause(x.life, wait)
		if closing {
			transport.Pause(ctx, repeatAfter)
		}
		if c.recall(ctx, x, m) || closing {
			return
		}
	}
}
