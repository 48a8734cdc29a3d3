package mcp

import (
	"context"
	"errors"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const (
	// linger is how long a server may keep a stream open after its answer before
	// the stream, and with it the TCP connection, is cut.
	linger = time.Second
	// maxResumes is how many GETs in a row may fail to continue a broken stream.
	maxResumes = 8
	// maxServerRequests is how many requests a server may send within one stream.
	maxServerRequests = 100
)

type exchangeKey struct{}

// exchange is what the transport needs to know about one request of ours, and learns about
// it: how long it has, what goes out with it, who receives the server's notifications, and
// whether it was sent. It travels in the request's context, which the SDK hands down to the
// connection. The answer is not in it: that comes from the SDK.
type exchange struct {
	ctx       context.Context
	caller    context.Context // that it was made under
	life      context.Context // of the server
	cancel    context.CancelCauseFunc
	release   func() // frees what ctx holds
	session   *session
	handshake bool
	patience  time.Duration      // of a handshake: for the answer to server/discover
	query     map[string]string  // query parameters of this call
	headers   map[string]string  // and headers, where the protocol has them
	token     string             // progress token; "" where nobody asked
	notes     *notificationQueue // of the call; nil where nobody listens
	wantsLog  bool               // its reader takes log messages
	talk      *serverRequests    // who answers the server's own requests; nil: nobody
	limit     limit              // its time
	tokens    sender             // of the caller; nil: the session's, or the server's

	sent    atomic.Bool  // a connection was had, so the server may have got it
	sentAt  atomic.Int64 // when, over HTTP: Unix time in ns
	renewed atomic.Bool  // a token was renewed once already
	tagged  atomic.Bool  // the server asked something
	// fetching says that a token is being waited for, or did not come.
	fetching atomic.Bool
	// answered says that the server is done with the request: it has answered or refused it.
	answered atomic.Bool
	// failed says that the transport has ended it and the server need not hear of that.
	failed atomic.Bool

	mu     sync.Mutex // protects what follows
	bodies int        // streams that are not closed yet
	over   bool       // finish was called
	timer  *time.Timer
}

// newExchange is an exchange under ctx that ends at deadline, or when life does.
func newExchange(ctx, life context.Context, deadline time.Time) *exchange {
	x := &exchange{caller: ctx, life: life}
	cctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	x.limit.start(deadline, func() { cancel(transport.ErrTimeout) })
	x.cancel = cancel
	x.release = func() { unhook(); x.limit.stop(); cancel(nil) }
	x.ctx = context.WithValue(cctx, exchangeKey{}, x)
	return x
}

// exchangeOf is the exchange that a request belongs to. Every context that this
// room gives to the SDK has one.
func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// source is whose token the exchange's requests carry; nil: the server's.
func (x *exchange) source() sender {
	switch {
	case x == nil:
		return nil
	case x.tokens == nil && x.session != nil:
		return x.session.tokens
	}
	return x.tokens
}

// traced is ctx, noting when a connection was had.
func (x *exchange) traced(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) {
			x.sentAt.Store(time.Now().UnixNano())
			x.sent.Store(true)
		},
	})
}

// begin starts a request. A call with input_required results takes several (SEP-2322).
func (x *exchange) begin() {
	x.answered.Store(false)
	x.limit.touch()
}

// fail ends the exchange because of f, unless it is over already. The end of its context is
// how one request fails and the session goes on: a connection has no exported error for
// that. The SDK then sends notifications/cancelled, which failed keeps from the server.
func (x *exchange) fail(f *transport.Failure) {
	if x.cancel(f); context.Cause(x.ctx) == error(f) {
		x.failed.Store(true)
		x.answered.Store(f.Kind != UnknownOutcome)
	}
}

// abort is fail where the server may go on with the request, and is told that nobody waits.
func (x *exchange) abort(f *transport.Failure) { x.cancel(f) }

// answer notes that the server has answered. An answer without a result is a failure.
func (x *exchange) answer(r *jsonrpc.Response) *transport.Failure {
	if r.Error == nil && (len(r.Result) == 0 || string(r.Result) == "null") {
		return transport.BadReply("it has no result", nil)
	}
	x.answered.Store(true)
	return nil
}

// meansLost reports whether a JSON-RPC error says that the session is gone. The
// codes alone don't: tools use them for all sorts of things (S3.2).
func meansLost(e *jsonrpc.Error) bool {
	switch e.Code {
	case 32600, -32600, -32000, -32001:
		low := strings.ToLower(e.Message)
		for _, s := range []string{"session terminated", "session not found", "no valid session", "mcp-session-id"} {
			if strings.Contains(low, s) {
				return true
			}
		}
	}
	return false
}

// failure returns why a request of the exchange has no result. err is the SDK's error.
func (x *exchange) failure(err error) *transport.Failure {
	if x.ctx.Err() != nil {
		return x.ended()
	}
	rpc, isErr := errors.AsType[*jsonrpc.Error](err)
	_, fromServer := errors.AsType[*serverError](err)
	switch {
	case isErr && fromServer && x.session.id() != "" && meansLost(rpc):
		x.session.lost.Store(true)
		return transport.LostSession(rpc)
	case isErr && fromServer:
		return transport.RPCFailure(rpc)
	case !x.sent.Load():
		// The SDK refused to send: its session ended.
		return transport.LostSession(err)
	case x.answered.Load():
		return transport.BadReply("it does not decode", err)
	}
	return &transport.Failure{Kind: UnknownOutcome, Public: "the session ended before its answer", Err: err}
}

// ended returns why the exchange is over.
func (x *exchange) ended() *transport.Failure {
	cause := context.Cause(x.ctx)
	if f, ok := errors.AsType[*transport.Failure](cause); ok {
		return f
	}
	switch {
	case errors.Is(cause, transport.ErrClosed):
		return &transport.Failure{Kind: Cancelled, Public: "answerd is shutting down", Err: cause}
	case errors.Is(cause, transport.ErrTimeout) && x.fetching.Load():
		return &transport.Failure{Kind: Timeout, Public: "no token for it in time", NotRun: true, Err: transport.CredentialsError(cause)}
	case errors.Is(cause, transport.ErrTimeout), errors.Is(x.caller.Err(), context.DeadlineExceeded):
		return &transport.Failure{Kind: Timeout, Public: "no answer in time", Err: cause}
	}
	return &transport.Failure{Kind: Cancelled, Public: "cancelled", Err: cause}
}

// opened and closed count the exchange's streams.
func (x *exchange) opened() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.bodies++
}

// closed is the other end of opened; the last one of a finished exchange frees it.
func (x *exchange) closed() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.bodies--
	if x.over && x.bodies == 0 && x.timer != nil && x.timer.Stop() {
		x.release()
	}
}

// finish lets go of the exchange's context: at once, unless an answered stream is
// still being read to its end, which is what keeps its TCP connection for the next
// call.
func (x *exchange) finish() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	if x.tagged.Load() {
		x.session.asked.forget(x)
	}
	if x.session != nil && x.session.standing.Load() {
		x.session.company.leave(x, x.sent.Load() && !x.answered.Load())
	}
	if x.bodies > 0 && x.answered.Load() && x.ctx.Err() == nil {
		x.timer = time.AfterFunc(linger, x.release)
		return
	}
	x.release()
}
