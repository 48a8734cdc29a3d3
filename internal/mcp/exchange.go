package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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

// errTimeout ends an exchange at its deadline.
var errTimeout = errors.New("no answer in time")

type exchangeKey struct{}

// exchange is one request of ours and what came back, as the transport's edge sees
// it. It travels in the request's context, which the SDK hands down to the
// connection, and knows two things that the SDK doesn't tell: whether the request
// was sent, and the bytes of the answer as they were received.
type exchange struct {
	ctx       context.Context
	life      context.Context // of the server
	cancel    context.CancelCauseFunc
	release   func() // frees what ctx holds
	session   *session
	handshake bool
	patience  time.Duration     // of a handshake: for the answer to server/discover
	query     map[string]string // query parameters of this call
	headers   map[string]string // and headers, where the protocol has them
	token     string            // progress token; "" where nobody asked
	notes     *noteQueue        // of the call; nil where nobody listens
	wantsLog  bool              // its reader takes log messages
	talk      *talk             // who answers the server's own requests; nil: nobody
	limit     limit             // its time
	tokens    sender            // of the caller; nil: the session's, or the server's

	sent    atomic.Bool  // a connection was had, so the server may have got it
	sentAt  atomic.Int64 // when, over HTTP: Unix time in ns
	renewed atomic.Bool  // a token was renewed once already
	tagged  atomic.Bool  // the server asked something
	// fetching says that a token is being waited for, or did not come.
	fetching atomic.Bool

	// ended, of capacity 1, is told that the answer has come, or that none will; nil
	// where the SDK waits for it.
	ended chan struct{}

	mu      sync.Mutex // protects what follows
	id      jsonrpc.ID // of the latest request
	method  string     // of it; not changed while it is under way
	result  json.RawMessage
	failure *failure
	bodies  int  // streams that are not closed yet
	over    bool // finish was called
	timer   *time.Timer
}

// newExchange is an exchange under ctx that ends at deadline, or when life does.
func newExchange(ctx, life context.Context, deadline time.Time) *exchange {
	x := &exchange{life: life}
	cctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	x.limit.start(deadline, func() { cancel(errTimeout) })
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

// begin starts the request id, and forgets what an earlier one of the same exchange
// brought: a call with input_required results takes several (SEP-2322).
func (x *exchange) begin(id jsonrpc.ID, method string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.id, x.method, x.result, x.failure = id, method, nil, nil
	x.limit.touch()
}

// asked is the request that the exchange waits for.
func (x *exchange) asked() jsonrpc.ID {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.id
}

// asking is that request's method. A stream of the request before it may still be read.
func (x *exchange) asking() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.method
}

// fail notes f as the outcome, and returns it.
func (x *exchange) fail(f *failure) *failure {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.failure = f
	x.tellEnd()
	return f
}

// tellEnd tells who waits on ended.
func (x *exchange) tellEnd() {
	select {
	case x.ended <- struct{}{}: // nil, and so never, where nobody waits
	default:
	}
}

// failAside notes that a request failed which only a handshake depends on
// (notifications/initialized), and returns f.
func (x *exchange) failAside(f *failure) *failure {
	if !x.handshake {
		return f
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.result, x.failure = nil, f
	return f
}

// abort ends the exchange with f. The end of its context makes the SDK tell the server,
// which may go on with it.
func (x *exchange) abort(f *failure) *failure {
	x.fail(f)
	x.cancel(f)
	return f
}

// answer notes the server's answer.
func (x *exchange) answer(r *jsonrpc.Response) {
	rpc, isErr := errors.AsType[*jsonrpc.Error](r.Error)
	switch {
	case isErr && x.session.id() != "" && meansLost(rpc):
		x.session.lost.Store(true)
		x.fail(lostSession(rpc))
	case isErr:
		x.fail(rpcFailure(rpc))
	case len(r.Result) == 0 || string(r.Result) == "null":
		x.fail(badReply("it has no result", nil))
	default:
		x.mu.Lock()
		x.result = r.Result
		x.tellEnd()
		x.mu.Unlock()
	}
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

// received is the answer's result as received; nil where there is none.
func (x *exchange) received() json.RawMessage {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.result
}

// outcome is the answer's result as received, or why there is none. err is what the
// SDK made of it.
func (x *exchange) outcome(caller context.Context, err error) (json.RawMessage, *failure) {
	x.mu.Lock()
	result, f := x.result, x.failure
	x.mu.Unlock()
	switch {
	case result != nil:
		return result, nil
	case x.ctx.Err() == nil && f != nil:
		return nil, f
	case x.ctx.Err() == nil && !x.sent.Load():
		// The SDK refused to send: its session ended.
		return nil, lostSession(err)
	case x.ctx.Err() == nil:
		return nil, &failure{kind: UnknownOutcome, public: "the session ended before its answer", err: err}
	}
	cause := context.Cause(x.ctx)
	if f, ok := errors.AsType[*failure](cause); ok {
		return nil, f
	}
	switch {
	case errors.Is(cause, errClosed):
		return nil, &failure{kind: Cancelled, public: "answerd is shutting down", err: cause}
	case errors.Is(cause, errTimeout) && x.fetching.Load():
		return nil, &failure{kind: Timeout, public: "no token for it in time", notRun: true, err: ofCredentials(cause)}
	case errors.Is(cause, errTimeout), errors.Is(caller.Err(), context.DeadlineExceeded):
		return nil, &failure{kind: Timeout, public: "no answer in time", err: cause}
	}
	return nil, &failure{kind: Cancelled, public: "cancelled", err: cause}
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
		open := x.failure == nil || x.failure.kind == UnknownOutcome
		x.session.company.leave(x, x.sent.Load() && x.result == nil && open)
	}
	if x.bodies > 0 && x.result != nil && x.ctx.Err() == nil {
		x.timer = time.AfterFunc(linger, x.release)
		return
	}
	x.release()
}
