package llm

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// What callers are told. Each is a whole sentence of ours: an endpoint's own words may
// hold keys, prompts of others, or what it wants our caller to believe.
const (
	publicUnreachable  = "The model endpoint could not be reached."
	publicRefused      = "The model endpoint refused the request."
	publicCredentials  = "The model endpoint rejected the credentials."
	publicUnknown      = "The model endpoint does not know the model."
	publicContext      = "The conversation is too long for the model's context window."
	publicLimited      = "The model endpoint is rate limiting."
	publicFailing      = "The model endpoint failed."
	publicRedirect     = "The model endpoint answered with a redirect, which is not followed."
	publicNonsense     = "The model endpoint sent something that is not a model's answer."
	publicTooLarge     = "The model's answer is too large."
	publicTooManyCalls = "The model asked for too many tool calls at once."
	publicTruncated    = "The model's answer ended before it was complete."
	publicNoFirstByte  = "The model endpoint did not begin to answer in time."
	publicIdle         = "The model endpoint stopped in the middle of its answer."
)

// Causes with which a request's context is cancelled.
var (
	errFirstByte = errors.New("no first byte within the time allowed")
	errIdle      = errors.New("no further byte within the time allowed")
)

// failed returns an Error that no retry helps against.
func failed(kind Kind, public string, err error) *Error {
	return &Error{Kind: kind, Public: public, Err: err}
}

// failure is an Error with what the retry loop has to know.
type failure struct {
	err   *Error
	again bool // a retry may help and does no harm
	after string
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// maxErrorText is how much of an endpoint's own words is looked at for what went wrong,
// in bytes.
const maxErrorText = 2 << 10

// statusFailure is the failure that an HTTP status stands for, whether it came as the
// reply's own or inside a stream. said is the endpoint's text.
func statusFailure(status int, said []byte) *failure {
	e := failed(ModelError, publicRefused, fmt.Errorf("status %d: %s", status, reported(said)))
	e.Status = status
	f := &failure{err: e}
	if status != http.StatusUnauthorized && status != http.StatusForbidden && overContext(string(said)) {
		e.Kind, e.Public = TooLarge, publicContext
		return f
	}
	// Retried is what the next moment may cure. A model call changes nothing at the
	// endpoint, so even a 500 of unknown effect may be sent again.
	switch {
	case status >= 300 && status < 400:
		e.Public = publicRedirect
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		e.Public = publicCredentials
	case status == http.StatusNotFound:
		e.Public = publicUnknown
	case status == http.StatusTooManyRequests:
		e.Public, e.Retryable, f.again = publicLimited, true, true
	case status == http.StatusRequestTimeout || status == http.StatusInternalServerError ||
		status == http.StatusBadGateway || status == http.StatusServiceUnavailable ||
		status == http.StatusGatewayTimeout || status == 529: // 529 is Anthropic's "overloaded"
		e.Public, e.Retryable, f.again = publicFailing, true, true
	case status >= 500:
		e.Public = publicFailing
	}
	return f
}

// replyFailure is the failure of a reply whose status is not 2xx.
func replyFailure(res *http.Response) *failure {
	said, err := io.ReadAll(io.LimitReader(res.Body, maxErrorText))
	_, _ = io.CopyN(io.Discard, res.Body, maxErrorBody) // what is left decides about the connection only
	f := statusFailure(res.StatusCode, said)
	if err != nil {
		f.err.Err = fmt.Errorf("%w (%w)", f.err.Err, err)
	}
	f.after = res.Header.Get("Retry-After")
	return f
}

// timeout returns the error that a cancelled request's cause stands for, nil if it was
// not cancelled for want of bytes.
func timeout(cause error, after time.Duration) *Error {
	var e *Error
	switch {
	case errors.Is(cause, errFirstByte):
		e = failed(ModelTimeout, publicNoFirstByte, fmt.Errorf("%w (%s)", cause, after))
	case errors.Is(cause, errIdle):
		e = failed(ModelTimeout, publicIdle, fmt.Errorf("%w (%s)", cause, after))
	default:
		return nil
	}
	e.Retryable = true
	return e
}
