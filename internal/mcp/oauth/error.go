package oauth

import (
	"errors"
	"fmt"

	"answerd/internal/auth/fetch"
)

// ErrConsent is in the chain of an error if the user must sign in with a browser (Authorize), for the first time or
// for more scopes.
var ErrConsent = errors.New("the user has not authorized access")

// errClosed is returned after Client.Close.
var errClosed = errors.New("the service is shutting down")

// Error says why a request was not sent, or why it was refused for good. In both cases the server did not execute it.
type Error struct {
	Public string // may be shown to users: contains neither hosts nor values
	Err    error  // the cause, for the log; may be nil
}

// Error returns the text for the log: Public and the cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Public
	}
	return e.Public + ": " + e.Err.Error()
}

// Unwrap returns the cause, so that errors.Is finds ErrConsent and the errors of a context.
func (e *Error) Unwrap() error { return e.Err }

// asError returns an Error with the cause err. Its Public text does not quote err.
func asError(err error) *Error {
	if errors.Is(err, ErrConsent) {
		return &Error{Public: "sign-in required: the user has not authorized access to this server", Err: err}
	}
	return &Error{Public: "no token could be obtained for this server", Err: err}
}

// fetchErrorf returns a *fetch.Error with a formatted text. The text is logged and may be shown to users, so it must
// not quote what the other side sent.
func fetchErrorf(format string, args ...any) error {
	return &fetch.Error{Public: fmt.Sprintf(format, args...)}
}

// Error codes of an authorization server that does not know our client or does not accept its authentication (RFC 6749
// section 5.2), or that does not permit the grant to the client. Servers with older versions of the Python SDK use
// codeUnauthorizedClient for unknown clients, too.
const (
	codeInvalidClient      = "invalid_client"
	codeUnauthorizedClient = "unauthorized_client"
)

// errorInvalidScope is the code with which an authorization server refuses the requested scopes (RFC 6749 sections
// 4.1.2.1 and 5.2).
const errorInvalidScope = "invalid_scope"

// isClientRefused reports whether err means that a token endpoint has refused our client.
func isClientRefused(err error) bool {
	code := refusalCode(err)
	return code == codeInvalidClient || code == codeUnauthorizedClient
}

// refusalCode returns the error code with which a token endpoint has refused a request; "" if err is another error.
func refusalCode(err error) string {
	if refusal, ok := errors.AsType[*fetch.Error](err); ok {
		return refusal.Code
	}
	return ""
}

// asSignInError returns the Error for a sign-in that ended without access because of err.
func asSignInError(err error) *Error { return &Error{Public: "signing in failed", Err: err} }
