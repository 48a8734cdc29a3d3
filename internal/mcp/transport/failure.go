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

// Failure is why a request to a server has no result.
//
// It is made where the reason is seen and travels through the SDK untouched, because the SDK's
// own errors are not enough to decide with: the SDK calls a connection that was cut in the middle
// of a call "rejected by transport", with the same code as one that was never made.
type Failure struct {
	Kind   Kind
	Public string        // fit for the caller: no session ids, nothing of a server's reply
	NotRun bool          // the server provably did not carry the request out
	Lost   bool          // the session is gone
	Err    error         // the cause, for the log; may be nil
	Status int           // HTTP status of a refusal; 0: none
	Later  time.Duration // how long the server asked not to be called; 0: it did not say
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

// RetryAfter returns how long the server asked not to be called, at most one minute; 0 where it
// did not say. It also looks at the failure of a handshake that f was caused by.
func (f *Failure) RetryAfter() time.Duration {
	for f != nil {
		if f.Later > 0 {
			return f.Later
		}
		f, _ = errors.AsType[*Failure](f.Err)
	}
	return 0
}

// StateReason returns why the server cannot be used. Everyone who may see the server's state may
// read it, so it leaves out the text of a JSON-RPC error, which only the caller of the request may
// see.
func (f *Failure) StateReason() string {
	if e, ok := errors.AsType[*jsonrpc.Error](f.Err); ok {
		return fmt.Sprintf("it answered with the error %d", e.Code)
	}
	return f.Public
}

// Causes of failures that others compare with errors.Is.
var (
	// ErrTimeout ends a request at its deadline.
	ErrTimeout = errors.New("no answer in time")
	// ErrClosed ends all requests when the MCP client is closed.
	ErrClosed = errors.New("the MCP client is closed")
	// ErrCredentials is in the chain of a failure whose reason is the token, or that there is
	// none. If callers have tokens of their own, such a failure says nothing about the server.
	ErrCredentials = errors.New("credentials")
)

// CredentialsError returns err, which may be nil, with ErrCredentials in its chain.
func CredentialsError(err error) error {
	if err == nil {
		return ErrCredentials
	}
	return fmt.Errorf("%w: %w", ErrCredentials, err)
}

// LostSession returns the failure of a request that the server refused, or that was not sent,
// because its session is gone. The handshake is repeated and the request sent again.
func LostSession(err error) *Failure {
	return &Failure{Kind: Unavailable, Public: "its session is gone", NotRun: true, Lost: true, Err: err}
}

// AnswerTooLarge returns the failure of a request whose answer has more than limit bytes and was
// not read further.
func AnswerTooLarge(limit int) *Failure {
	return &Failure{Kind: TooLarge, Public: fmt.Sprintf("its answer is larger than %d bytes", limit)}
}

// BadReply returns the failure of a request whose answer breaks the protocol. The tool may have
// run, but sending the request again would get the same answer. err may be nil.
func BadReply(what string, err error) *Failure {
	return &Failure{Kind: Protocol, Public: "its answer is not MCP: " + what, Err: err}
}

// noReply returns the failure of a request that ended without any HTTP reply. Without a
// connection nothing can have been sent; with one the server may have got all of it.
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

// refusesCertificate reports whether err is the server's TLS alert about our certificate, or about a
// missing one. In TLS 1.3 it arrives after the handshake (RFC 8446 section 4.4.2.4), when the request
// was sent, but the server reads no request before it. crypto/tls has no exported type for alerts.
func refusesCertificate(err error) bool {
	alert, ok := errors.AsType[*net.OpError](err)
	return ok && alert.Op == "remote error" && strings.Contains(alert.Error(), "certificate")
}

// connectReason returns why there is no connection, in a text that may be shown to the caller. The
// standard library's texts may not: they contain addresses, and proxy URLs with passwords.
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

// badStatus returns the failure of a request that got an HTTP status other than 2xx. A status
// proves that nothing ran if it means that nothing was tried: 429 and 503 do, a gateway's 502 and
// 504 and a 500 do not. The reply's body is repeated nowhere: it may hold what the server was
// sent.
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

// refusal returns badStatus of a reply whose headers may say more: how long the server is busy,
// or that only a slash at the end of the URL is wrong.
func refusal(resp *http.Response) *Failure {
	failure := badStatus(resp.StatusCode)
	if to, err := resp.Location(); err == nil && resp.Request != nil && resp.StatusCode < 400 {
		// No more of the address than that: a path may hold a key.
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

// retryAfter returns the value of the header Retry-After (RFC 9110 section 10.2.3), at most
// maxRetryAfter; 0 where there is none.
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

// rpcFailure returns the failure of a request that the server answered with a JSON-RPC error. The
// error's message is written for the client that asked, so a model gets it, without control
// characters and at most 300 bytes of it.
func rpcFailure(e *jsonrpc.Error) *Failure {
	failure := &Failure{Kind: Execution, Public: "it answered: " + wire.Printable(e.Message, 300), Err: e}
	low := strings.ToLower(e.Message)
	switch e.Code {
	case jsonrpc.CodeInvalidParams:
		// The agent answers these with the tool's input schema. Unknown tools do not have a code
		// of their own (MCP server/tools: -32602).
		failure.Kind, failure.NotRun = InvalidArguments, true
		saysUnknown := strings.Contains(low, "unknown") || strings.Contains(low, "not found")
		if saysUnknown && strings.Contains(low, "tool") {
			failure.Kind = UnknownTool
		}
	case jsonrpc.CodeParseError, jsonrpc.CodeInvalidRequest, jsonrpc.CodeMethodNotFound:
		failure.Kind = Protocol
	}
	return failure
}

// Recover turns a panic in the function that defers it into a failure, and calls end with that.
// What a server sends is read on goroutines that belong to the SDK, to a supervisor or to no
// call: a defect there must cost the request, or the session, and not the process with everyone's
// runs.
func Recover(log *slog.Logger, end func(*Failure)) {
	v := recover()
	if v == nil {
		return
	}
	log.Error("panic while a message of an MCP server was handled", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	end(&Failure{Kind: Protocol, Public: "what it sent could not be processed"})
}

// withoutPanic calls f. A panic in it ends f and nothing else: what f belongs to continues to its own
// end, which others wait for.
func withoutPanic(log *slog.Logger, f func()) {
	defer Recover(log, func(*Failure) {})
	f()
}

const (
	minBackoff = time.Second
	MaxBackoff = time.Minute
)

// Backoff returns how long to wait after so many failures in a row: from half a second to one
// minute, doubling, with jitter of half of it so that servers that failed together are not tried
// together.
func Backoff(failures int) time.Duration {
	d := min(minBackoff<<min(failures, 10), MaxBackoff)
	return d/2 + rand.N(d/2)
}

// Pause waits for d, and reports false if ctx ended before.
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
