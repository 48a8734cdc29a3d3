package mcp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// ErrorKind is why a call failed, in the words of the tool_error event.
type ErrorKind string

// The kinds of a failed call.
const (
	InvalidArguments ErrorKind = "invalid_arguments"
	UnknownTool      ErrorKind = "unknown_tool"
	Execution        ErrorKind = "execution"
	Timeout          ErrorKind = "timeout"
	Unavailable      ErrorKind = "unavailable"
	Protocol         ErrorKind = "protocol"
	TooLarge         ErrorKind = "too_large"
	Cancelled        ErrorKind = "cancelled"
	UnknownOutcome   ErrorKind = "unknown_outcome"
	Denied           ErrorKind = "denied" // we did not let it through
)

// CallError is a failed call. Message is fit for the model and the caller; Err is
// the cause, for the log only: it may name session ids or quote the server.
type CallError struct {
	Kind    ErrorKind
	Tool    string
	Server  string
	Message string
	Fields  []ContentField // of InvalidArguments, where we found them: all that is wrong
	Err     error
}

func (e *CallError) Error() string {
	return fmt.Sprintf("call %s on %s: %s: %v", e.Tool, e.Server, e.Kind, e.Err)
}

func (e *CallError) Unwrap() error { return e.Err }

// failure is why a request to a server came to nothing.
//
// It is made where the reason is seen, at the transport's edge, and travels through
// the SDK untouched: what the SDK itself says is no base for a decision. It calls a
// connection that was cut in the middle of a call "rejected by transport", with the
// same code as one that was never made (facts, section 1).
type failure struct {
	kind   ErrorKind
	public string // fit for the caller: no session ids, no upstream bodies
	notRun bool   // the server provably did not carry the request out
	lost   bool   // because the session is gone
	fields []ContentField
	err    error         // the cause, for the log; may be nil
	later  time.Duration // how long the server wants to be left alone; 0 if it didn't say
}

// maxRest bounds how long a server is left alone because it said so.
const maxRest = time.Minute

// rest is how long the server wants to be left alone.
func (f *failure) rest() time.Duration {
	for f != nil {
		if f.later > 0 {
			return f.later
		}
		f, _ = errors.AsType[*failure](f.err) // of a handshake
	}
	return 0
}

// retryAfter is what a header of that name says (RFC 9110 section 10.2.3), at most
// maxRest; 0 where it says nothing of use.
func retryAfter(h http.Header) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRest)
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(time.Until(at), 0), maxRest)
}

// refusal is badStatus of a reply whose headers may say more: how long the server is busy,
// or that all that is wrong is a slash.
func refusal(resp *http.Response) *failure {
	f := badStatus(resp.StatusCode)
	if to, err := resp.Location(); err == nil && resp.Request != nil && resp.StatusCode < 400 {
		// No more of the address than that: a path may hold a key.
		switch path := resp.Request.URL.Path; {
		case to.Path == path+"/":
			f.public += ": its URL must end in /"
		case to.Path+"/" == path:
			f.public += ": its URL must not end in /"
		}
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		f.later = retryAfter(resp.Header)
	}
	return f
}

func (f *failure) Error() string {
	if f.err == nil {
		return f.public
	}
	return f.public + ": " + f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

// state is why the server cannot be used, for all who may see that: a JSON-RPC error's
// text is for whoever made the request.
func (f *failure) state() string {
	if e, ok := errors.AsType[*jsonrpc.Error](f.err); ok {
		return fmt.Sprintf("it answered with the error %d", e.Code)
	}
	return f.public
}

// lostSession is a request that a server refused, or that was not sent, because its
// session is gone. The handshake is repeated and the call sent again (S3.2).
func lostSession(err error) *failure {
	return &failure{kind: Unavailable, public: "its session is gone", notRun: true, lost: true, err: err}
}

// tooLarge is an answer of more than limit bytes, which was not read further.
func tooLarge(limit int) *failure {
	return &failure{kind: TooLarge, public: fmt.Sprintf("its answer is larger than %d bytes", limit)}
}

// badReply is an answer that breaks the protocol. The tool may have run, but to ask
// again would get the same.
func badReply(what string, err error) *failure {
	return &failure{kind: Protocol, public: "its answer is not MCP: " + what, err: err}
}

// noReply is a request that ended without any HTTP reply. Without a connection
// nothing can have been sent; with one the server may have got all of it.
func noReply(err error, sent bool) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if !sent {
		return &failure{kind: Unavailable, public: dialReason(err), notRun: true, err: err}
	}
	return &failure{kind: UnknownOutcome, public: "the connection was cut before its answer", err: err}
}

// dialReason says why no connection was had, in words fit for the caller: what the
// standard library says names addresses, and proxies with their passwords.
func dialReason(err error) string {
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

// badStatus is a reply that is no MCP answer. Of the refusals only those are proof
// that nothing ran whose meaning is that nothing was tried (facts: 429 and 503 are,
// a gateway's 502 and 504 and a 500 are not). Its body is repeated nowhere: it may hold
// what the server was sent.
func badStatus(status int) *failure {
	f := &failure{kind: Protocol, public: fmt.Sprintf("it answered HTTP %d", status), notRun: true}
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		f.kind, f.public = Unavailable, fmt.Sprintf("it refused our credentials (HTTP %d)", status)
		f.err = errCredentials
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		f.kind, f.public = Unavailable, fmt.Sprintf("it is busy (HTTP %d)", status)
	case status == http.StatusRequestEntityTooLarge:
		f.kind, f.public = TooLarge, "the arguments are too large for it"
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed, status == http.StatusGone:
		f.kind = Unavailable
	case status >= 300 && status < 400:
		f.public = fmt.Sprintf("it redirects (HTTP %d), which is not followed", status)
	case status >= 500:
		f.kind, f.notRun = UnknownOutcome, false
	}
	return f
}

// rpcFailure is a JSON-RPC error answer. Its message is written for the client that
// asked, so a model gets it, without control characters and no more than 300 bytes.
func rpcFailure(e *jsonrpc.Error) *failure {
	f := &failure{kind: Execution, public: "it answered: " + printable(e.Message, 300), err: e}
	low := strings.ToLower(e.Message)
	switch e.Code {
	case jsonrpc.CodeInvalidParams:
		// S0.3: the agent answers these with the tool's input schema.
		// Unknown tools have no code of their own (MCP tools: -32602).
		f.kind, f.notRun = InvalidArguments, true
		if strings.Contains(low, "tool") && (strings.Contains(low, "unknown") || strings.Contains(low, "not found")) {
			f.kind = UnknownTool
		}
	case jsonrpc.CodeParseError, jsonrpc.CodeInvalidRequest, jsonrpc.CodeMethodNotFound:
		f.kind = Protocol
	}
	return f
}

// printable is at most n bytes of s on one line.
func printable(s string, n int) string {
	return cut(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "")), n)
}
