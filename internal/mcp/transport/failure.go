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
	UnknownOutcome   Kind = "unknown_outcome" // the server may or may not have executed the request
)

// Failure is the reason why a request to a server has no result.
//
// A Failure is created where the reason is known. It passes through the SDK unchanged, mostly as the cause of a
// context. The SDK's own errors do not say enough: a connection that was cut during a call gives the same text and
// code ("rejected by transport") as a connection that was never made.
type Failure struct {
	Kind   Kind
	Public string        // text for users: without session ids, credentials and addresses
	NotRun bool          // the server provably did not execute the request
	Lost   bool          // the session is lost, and a new session is needed
	Err    error         // the cause, for the log; may be nil
	Status int           // HTTP status of the reply, if that is the failure; else 0
	Delay  time.Duration // from the header Retry-After; 0 if it was absent
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

// RetryAfter returns the server's Retry-After, at most maxRetryAfter; 0 if the server sent none. It uses the first one
// in f's chain of *Failure values, since f may wrap the failure of a handshake. f may be nil.
func (f *Failure) RetryAfter() time.Duration {
	for f != nil {
		if f.Delay > 0 {
			return f.Delay
		}
		f, _ = errors.AsType[*Failure](f.Err)
	}
	return 0
}

// StateReason returns the text that describes f in the server's state, which all users may see. It is Public, except
// for a JSON-RPC error: only the user whose request failed may see its message, so StateReason returns its code.
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
	// ErrCredentials is in the chain of a failure that is due to a missing or refused token. If each user has their
	// own token, such a failure says nothing about the server.
	ErrCredentials = errors.New("credentials")
)

// CredentialsError wraps err so that errors.Is finds ErrCredentials. err may be nil.
func CredentialsError(err error) error {
	if err == nil {
		return ErrCredentials
	}
	return fmt.Errorf("%w: %w", ErrCredentials, err)
}

// LostSession returns the failure of a request that was not sent, or that the server refused, because its session is
// gone. The request can be sent again in a new session. err is the cause, and may be nil.
func LostSession(err error) *Failure {
	return &Failure{Kind: Unavailable, Public: "its session is gone", NotRun: true, Lost: true, Err: err}
}

// AnswerTooLarge returns the failure of a request whose answer has more than limit bytes.
func AnswerTooLarge(limit int) *Failure {
	return &Failure{Kind: TooLarge, Public: fmt.Sprintf("its answer is larger than %d bytes", limit)}
}

// BadReply returns the failure of a request whose answer breaks the protocol. what completes the sentence "its answer
// is not MCP: ". err is the cause, and may be nil. The tool may have run, but Kind is not UnknownOutcome, because
// sending the request again would give the same answer.
func BadReply(what string, err error) *Failure {
	return &Failure{Kind: Protocol, Public: "its answer is not MCP: " + what, Err: err}
}

// unavailable returns the failure of a request that the server did not get or refused, because of err. reason is the
// text for users. err may be nil.
func unavailable(reason string, err error) *Failure {
	return &Failure{Kind: Unavailable, Public: reason, NotRun: true, Err: err}
}

// connectionCut returns the failure of a request whose connection was cut, because of err, before its answer.
func connectionCut(err error) *Failure {
	return &Failure{Kind: UnknownOutcome, Public: "the connection was cut before its answer", Err: err}
}

// unsentFailure returns the *Failure that err wraps, or the failure of a request that could not be sent because of err.
func unsentFailure(err error) *Failure { return failureOr(err, unavailable(connectReason(err), err)) }

// unansweredFailure returns the failure of a request that the server may have received, but whose reply could not be
// read because of err. If err wraps a *Failure, it returns that one.
func unansweredFailure(err error) *Failure { return failureOr(err, connectionCut(err)) }

// failureOr returns the *Failure that err wraps, the failure that a refused client certificate means, or else other.
func failureOr(err error, other *Failure) *Failure {
	if failure, ok := errors.AsType[*Failure](err); ok {
		return failure
	}
	if refusesCertificate(err) {
		return unavailable("it refused our TLS client certificate", err)
	}
	return other
}

// refusesCertificate reports whether err is the server's TLS alert about a missing or refused client certificate. In
// TLS 1.3 the alert arrives after the handshake (RFC 8446 section 4.4.2.4), when the request has already been sent.
// The server has not read the request then, because it checks the certificate first. crypto/tls does not export a type
// for alerts, so the text of the error is compared.
func refusesCertificate(err error) bool {
	alert, ok := errors.AsType[*net.OpError](err)
	return ok && alert.Op == "remote error" && strings.Contains(alert.Error(), "certificate")
}

// connectReason returns the reason for err, with which connecting failed, as a text for users. The text of err itself
// must not be shown: it may contain addresses, and proxy URLs with passwords.
func connectReason(err error) string {
	invalid, _ := errors.AsType[x509.CertificateInvalidError](err)
	isExpired := invalid.Cert != nil && invalid.Reason == x509.Expired
	_, wrongHost := errors.AsType[x509.HostnameError](err)
	_, badCert := errors.AsType[*tls.CertificateVerificationError](err)
	_, noHost := errors.AsType[*net.DNSError](err)
	timeout, isNet := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case isExpired:
		return "its TLS certificate has expired or is not valid yet"
	case wrongHost:
		return "its TLS certificate is for another host name"
	case badCert:
		return "its TLS certificate is not trusted"
	case noHost:
		return "its host name does not resolve"
	case isNet && timeout.Timeout():
		return "it does not answer"
	}
	return "it cannot be reached"
}

// statusFailure returns the failure of a request that was answered with an HTTP status other than 2xx. Statuses of 500 and
// above mean that the request may have run, except for 503, with which a server refuses a request. Do not add the body
// of the reply to the failure, because it may repeat what the request sent.
func statusFailure(status int) *Failure {
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

// replyFailure returns the failure of a request that was answered with resp, whose status is not 2xx. It extends statusFailure
// with what the headers say: Retry-After, and that a redirect only adds or removes a slash at the end of the URL.
func replyFailure(resp *http.Response) *Failure {
	failure := statusFailure(resp.StatusCode)
	if target, err := resp.Location(); err == nil && resp.Request != nil && resp.StatusCode < 400 {
		// Users see Public, so it must not contain the target itself: the path of the URL may hold a key.
		path := resp.Request.URL.Path
		switch {
		case target.Path == path+"/":
			failure.Public += ": its URL must end in /"
		case target.Path+"/" == path:
			failure.Public += ": its URL must not end in /"
		}
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		failure.Delay = retryAfter(resp.Header)
	}
	return failure
}

// retryAfter returns the delay in the header Retry-After, which has seconds or a date (RFC 9110 section 10.2.3). It is
// at most maxRetryAfter. It is 0 if the header is absent or malformed, or if the date has passed.
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

// RefusedRequest is the beginning of the error message with which answerd refuses a server's request during a call. If
// the call fails because of that, servers repeat the message, often with its code.
const RefusedRequest = "answerd refused the server's request: "

// maxErrorText is how many bytes of a JSON-RPC error's message are shown to users and models.
const maxErrorText = 300

// refusedResult matches the message with which the TypeScript SDK reports an invalid result of a tool. Its code is
// that of invalid params.
var refusedResult = regexp.MustCompile(`^(MCP error -32602: )?(Output validation error: |Invalid tools/call result: )`)

// IsUnrelatedToArguments reports whether message, of an error, shows that the call's arguments did not cause the
// error. The error's code may still be that of invalid params.
func IsUnrelatedToArguments(message string) bool {
	return strings.Contains(message, RefusedRequest) || refusedResult.MatchString(message)
}

// rpcFailure returns the failure of a request that the server answered with the JSON-RPC error e. Public contains e's
// message, because servers write it for the client that sent the request.
func rpcFailure(e *jsonrpc.Error) *Failure {
	failure := &Failure{Kind: Execution, Public: "it answered: " + wire.Printable(e.Message, maxErrorText), Err: e}
	if IsUnrelatedToArguments(e.Message) {
		return failure
	}
	switch e.Code {
	case jsonrpc.CodeInvalidParams:
		failure.Kind = InvalidArguments
		failure.NotRun = true
		// The code for an unknown tool is the same (MCP server/tools), so only the message distinguishes them.
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
// failure. Without a panic it does nothing. It is used in goroutines that process servers' messages: a defect there
// should cost one request or one session, and not the whole process with all runs.
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

// Backoff returns how long to wait after the given number of failures in a row. It is a random time between half of a
// bound and the bound, which doubles from minBackoff to MaxBackoff. It is random so that servers that failed at the
// same time are not tried again at the same time.
func Backoff(failures int) time.Duration {
	bound := min(minBackoff<<min(failures, 10), MaxBackoff) // 10, because a larger shift could overflow
	return bound/2 + rand.N(bound/2)
}

// Pause waits for d and returns true. If ctx ends first, it returns false at once.
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
