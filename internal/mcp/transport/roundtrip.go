package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"slices"
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

// RoundTrip is the state of one of our requests: its context and deadline, what is sent with it, and whether the
// server may have got it. The context of the request carries the RoundTrip through the SDK to the connection. The
// SDK returns the answer; the RoundTrip does not have it.
//
// Set the exported fields and call Start before the request is sent. Call Finish when the SDK has returned. The
// RoundTrip that Connect gets covers all requests of the handshake.
type RoundTrip struct {
	// Owner is for the creator of the RoundTrip. This package does not use it.
	Owner   any
	Session *Session
	// Handshake says that the request is server/discover or initialize, which must not be
	// cancelled.
	Handshake bool
	// Query holds the query parameters of this request. They replace query parameters of the server that have
	// the same name. Only Streamable HTTP sends them with each request.
	Query map[string]string
	// Headers are sent with a tools/call from StatelessVersion on (SEP-2243).
	Headers map[string]string
	// ProgressToken is the token under which the server reports progress; "" if progress was not
	// requested.
	ProgressToken string
	// MaxAnswer is how many bytes the answer may have. Values below MaxMessage count as MaxMessage. Over
	// HTTP+SSE the limit is always MaxMessage.
	MaxAnswer int
	// Tokens sends the request with a bearer token. If it is nil, Session.Tokens does, or else
	// HeaderTransport.Tokens.
	Tokens Sender

	ctx     context.Context // of the request, made by Start
	caller  context.Context // given to Start
	life    context.Context // of the server, given to Start
	cancel  context.CancelCauseFunc
	detach  func() bool // keeps ctx from ending with caller; false if caller has ended
	release func()      // ends ctx and frees its timers
	timer   idleTimer

	sent         atomic.Bool  // the server may have got the request
	sentAt       atomic.Int64 // Unix time in ns at which HTTP had a connection for the request
	tokenRenewed atomic.Bool  // the token was renewed, which may happen once
	// fetchingToken says that the request waits for a token, or that fetching the token has failed.
	fetchingToken atomic.Bool
	// answered says that the server has answered or refused the request, and does not work on it any more.
	answered atomic.Bool
	// noCancel says that fail has ended the request, so the server does not get notifications/cancelled.
	noCancel atomic.Bool

	// receivedBytes and receivedMessages count what the server sent before its answer.
	receivedBytes, receivedMessages atomic.Int64

	mu          sync.Mutex  // protects what follows
	streams     int         // streams that are not closed yet
	lingerTimer *time.Timer // set by Finish if streams remain open; calls release
}

// answerLimit returns how many bytes the answer may have.
func (trip *RoundTrip) answerLimit() int { return max(trip.MaxAnswer, MaxMessage) }

// Start makes the context of the request, which has the values of ctx and ends with ctx, with life, and at deadline.
// After Finish, the context of an answered request does not end with ctx: callers end ctx when they have the
// result, but the rest of the stream may still have to be read.
func (trip *RoundTrip) Start(ctx, life context.Context, deadline time.Time) {
	trip.caller, trip.life = ctx, life
	requestCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	if ctx.Err() != nil {
		cancel(context.Cause(ctx)) // AfterFunc may call cancel only after the request is sent
	}
	trip.detach = context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	detachLife := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	trip.timer.start(deadline, func() { cancel(ErrTimeout) })
	trip.cancel = cancel
	trip.release = func() {
		trip.detach()
		detachLife()
		trip.timer.stop()
		cancel(nil)
	}
	trip.ctx = context.WithValue(requestCtx, roundTripKey{}, trip)
}

// RoundTripOf returns the RoundTrip that ctx carries; nil if there is none. Every context that the SDK gets must
// carry a RoundTrip.
func RoundTripOf(ctx context.Context) *RoundTrip {
	trip, _ := ctx.Value(roundTripKey{}).(*RoundTrip)
	return trip
}

// Context returns the context to send the request with.
func (trip *RoundTrip) Context() context.Context { return trip.ctx }

// Life returns the context of the server, which Start got as life.
func (trip *RoundTrip) Life() context.Context { return trip.life }

// Cancel ends the context of the request with cause. If cause is a *Failure, Failure returns it.
func (trip *RoundTrip) Cancel(cause error) { trip.cancel(cause) }

// Deadline returns when the request ends at the latest. PauseTimer and ResumeTimer move it.
func (trip *RoundTrip) Deadline() time.Time { return trip.timer.deadline() }

// SetIdleTimeout makes the request also end when nothing has come from the server for d.
func (trip *RoundTrip) SetIdleTimeout(d time.Duration) { trip.timer.setIdle(d) }

// PauseTimer stops the deadline and the idle timeout of the request until ResumeTimer, while a person is asked. It
// must not be called again before ResumeTimer.
func (trip *RoundTrip) PauseTimer() { trip.timer.pause() }

// ResumeTimer ends a pause. The deadline moves by its length, and the idle timeout starts again.
func (trip *RoundTrip) ResumeTimer() { trip.timer.resume() }

// Sent reports whether the server may have got the request.
func (trip *RoundTrip) Sent() bool { return trip.sent.Load() }

// SetNotSent makes Sent false, because the server has refused the request without carrying it out.
func (trip *RoundTrip) SetNotSent() { trip.sent.Store(false) }

// FetchingToken reports whether the request waits for its token, or fetching the token has failed.
func (trip *RoundTrip) FetchingToken() bool { return trip.fetchingToken.Load() }

// TokenRenewed reports whether the request's token was renewed, which may happen once.
func (trip *RoundTrip) TokenRenewed() bool { return trip.tokenRenewed.Load() }

// SetTokenRenewed sets TokenRenewed. It is for a handshake, whose requests have a RoundTrip each but may renew the
// token only once together.
func (trip *RoundTrip) SetTokenRenewed(renewed bool) { trip.tokenRenewed.Store(renewed) }

// sender returns the Sender of the RoundTrip or its Session; nil if they have none. trip may be nil.
func (trip *RoundTrip) sender() Sender {
	switch {
	case trip == nil:
		return nil
	case trip.Tokens == nil && trip.Session != nil:
		return trip.Session.Tokens
	}
	return trip.Tokens
}

// traceConn returns ctx with a trace that sets sent and sentAt when the request gets a TCP connection.
func (trip *RoundTrip) traceConn(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) {
			trip.sentAt.Store(time.Now().UnixNano())
			trip.sent.Store(true)
		},
	})
}

// prepareMessage resets the state for the next message of the request. A call sends several messages if its results
// are input_required (SEP-2322).
func (trip *RoundTrip) prepareMessage() {
	trip.answered.Store(false)
	trip.timer.noteActivity()
}

// countReceived counts a message of n bytes that the server sent before its answer. It returns a failure if the server
// has sent more than maxReceivedMessages or maxReceivedBytes for the request, else nil.
func (trip *RoundTrip) countReceived(n int) *Failure {
	if trip.receivedBytes.Add(int64(n)) <= maxReceivedBytes && trip.receivedMessages.Add(1) <= maxReceivedMessages {
		return nil
	}
	return &Failure{
		Kind:   TooLarge,
		Public: fmt.Sprintf("the server sent more than %d messages or %d bytes before its answer", maxReceivedMessages, maxReceivedBytes),
	}
}

// countOrAbort counts a message of n bytes with countReceived, and aborts the request if it returns a failure. It is
// for messages that did not come in the stream of the request.
func (trip *RoundTrip) countOrAbort(n int) {
	if f := trip.countReceived(n); f != nil {
		trip.abort(f)
	}
}

// hasToken reports whether message, the text of a progress notification, contains the progress token of trip as a
// JSON string. It does not decode message, so the token may be in another member.
func (trip *RoundTrip) hasToken(message []byte) bool {
	return trip.ProgressToken != "" && bytes.Contains(message, []byte(`"`+trip.ProgressToken+`"`))
}

// fail ends the context of the request with f. It does nothing if the context has ended before. The SDK has no
// exported error with which one request fails and the session continues, so the context must end. The SDK then
// calls Write with notifications/cancelled, which noCancel suppresses, since the server has nothing to cancel.
func (trip *RoundTrip) fail(f *Failure) {
	trip.cancel(f)
	if context.Cause(trip.ctx) == error(f) { // f is the first cause
		trip.noCancel.Store(true)
		trip.answered.Store(f.Kind != UnknownOutcome)
	}
}

// abort ends the context of the request with f, as fail does. But the server may continue the request, so the
// notifications/cancelled of the SDK is sent.
func (trip *RoundTrip) abort(f *Failure) { trip.cancel(f) }

// acceptAnswer records that the server has answered. It returns a failure, and records nothing, if r has neither an
// error nor a result.
func (trip *RoundTrip) acceptAnswer(r *jsonrpc.Response) *Failure {
	hasResult := len(r.Result) > 0 && string(r.Result) != "null"
	if r.Error == nil && !hasResult {
		return BadReply("it has no result", nil)
	}
	trip.answered.Store(true)
	return nil
}

// lostSessionCodes are the codes of JSON-RPC errors with which servers say that a session is gone.
var lostSessionCodes = []int64{32600, -32600, -32000, -32001}

// meansLostSession reports whether a JSON-RPC error says that the session is gone, with one of the codes and texts
// that servers use for it. The code alone is not enough, because tools use the same codes for their own errors.
func meansLostSession(e *jsonrpc.Error) bool {
	if !slices.Contains(lostSessionCodes, e.Code) {
		return false
	}
	message := strings.ToLower(e.Message)
	texts := []string{"session terminated", "session not found", "no valid session", "mcp-session-id"}
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(message, text) })
}

// Failure returns why the request does not have a result. err is the error that the SDK returned for the request. If
// err says that the session is lost, Failure sets Session.Lost.
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
		// The SDK did not send the request, because its session has ended.
		return LostSession(err)
	case trip.answered.Load():
		// The SDK could not decode the result.
		return BadReply("it does not decode", err)
	}
	return &Failure{Kind: UnknownOutcome, Public: "the session ended before its answer", Err: err}
}

// Ended returns why the request's context has ended: the *Failure with which it was cancelled, or a failure of Kind
// Timeout or Cancelled. Call it only if the context has ended.
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
		return &Failure{Kind: Timeout, Public: "no answer in time", NotRun: !trip.Sent(), Err: cause}
	}
	return &Failure{Kind: Cancelled, Public: "cancelled", Err: cause}
}

// streamOpened records that a stream of the request is open until streamClosed.
func (trip *RoundTrip) streamOpened() {
	trip.mu.Lock()
	defer trip.mu.Unlock()
	trip.streams++
}

// streamClosed must be called once for each streamOpened. When it closes the last stream after Finish, it ends the
// request's context.
func (trip *RoundTrip) streamClosed() {
	trip.mu.Lock()
	defer trip.mu.Unlock()
	trip.streams--
	if trip.streams == 0 && trip.lingerTimer != nil && trip.lingerTimer.Stop() {
		trip.release()
	}
}

// Finish ends the request's context. If the stream of an answered request is still being read to its end, so that its
// TCP connection can be used again, the context ends with the stream, or after lingerTimeout.
func (trip *RoundTrip) Finish() {
	trip.mu.Lock()
	defer trip.mu.Unlock()
	if trip.Session != nil && trip.Session.standalone.Load() {
		trip.Session.inflight.remove(trip, trip.sent.Load() && !trip.answered.Load())
	}
	if trip.streams > 0 && trip.answered.Load() && trip.detach() && trip.ctx.Err() == nil {
		trip.lingerTimer = time.AfterFunc(lingerTimeout, trip.release)
		return
	}
	trip.release()
}
