package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// lingerTimeout is how long a server may keep a stream open after its answer before the stream,
// and with it the TCP connection, is closed.
const lingerTimeout = time.Second

type roundTripKey struct{}

// RoundTrip is one of our requests and what becomes of it: how long it has, what is sent with it,
// and whether the server may have got it. It travels in the request's context, which the SDK hands
// down to the connection. The answer is not in it: the SDK returns that.
//
// Set the exported fields before the request is sent, then call Start; call Finish when the SDK
// has returned. A RoundTrip that is the handshake's covers all requests of the handshake.
type RoundTrip struct {
	// Owner is for the creator of the RoundTrip; this package does not use it.
	Owner   any
	Session *Session
	// Handshake says that the request is server/discover or initialize, which must not be
	// cancelled.
	Handshake bool
	// Query holds the query parameters of this request, which win over those of the server.
	// A connection that is not HTTP sends none.
	Query map[string]string
	// Headers are sent with a tools/call from StatelessVersion on (SEP-2243).
	Headers map[string]string
	// ProgressToken is the token under which the server reports progress; "" if progress was not
	// requested.
	ProgressToken string
	// MaxAnswer is how many bytes the answer may have, if that is more than MaxMessage. Over HTTP+SSE
	// it may not have more.
	MaxAnswer int
	// Tokens sends the request with a bearer token; nil: Session.Tokens, or the server's.
	Tokens Sender

	ctx     context.Context
	caller  context.Context // that it was started under
	life    context.Context // of the server
	cancel  context.CancelCauseFunc
	detach  func() bool // stops ctx from ending with caller
	release func()      // frees what ctx holds
	timer   idleTimer

	sent         atomic.Bool  // there was a connection for it, so the server may have got it
	sentAt       atomic.Int64 // when, over HTTP: Unix time in ns
	tokenRenewed atomic.Bool  // its token was renewed once already
	// fetching says that a token is being waited for, or did not come.
	fetchingToken atomic.Bool
	// answered says that the server is done with the request: it has answered or refused it.
	answered atomic.Bool
	// failed says that the transport has ended it and that the server needs no cancellation.
	noCancel atomic.Bool

	// receivedBytes and receivedMessages count what the server sent before its answer.
	receivedBytes, receivedMessages atomic.Int64

	mu          sync.Mutex // protects what follows
	streams     int        // streams that are not closed yet
	finished    bool
	lingerTimer *time.Timer
}

// answerLimit returns how many bytes the answer may have.
func (trip *RoundTrip) answerLimit() int { return max(trip.MaxAnswer, MaxMessage) }

// Start makes the context of the request, which ends with ctx, with life, and at deadline. An answered
// request no longer ends with ctx after Finish: callers end their contexts as soon as they have the
// result, when the rest of the stream may still have to be read.
func (trip *RoundTrip) Start(ctx, life context.Context, deadline time.Time) {
	trip.caller, trip.life = ctx, life
	cctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	if ctx.Err() != nil {
		cancel(context.Cause(ctx)) // now, and not on a goroutine that may run after the request is sent
	}
	trip.detach = context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	unhook := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	trip.timer.start(deadline, func() { cancel(ErrTimeout) })
	trip.cancel = cancel
	trip.release = func() { trip.detach(); unhook(); trip.timer.stop(); cancel(nil) }
	trip.ctx = context.WithValue(cctx, roundTripKey{}, trip)
}

// RoundTripOf returns the RoundTrip that ctx carries; nil where there is none. Every context that
// is given to the SDK has one.
func RoundTripOf(ctx context.Context) *RoundTrip {
	trip, _ := ctx.Value(roundTripKey{}).(*RoundTrip)
	return trip
}

// Context returns the context to send the request with.
func (trip *RoundTrip) Context() context.Context { return trip.ctx }

// Life returns the context of the server that Start was given.
func (trip *RoundTrip) Life() context.Context { return trip.life }

// Cancel ends the request. Failure returns cause if it is a *Failure.
func (trip *RoundTrip) Cancel(cause error) { trip.cancel(cause) }

// Deadline returns when the request ends at the latest.
func (trip *RoundTrip) Deadline() time.Time { return trip.timer.deadline() }

// SetIdleTimeout also ends the request when nothing came from the server for that long.
func (trip *RoundTrip) SetIdleTimeout(d time.Duration) { trip.timer.setIdle(d) }

// PauseTimer stops the request's time until ResumeTimer, while a person is asked. Calls do not
// nest.
func (trip *RoundTrip) PauseTimer() { trip.timer.pause() }

// ResumeTimer lets the request's time continue, unless it was over when it was paused.
func (trip *RoundTrip) ResumeTimer() { trip.timer.resume() }

// Sent reports whether the server may have got the request.
func (trip *RoundTrip) Sent() bool { return trip.sent.Load() }

// SetNotSent records that every request sent so far was refused, so that the server has not carried
// it out.
func (trip *RoundTrip) SetNotSent() { trip.sent.Store(false) }

// FetchingToken reports whether the request waits for its token, or did not get one.
func (trip *RoundTrip) FetchingToken() bool { return trip.fetchingToken.Load() }

// TokenRenewed reports whether the request's token was renewed, which happens once.
func (trip *RoundTrip) TokenRenewed() bool { return trip.tokenRenewed.Load() }

// SetTokenRenewed says whether the request's token was renewed already: a handshake takes several
// requests, and renews once.
func (trip *RoundTrip) SetTokenRenewed(renewed bool) { trip.tokenRenewed.Store(renewed) }

// sender returns what sends the request with a token; nil: the server's.
func (trip *RoundTrip) sender() Sender {
	switch {
	case trip == nil:
		return nil
	case trip.Tokens == nil && trip.Session != nil:
		return trip.Session.Tokens
	}
	return trip.Tokens
}

// traceConn returns ctx with a trace that notes when the request had a connection.
func (trip *RoundTrip) traceConn(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) {
			trip.sentAt.Store(time.Now().UnixNano())
			trip.sent.Store(true)
		},
	})
}

// prepareMessage prepares for a message to be sent. A call whose results are input_required sends several
// (SEP-2322).
func (trip *RoundTrip) prepareMessage() {
	trip.answered.Store(false)
	trip.timer.noteActivity()
}

// countReceived counts a message of n bytes that the server sent before its answer. It returns the
// failure of a request for which a server sends too much.
func (trip *RoundTrip) countReceived(n int) *Failure {
	if trip.receivedBytes.Add(int64(n)) <= maxReceivedBytes && trip.receivedMessages.Add(1) <= maxReceivedMessages {
		return nil
	}
	return &Failure{Kind: TooLarge, Public: fmt.Sprintf("the server sent more than %d messages or %d bytes before its answer", maxReceivedMessages, maxReceivedBytes)}
}

// countOrAbort counts a message that did not come in a stream of the request, and ends the request
// if the server has sent too much for it.
func (trip *RoundTrip) countOrAbort(n int) {
	if f := trip.countReceived(n); f != nil {
		trip.abort(f)
	}
}

// hasToken reports whether message, the text of a progress notification, may have the progress
// token of trip. It does not decode the message; if it is wrong, the reader of the progress finds out.
func (trip *RoundTrip) hasToken(message []byte) bool {
	return trip.ProgressToken != "" && bytes.Contains(message, []byte(`"`+trip.ProgressToken+`"`))
}

// fail ends the request because of f, unless it has ended already. It ends the request's context,
// because the SDK has no exported error with which one request fails and its session continues. The
// SDK then sends notifications/cancelled, which failed keeps from the server.
func (trip *RoundTrip) fail(f *Failure) {
	trip.cancel(f)
	if context.Cause(trip.ctx) == error(f) {
		trip.noCancel.Store(true)
		trip.answered.Store(f.Kind != UnknownOutcome)
	}
}

// abort ends the request because of a failure where the server may continue it, so the SDK
// cancels it there.
func (trip *RoundTrip) abort(f *Failure) { trip.cancel(f) }

// acceptAnswer notes that the server has answered. An answer without a result is a failure.
func (trip *RoundTrip) acceptAnswer(r *jsonrpc.Response) *Failure {
	hasResult := len(r.Result) > 0 && string(r.Result) != "null"
	if r.Error == nil && !hasResult {
		return BadReply("it has no result", nil)
	}
	trip.answered.Store(true)
	return nil
}

// meansLostSession reports whether a JSON-RPC error says that the session is gone. The code alone
// does not: tools use the same codes for their own errors.
func meansLostSession(e *jsonrpc.Error) bool {
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

// Failure returns why the request does not have a result. err is the SDK's error.
func (trip *RoundTrip) Failure(err error) *Failure {
	if trip.ctx.Err() != nil {
		return trip.Ended()
	}
	rpc, isErr := errors.AsType[*jsonrpc.Error](err)
	_, fromServer := errors.AsType[*serverError](err)
	if isErr && fromServer {
		hasSession := !trip.Handshake && trip.Session.hasID.Load()
		if hasSession && meansLostSession(rpc) {
			trip.Session.Lost.Store(true)
			return LostSession(rpc)
		}
		return rpcFailure(rpc)
	}
	switch {
	case !trip.sent.Load():
		// The SDK refused to send it, because its session has ended.
		return LostSession(err)
	case trip.answered.Load():
		return BadReply("it does not decode", err)
	}
	return &Failure{Kind: UnknownOutcome, Public: "the session ended before its answer", Err: err}
}

// Ended returns why the request's context has ended.
func (trip *RoundTrip) Ended() *Failure {
	cause := context.Cause(trip.ctx)
	if f, ok := errors.AsType[*Failure](cause); ok {
		return f
	}
	switch {
	case errors.Is(cause, ErrClosed):
		return &Failure{Kind: Cancelled, Public: "answerd is shutting down", Err: cause}
	case errors.Is(cause, ErrTimeout) && trip.fetchingToken.Load():
		return &Failure{Kind: Timeout, Public: "no token for it in time", NotRun: true, Err: CredentialsError(cause)}
	case errors.Is(cause, ErrTimeout), errors.Is(trip.caller.Err(), context.DeadlineExceeded):
		return &Failure{Kind: Timeout, Public: "no answer in time", Err: cause}
	}
	return &Failure{Kind: Cancelled, Public: "cancelled", Err: cause}
}

// streamOpened counts a stream of the request until streamClosed.
func (trip *RoundTrip) streamOpened() {
	trip.mu.Lock()
	defer trip.mu.Unlock()
	trip.streams++
}

// streamClosed ends what streamOpened began; call it once for each. The last stream of a finished
// request releases the request's context.
func (trip *RoundTrip) streamClosed() {
	trip.mu.Lock()
	defer trip.mu.Unlock()
	trip.streams--
	if trip.finished && trip.streams == 0 && trip.lingerTimer != nil && trip.lingerTimer.Stop() {
		trip.release()
	}
}

// Finish frees the request's context: at once, unless an answered stream is still being read to
// its end, for at most one second, so that its TCP connection is kept for the next request.
func (trip *RoundTrip) Finish() {
	trip.mu.Lock()
	defer trip.mu.Unlock()
	trip.finished = true
	if trip.Session != nil && trip.Session.standalone.Load() {
		trip.Session.inflight.remove(trip, trip.sent.Load() && !trip.answered.Load())
	}
	if trip.streams > 0 && trip.answered.Load() && trip.detach() && trip.ctx.Err() == nil {
		trip.lingerTimer = time.AfterFunc(lingerTimeout, trip.release)
		return
	}
	trip.release()
}
