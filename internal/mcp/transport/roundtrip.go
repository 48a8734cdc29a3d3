package transport

import (
	"bytes"
	"context"
	"encoding/json"
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

// lingerTimeout is how long a server may keep a stream open after its answer, before the TCP connection is closed.
const lingerTimeout = time.Second

// roundTripKey is the key of the RoundTrip in a context.
type roundTripKey struct{}

// RoundTrip is the state of one request to a server: its context and deadline, what is sent with it, and whether the
// server may have received it. The request's context carries the RoundTrip through the SDK to the connection. The
// answer is not part of the RoundTrip; the SDK returns it.
//
// Set the exported fields, except for FetchingToken, and call Start before the request is sent. Call Finish when the
// SDK has returned. The RoundTrip in Connect's context is used for all requests of the handshake.
type RoundTrip struct {
	// Owner is for the code that creates the RoundTrip. This package does not use it.
	Owner   any
	Session *Session
	// Handshake says that the request is server/discover or initialize, which must not be cancelled.
	Handshake bool
	// Query has query parameters for this request. They replace the server's query parameters of the same name. Only
	// Streamable HTTP sends them with each request.
	Query map[string]string
	// Headers are sent with a tools/call from StatelessVersion on (SEP-2243).
	Headers map[string]string
	// ProgressToken is the token with which the server reports progress; "" if progress was not requested.
	ProgressToken string
	// MaxAnswer is the maximum size of the answer in bytes. Values below MaxMessage count as MaxMessage. Over HTTP+SSE
	// the limit is always MaxMessage.
	MaxAnswer int
	// Tokens adds a bearer token to the request. If it is nil, Session.Tokens or else HeaderTransport.Tokens does.
	Tokens Sender
	// TokenRenewed says that the token was renewed, which is done only once. The requests of a handshake each have a
	// RoundTrip, but together may renew the token only once.
	TokenRenewed atomic.Bool
	// FetchingToken is true while the request waits for a token, and after fetching the token has failed.
	FetchingToken atomic.Bool

	ctx       context.Context // the request's context, made by Start
	caller    context.Context // the ctx that Start got
	life      context.Context // the life that Start got, which ends with the server
	cancel    context.CancelCauseFunc
	detach    func() bool // separates ctx from caller; returns false if caller has ended
	release   func()      // ends ctx and frees its timers
	idleTimer             // ends ctx with ErrTimeout

	sent   atomic.Bool  // the server may have received the request
	sentAt atomic.Int64 // Unix time in ns when the request got a connection (HTTP only)
	// answered says that the server has answered or refused the request, so that it does not work on it any more.
	answered atomic.Bool
	// noCancel says that fail has ended the request. The server then does not get notifications/cancelled.
	noCancel atomic.Bool

	// receivedBytes and receivedMessages count what the server has sent before its answer.
	receivedBytes, receivedMessages atomic.Int64

	mu          sync.Mutex  // protects the fields below
	streams     int         // streams that are not closed yet
	lingerTimer *time.Timer // set by Finish if streams are still open; calls release
}

// answerLimit returns the maximum size of the answer in bytes.
func (r *RoundTrip) answerLimit() int { return max(r.MaxAnswer, MaxMessage) }

// Start creates the request's context. It has the values of ctx, and ends with ctx, with life, and at deadline. After
// Finish, the context of an answered request no longer ends with ctx: ctx ends when the call has its result, but the
// rest of the stream may still have to be read.
func (r *RoundTrip) Start(ctx, life context.Context, deadline time.Time) {
	r.caller, r.life = ctx, life
	requestCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	if ctx.Err() != nil {
		cancel(context.Cause(ctx)) // AfterFunc may call cancel too late, after the request is sent
	}
	r.detach = context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	detachLife := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	r.idleTimer.start(deadline, func() { cancel(ErrTimeout) })
	r.cancel = cancel
	r.release = func() {
		r.detach()
		detachLife()
		r.idleTimer.stop()
		cancel(nil)
	}
	r.ctx = context.WithValue(requestCtx, roundTripKey{}, r)
}

// RoundTripOf returns the RoundTrip in ctx, or nil if ctx has none. Every context that the SDK gets must have one.
func RoundTripOf(ctx context.Context) *RoundTrip {
	roundTrip, _ := ctx.Value(roundTripKey{}).(*RoundTrip)
	return roundTrip
}

// withRoundTrip returns ctx with a new RoundTrip in session. It is for messages that are not part of a call: each may
// renew a token once.
func withRoundTrip(ctx context.Context, session *Session) context.Context {
	return context.WithValue(ctx, roundTripKey{}, &RoundTrip{Session: session})
}

// Context returns the context with which the request must be sent.
func (r *RoundTrip) Context() context.Context { return r.ctx }

// Cancel ends the request's context with cause. If cause is a *Failure, Failure returns it. The SDK then sends
// notifications/cancelled, because the server may still work on the request.
func (r *RoundTrip) Cancel(cause error) { r.cancel(cause) }

// Sent reports whether the server may have received the request.
func (r *RoundTrip) Sent() bool { return r.sent.Load() }

// SetNotSent makes Sent return false. Call it when the server has refused the request without executing it.
func (r *RoundTrip) SetNotSent() { r.sent.Store(false) }

// sender returns the request's Sender or else its Session's; nil if they have none. r may be nil.
func (r *RoundTrip) sender() Sender {
	switch {
	case r == nil:
		return nil
	case r.Tokens == nil && r.Session != nil:
		return r.Session.Tokens
	}
	return r.Tokens
}

// traceConn returns ctx with a trace that sets sent and sentAt when the request gets a TCP connection.
func (r *RoundTrip) traceConn(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) {
			r.sentAt.Store(time.Now().UnixNano())
			r.sent.Store(true)
		},
	})
}

// prepareMessage resets the state for the next message of the request. A call sends several messages if the server
// answers with input_required (SEP-2322).
func (r *RoundTrip) prepareMessage() {
	r.answered.Store(false)
	r.noteActivity()
}

// countReceived counts a message of n bytes that the server sent before its answer. It returns a failure if the server
// has sent more than maxReceivedMessages or maxReceivedBytes for this request, otherwise nil.
func (r *RoundTrip) countReceived(n int) *Failure {
	if r.receivedBytes.Add(int64(n)) <= maxReceivedBytes && r.receivedMessages.Add(1) <= maxReceivedMessages {
		return nil
	}
	return &Failure{
		Kind:   TooLarge,
		Public: fmt.Sprintf("the server sent more than %d messages or %d bytes before its answer", maxReceivedMessages, maxReceivedBytes),
	}
}

// countOrCancel calls countReceived for a message from another stream, and cancels the request if that fails.
func (r *RoundTrip) countOrCancel(n int) {
	if failure := r.countReceived(n); failure != nil {
		r.Cancel(failure)
	}
}

// hasToken reports whether message, the text of a progress notification, contains the request's progress token as a
// JSON string. It does not decode message, so the string may be the value of another member.
func (r *RoundTrip) hasToken(message []byte) bool {
	return r.ProgressToken != "" && bytes.Contains(message, []byte(`"`+r.ProgressToken+`"`))
}

// fail ends the request's context with f, unless the context has already ended. The SDK has no exported error that
// fails one request and keeps the session, so the context must end. The SDK then calls Write with
// notifications/cancelled. noCancel suppresses that message, because the server has nothing to cancel.
func (r *RoundTrip) fail(f *Failure) {
	r.cancel(f)
	if context.Cause(r.ctx) == error(f) { // the context had not ended before
		r.noCancel.Store(true)
		r.answered.Store(f.Kind != UnknownOutcome)
	}
}

// acceptAnswer records that the server has answered. If answer has neither an error nor a result, it records nothing
// and returns a failure.
func (r *RoundTrip) acceptAnswer(answer *jsonrpc.Response) *Failure {
	hasResult := len(answer.Result) > 0 && string(answer.Result) != "null"
	if answer.Error == nil && !hasResult {
		return BadReply("it has no result", nil)
	}
	r.answered.Store(true)
	return nil
}

// lostSessionCodes are the codes of JSON-RPC errors with which servers say that a session is gone.
var lostSessionCodes = []int64{32600, -32600, -32000, -32001, -32002}

// meansLostSession reports whether e says that the session is gone, with one of the codes and texts that servers use
// for that. The code alone is not enough, because tools use the same codes for their own errors.
func meansLostSession(e *jsonrpc.Error) bool {
	if !slices.Contains(lostSessionCodes, e.Code) {
		return false
	}
	return namesLostSession(e.Message)
}

// namesLostSession reports whether text, which a server has sent with a refusal, says that a session is gone.
func namesLostSession(text string) bool {
	lower := strings.ToLower(text)
	phrases := []string{"session terminated", "session not found", "no valid session", "mcp-session-id", "server not initialized"}
	return slices.ContainsFunc(phrases, func(phrase string) bool { return strings.Contains(lower, phrase) })
}

// failureWithoutReply returns the failure of an HTTP request, sent with traceConn, that ended with err and no reply.
func (r *RoundTrip) failureWithoutReply(err error) *Failure {
	if r.sent.Load() {
		return unansweredFailure(err)
	}
	return unsentFailure(err)
}

// Failure returns the reason why the request has no result. err is the error that the SDK returned for the request. If
// err says that the session is lost, Failure also sets Session.Lost.
func (r *RoundTrip) Failure(err error) *Failure {
	if r.ctx.Err() != nil {
		return r.Ended()
	}
	if answer, ok := errors.AsType[*serverError](err); ok {
		hasSession := !r.Handshake && r.Session.hasID.Load()
		if hasSession && meansLostSession(&answer.rpc) {
			r.Session.Lost.Store(true)
			return LostSession(&answer.rpc)
		}
		return rpcFailure(&answer.rpc)
	}
	switch {
	case !r.sent.Load():
		// The SDK did not send the request, because the session has ended.
		return LostSession(err)
	case r.answered.Load():
		// The SDK could not decode the result.
		what := "it does not decode"
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
			what = fmt.Sprintf("%.80q in it has the wrong type", wrong.Field)
		}
		return BadReply(what, err)
	}
	return &Failure{Kind: UnknownOutcome, Public: "the session ended before its answer", Err: err}
}

// Ended returns the reason why the request's context has ended: the *Failure with which it was cancelled, or a failure
// of Kind Timeout or Cancelled. The context must have ended.
func (r *RoundTrip) Ended() *Failure {
	cause := context.Cause(r.ctx)
	if f, ok := errors.AsType[*Failure](cause); ok {
		return f
	}
	switch {
	case errors.Is(cause, ErrClosed):
		return &Failure{Kind: Cancelled, Public: "answerd is shutting down", Err: cause}
	case errors.Is(cause, ErrTimeout) && r.FetchingToken.Load():
		return &Failure{Kind: Timeout, Public: "no token for it in time", NotRun: true, Err: CredentialsError(cause)}
	case errors.Is(cause, ErrTimeout), errors.Is(r.caller.Err(), context.DeadlineExceeded):
		return &Failure{Kind: Timeout, Public: "no answer in time", NotRun: !r.Sent(), Err: cause}
	}
	return &Failure{Kind: Cancelled, Public: "cancelled", Err: cause}
}

// streamOpened records that a stream of the request is open until streamClosed is called.
func (r *RoundTrip) streamOpened() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams++
}

// streamClosed must be called once for each streamOpened. After Finish, the last one ends the request's context.
func (r *RoundTrip) streamClosed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams--
	if r.streams == 0 && r.lingerTimer != nil && r.lingerTimer.Stop() {
		r.release()
	}
}

// Finish ends the request's context. If an answered request's stream is still being read to its end, so that its TCP
// connection can be used again, the context ends later: with the stream, or after lingerTimeout.
func (r *RoundTrip) Finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Session != nil {
		isAbandoned := r.sent.Load() && !r.answered.Load()
		r.Session.inflight.remove(r, isAbandoned)
	}
	isStillRead := r.streams > 0 && r.answered.Load()
	if isStillRead && r.detach() && r.ctx.Err() == nil {
		r.lingerTimer = time.AfterFunc(lingerTimeout, r.release)
		return
	}
	r.release()
}
