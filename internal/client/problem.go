package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	maxProblem    = 1 << 20 // bytes
	maxRetryAfter = 60      // seconds
)

// Problem is an error response of the API: a problem document (RFC 9457).
type Problem struct {
	Status int          `json:"status"` // HTTP status of the response
	Detail string       `json:"detail"` // a sentence for the user
	Code   string       `json:"code"`   // such as "rate_limited"; never ""
	Errors []FieldError `json:"errors"` // wrong fields of the request; nil if they are not the cause

	// Instance is the path of the request or, if a run has failed, that of the run.
	Instance string `json:"instance"`

	RetryAfter time.Duration `json:"-"` // from Retry-After, at most a minute; 0 if answerd sent none
}

// FieldError says what is wrong with one field of the request.
type FieldError struct {
	Pointer string `json:"pointer"` // a JSON pointer (RFC 6901)
	Detail  string `json:"detail"`
}

// readProblem decodes a response with a status of 400 or more. The error means that the body is not a problem document
// of answerd, for example because a proxy has answered. The caller must close the body.
func readProblem(resp *http.Response) (*Problem, error) {
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil {
		return nil, fmt.Errorf("read a problem document: %w", err)
	}
	var p Problem
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, fmt.Errorf("decode a problem document: %w", err)
	}
	if p.Code == "" {
		return nil, errors.New("a problem document has no code")
	}
	p.Status = resp.StatusCode
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		p.RetryAfter = time.Duration(min(seconds, maxRetryAfter)) * time.Second
	}
	return &p, nil
}

// Error returns a text for the user of a command: the detail, the wrong fields and the code. If the token is missing or
// invalid, it also names the flag -token-file.
func (p *Problem) Error() string {
	text := p.Detail
	for _, field := range p.Errors {
		text += " " + strings.TrimPrefix(field.Pointer+": "+field.Detail, ": ") + "." // "" is the whole value's pointer
	}
	if p.Code == "unauthenticated" {
		text += " Pass a token with -token-file."
	}
	return fmt.Sprintf("%s (%s)", text, p.Code)
}

// IsTooLate reports whether p, an error of SendInput, means that the interrupt is not open any more: it was answered,
// it has expired, or its run has ended.
func (p *Problem) IsTooLate() bool {
	return p.Status == http.StatusConflict || p.Status == http.StatusNotFound || p.Status == http.StatusGone
}

// IsBusy reports whether answerd cannot serve the request now, but may do so later. The client may send the same
// request again after RetryAfter, and a question with the same idempotency key.
func (p *Problem) IsBusy() bool {
	return p.Code == "rate_limited" || p.Code == "overloaded" || p.Code == "draining" || p.Code == "log_unavailable"
}
