package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"answerd/internal/mcp/wire"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Kind says why a request has no result. The values are those of the tool_error event.
type Kind string

// The kinds of failures that a server, or the connection to it, can cause.
const (
	InvalidArguments Kind = "invalid_arguments"
	UnknownTool      Kind = "unknown_tool"
	Execution        Kind = "execution" // the server answered with an error
	Timeout          Kind = "timeout"
	Unavailable      Kind = "unavailable" // the request was not sent, or was refused
	Protocol         Kind = "protocol"    // the answer is not valid MCP
	TooLarge         Kind = "too_large"
	Cancelled        Kind = "cancelled"
	UnknownOutcome   Kind = "unknown_outcome" // the server may or may not have carried the request out
)

// Failure is the reason why a request to a server has no result.
//
// A Failure is made where the reason is seen, and passes through the SDK unchanged, mostly as the cause of a context.
// The errors of the SDK are not enough for callers: a connection that was cut in the middle of a call has the same
// text and code ("rejected by transport") as a connection that was never made.
type Failure struct {
	Kind   Kind
	Public string        // text for the caller: without session ids, credentials and addresses
	NotRun bool          // the server provably did not carry the request out
	Lost   bool          // the session is lost, and a new session is needed
	Err    error         // the cause, for the log; may be nil
	Status int           // HTTP status if the failure is one; else 0
	Later  time.Duration // from the header Retry-After; 0 if there was none
}

func (f *Failure) Error() string {
	if f.Err == nil {
		return f.Public
	}
	return f.Public + ": " + f.Err.Error()
}

func (f *Failure) Unwrap() error { return f.Err }

// maxRetryAfter bounds the delay that a server can impose with Retry-After.
const maxRetryAfter = time.Minute

// RetryAfter returns how long the server asked not to be called, at most maxRetryAfter; 0 if it did not ask. The
// value may also be that of a *Failure in the chain of f, such as the failure of a handshake. f may be nil.
func (f *Failure) RetryAfter() time.Duration {
	for f != nil {
		if f.Later > 0 {
			return f.Later
		}
		f, _ = errors.AsType[*Failure](f.Err)
	}
	return 0
}

// StateReason returns the failure as the reason for the state of the server, which all callers may see. It is
// Public, except that only the caller of the request may see the message of a JSON-RPC error.
func (f *Failure) StateReason() string {
	if e, ok := errors.AsType[*jsonrpc.Error](f.Err); ok {
		return fmt.Sprintf("it answered with the error %d", e.Code)
	}
	return f.Public
}

// Causes of failures, for errors.Is.
var (
	// ErrTimeout ends a request at its deadline.
	ErrTimeout = errors.New("no answer in time")
	// ErrClosed ends all requests when the MCP client is closed.
	ErrClosed = errors.New("the MCP client is closed")
	// ErrCredentials is in the chain of a failure whose reason is a missing or refused token. If
	// each caller has their own token, the failure says nothing about the server.
	ErrCredentials = errors.New("credentials")
)

// CredentialsError returns err, which may be nil, with ErrCredentials in its chain.
func CredentialsError(err error) error {
	if err == nil {
		return ErrCredentials
	}
	return fmt.Errorf("%w: %w", ErrCredentials, err)
}

// LostSession returns the failure of a request that was not sent, or that the server refused, because its session
// is gone. The caller can send the request again in a new session. err is the cause, and may be nil.
func LostSession(err error) *Failure {
	return &Failure{Kind: Unavailable, Public: "its session is gone", NotRun: true, Lost: true, Err: err}
}

// AnswerTooLarge returns the failure of a request whose answer has more than limit bytes.
func AnswerTooLarge(limit int) *Failure {
	return &Failure{Kind: TooLarge, Public: fmt.Sprintf("its answer is larger than %d bytes", limit)}
}

// BadReply returns the failure of a request whose answer breaks the protocol. what completes the sentence "its
// answer is not MCP: ". err is the cause, and may be nil. The tool may have run, but the Kind is not
// UnknownOutcome: a repetition would get the same answer.
func BadReply(what string, err error) *Failure {
	return &Failure{Kind: Protocol, Public: "its answer is not MCP: " + what, Err: err}
}

// noReply returns the failure of a request that ended with err and without a reply. sent says that there was a
// connection, so that the server may have got the request. If err has a *Failure in its chain, noReply returns that.
func noReply(err error, sent bool) *Failure {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f
	}
	if refusesCertificate(err) {
		return &Failure{Kind: Unavailable, Public: "it refused our TLS client certificate", NotRun: true, Err: err}
	}
	if !sent {
		return &Failure{Kind: Unavailable, Public: connectReason(err), NotRun: true, Err: err}
	}
	return &Failure{Kind: UnknownOutcome, Public: "the connection was cut before its answer", Err: err}
}

// refusesCertificate reports whether err is a TLS alert of the server about our client certificate, or about its
// absence. In TLS 1.3 the alert arrives after the handshake (RFC 8446 section 4.4.2.4), when the request was sent
// already. The server has not read the request then, because it checks the certificate first. crypto/tls does not
// export a type for alerts, so the text of the error is compared.
func refusesCertificate(err error) bool {
	alert, ok := errors.AsType[*net.OpError](err)
	return ok && alert.Op == "remote error" && strings.Contains(alert.Error(), "certificate")
}

// connectReason returns why the connection failed with err, as a text for the caller. The text of err is not fit
// for the caller: it may contain addresses, and proxy URLs with passwords.
func connectReason(err error) string {
	_, unknownCA := errors.AsType[x509.UnknownAuthorityError](err)
	_, wrongHost := errors.AsType[x509.HostnameError](err)
	_, badCert := errors.AsType[*tls.CertificateVerificationError](err)
	_, noHost := errors.AsType[*net.DNSError](err)
	timeout, isNet := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case unknownCA || wrongHost || badCert:
		return "its TLS certificate is not trusted"
	case noHost:
		return "its host name does not resolve"
	case isNet && timeout.Timeout():
		return "it does not answer"
	}
	return "it cannot be reached"
}

// badStatus returns the failure of a request that was answered with an HTTP status other than 2xx. The request
// may have run if the status is 500 or above, except for 503, with which the server refuses it. Callers must not
// add the body of the reply: it may repeat what the request sent.
func badStatus(status int) *Failure {
	failure := &Failure{Kind: Protocol, Public: fmt.Sprintf("it answered HTTP %d", status), NotRun: true, Status: status}
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		failure.Kind, failure.Public = Unavailable, fmt.Sprintf("it refused our credentials (HTTP %d)", status)
		failure.Err = ErrCredentials
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		failure.Kind, failure.Public = Unavailable, fmt.Sprintf("it is busy (HTTP %d)", status)
	case status == http.StatusRequestEntityTooLarge:
		failure.Kind, failure.Public = TooLarge, "the arguments are too large for it"
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed, status == http.StatusGone:
		failure.Kind = Unavailable
	case status >= 300 && status < 400:
		failure.Public = fmt.Sprintf("it redirects (HTTP %d), which is not followed", status)
	case status >= 500:
		failure.Kind, failure.NotRun = UnknownOutcome, false
	}
	return failure
}

// refusal returns the failure of a request that was answered with resp, whose status is not 2xx. It adds to
// badStatus what the headers say: Retry-After, or that a redirect only adds or removes a slash at the end of
// the URL.
func refusal(resp *http.Response) *Failure {
	failure := badStatus(resp.StatusCode)
	if to, err := resp.Location(); err == nil && resp.Request != nil && resp.StatusCode < 400 {
		// Public does not get the address itself: its path may hold a key.
		path := resp.Request.URL.Path
		switch {
		case to.Path == path+"/":
			failure.Public += ": its URL must end in /"
		case to.Path+"/" == path:
			failure.Public += ": its URL must not end in /"
		}
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		failure.Later = retryAfter(resp.Header)
	}
	return failure
}

// retryAfter returns the delay in the header Retry-After, which has seconds or a date (RFC 9110 section 10.2.3). It
// is at most maxRetryAfter, and 0 if the header is absent or malformed.
func retryAfter(h http.Header) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(time.Until(at), 0), maxRetryAfter)
}

// RefusedRequest begins the message of an error with which answerd refuses a server's request during a call. Servers
// repeat the message, often with its code, when the call fails because of it.
const RefusedRequest = "answerd refused the server's request: "

// maxErrorText is how many bytes of the message of a JSON-RPC error callers and models get.
const maxErrorText = 300

// refusedResult matches the messages with which the TypeScript SDK says that the result of a tool is invalid. Their code
// is that of invalid params.
var refusedResult = regexp.MustCompile(`^(MCP error -32602: )?(Output validation error: |Invalid tools/call result: )`)

// IsUnrelatedToArguments reports whether the message of an error says that the arguments of the call are not its cause,
// although its code may be that of invalid params.
func IsUnrelatedToArguments(message string) bool {
	return strings.Contains(message, RefusedRequest) || refusedResult.MatchString(message)
}

// rpcFailure returns the failure of a request that the server answered with a JSON-RPC error. Public has the
// message of the error, because servers write it for the client that sent the request.
func rpcFailure(e *jsonrpc.Error) *Failure {
	failure := &Failure{Kind: Execution, Public: "it answered: " + wire.Printable(e.Message, maxErrorText), Err: e}
	if IsUnrelatedToArguments(e.Message) {
		return failure
	}
	switch e.Code {
	case jsonrpc.CodeInvalidParams:
		failure.Kind = InvalidArguments
		failure.NotRun = true
		// An unknown tool has the same code (MCP server/tools), so only the message tells.
		message := strings.ToLower(e.Message)
		saysUnknown := strings.Contains(message, "unknown") || strings.Contains(message, "not found")
		if saysUnknown && strings.Contains(message, "tool") {
			failure.Kind = UnknownTool
		}
	case jsonrpc.CodeParseError, jsonrpc.CodeInvalidRequest, jsonrpc.CodeMethodNotFound:
		failure.Kind = Protocol
	}
	return failure
}

// Recover must be deferred directly. It recovers from a panic, logs it with its stack, and calls onPanic with a
// failure. Without a panic it does nothing. The goroutines that process messages of servers use it: a defect
// must cost one request or one session, and not the process with the runs of all callers.
func Recover(log *slog.Logger, onPanic func(*Failure)) {
	v := recover()
	if v == nil {
		return
	}
	log.Error("panic while a message of an MCP server was handled", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	onPanic(&Failure{Kind: Protocol, Public: "what it sent could not be processed"})
}

// withoutPanic calls f, and returns normally if f panics. It is for one step of a sequence whose later steps must
// run, because goroutines wait for them.
func withoutPanic(log *slog.Logger, f func()) {
	defer Recover(log, func(*Failure) {})
	f()
}

const (
	minBackoff = time.Second
	MaxBackoff = time.Minute
)

// Backoff returns how long to wait after that many failures in a row. The upper bound of the wait doubles from
// minBackoff to MaxBackoff. The wait is a random part of it, at least half, so that servers that failed
// at the same time are not tried again at the same time.
func Backoff(failures int) time.Duration {
	bound := min(minBackoff<<min(failures, 10), MaxBackoff) // 10: shifted further, the value could overflow
	return bound/2 + rand.N(bound/2)
}

// Pause waits for d and returns true. It returns false at once when ctx ends.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
