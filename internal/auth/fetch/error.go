package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
)

// Error is the error for a request to an identity provider or a secret store. Its fields contain nothing from the
// reply, except for Status and a known Code.
type Error struct {
	// Public is a fixed text that API clients may see. It contains neither hosts nor values.
	Public string
	// Status is the reply's HTTP status, or 0 if there was no reply.
	Status int
	// Code is the reply's error code from RFC 6749 section 5.2 or RFC 8707, or "".
	Code string
	// Err is the cause, for the log. It is nil if there is nothing to add to Public.
	Err error
}

// Error returns Public followed by the status, the code and the cause, for the log.
func (e *Error) Error() string {
	text := e.Public
	if e.Status != 0 {
		text += fmt.Sprintf(" (status %d)", e.Status)
	}
	if e.Code != "" {
		text += ": " + e.Code
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause, so that errors.Is can detect a deadline.
func (e *Error) Unwrap() error { return e.Err }

// transportError converts an error from http.Client.Do or from reading a body. subject is what Public calls the server.
// Only known kinds of causes are kept. The text of any other cause may quote bytes of a malformed reply, in which a
// hostile server could send the request's Authorization header back.
func transportError(subject string, err error) *Error {
	var certificate *tls.CertificateVerificationError
	var network *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Public: subject + " did not answer in time", Err: context.DeadlineExceeded}
	case errors.Is(err, context.Canceled):
		return &Error{Public: "the request to " + subject + " was canceled", Err: context.Canceled}
	case errors.As(err, &certificate):
		return &Error{Public: subject + " has a certificate that is not trusted", Err: certificate}
	case errors.As(err, &network):
		return &Error{Public: subject + " cannot be reached", Err: network}
	}
	return &Error{Public: subject + " closed the connection early or does not speak HTTP"}
}

// errNotHTTP is what WithoutReply returns instead of an error whose text may quote the reply.
var errNotHTTP = errors.New("the reply is not HTTP, the connection was closed early, or a proxy refused it")

// WithoutReply returns an error that is safe to log in place of err, an error of an http.RoundTripper. net/http quotes
// a reply that is not HTTP, and such a reply may repeat the request with its keys. So WithoutReply returns err itself
// only if it is of a type or value that never contains a part of the reply, and errNotHTTP otherwise. It returns nil if
// err is nil.
func WithoutReply(err error) error {
	if err == nil {
		return nil
	}
	known := []error{context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, http.ErrSchemeMismatch}
	if slices.ContainsFunc(known, func(safe error) bool { return errors.Is(err, safe) }) {
		return err
	}
	_, isNetwork := errors.AsType[net.Error](err) // such as a refused connection, or a timeout of net/http
	_, isCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, isNotTLS := errors.AsType[tls.RecordHeaderError](err)
	if isNetwork || isCertificate || isNotTLS {
		return err
	}
	return errNotHTTP
}

// Transport is an http.RoundTripper that applies WithoutReply to the errors of the one that it wraps. A transport that
// records errors in traces must wrap Transport, not the other way around.
type Transport struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	return resp, WithoutReply(err)
}
