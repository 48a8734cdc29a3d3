package auth

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
)

// FetchError says why the IAM or the vault gave nothing. Neither field repeats a
// byte of what the other side answered.
type FetchError struct {
	// Public is one sentence in our own words, fit for a caller: no host, no value.
	Public string
	// Status is the HTTP status that was answered; 0 if there was no answer.
	Status int
	// Code is the error code of RFC 6749 section 5.2 or RFC 8707, if it was one of
	// those seven.
	Code string
	// Err is the cause, for the log; nil where Public says it all.
	Err error
}

// Error is Public and what else is known, for the log.
func (e *FetchError) Error() string {
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

// Unwrap gives the cause, so that errors.Is finds a deadline.
func (e *FetchError) Unwrap() error { return e.Err }

// transportError turns what http.Client.Do or a body read failed with into a
// FetchError about whom. Causes are let through by kind: net/http quotes the bytes
// of a malformed reply, and a hostile reply may quote our Authorization header.
func transportError(whom string, err error) *FetchError {
	var certificate *tls.CertificateVerificationError
	var network *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &FetchError{Public: whom + " did not answer in time", Err: context.DeadlineExceeded}
	case errors.Is(err, context.Canceled):
		return &FetchError{Public: whom + " was not waited for", Err: context.Canceled}
	case errors.As(err, &certificate):
		return &FetchError{Public: whom + " has a certificate that is not trusted", Err: certificate}
	case errors.As(err, &network):
		return &FetchError{Public: whom + " cannot be reached", Err: network}
	}
	return &FetchError{Public: whom + " broke the connection or does not speak HTTP"}
}
