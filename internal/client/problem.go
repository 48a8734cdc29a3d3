package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

const (
	maxProblem    = 1 << 20 // bytes
	maxRetryAfter = 60      // seconds
)

// Problem is an error response of the API (RFC 9457).
type Problem struct {
	Status int          `json:"status"` // of the response
	Detail string       `json:"detail"` // a sentence for the user
	Code   string       `json:"code"`   // such as "rate_limited"; never ""
	Errors []FieldError `json:"errors"` // the wrong fields of the request, if that is the cause

	RetryAfter time.Duration `json:"-"` // at most a minute; 0 if answerd names no time
}

// FieldError says what is wrong with a field of the request.
type FieldError struct {
	Pointer string `json:"pointer"` // a JSON pointer (RFC 6901)
	Detail  string `json:"detail"`
}

// readProblem decodes a response whose status is 400 or more. The error means that the body is not a problem document
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

// Error returns the text for the user of a command: the detail, the wrong fields and the code. If a token is missing or
// not valid, it also names the flag -token-file.
func (p *Problem) Error() string {
	text := p.Detail
	for _, field := range p.Errors {
		text += fmt.Sprintf(" %s: %s.", field.Pointer, field.Detail)
	}
	if p.Code == "unauthenticated" {
		text += " Pass a token with -token-file."
	}
	return fmt.Sprintf("%s (%s)", text, p.Code)
}

// IsTooLate reports whether p, the error of SendInput, means that the interrupt is not open: it was answered before or
// has expired, or its run has ended.
func (p *Problem) IsTooLate() bool {
	return p.Status == http.StatusConflict || p.Status == http.StatusNotFound || p.Status == http.StatusGone
}

// IsBusy reports whether answerd refused a question for the moment and started no run, so that the same question may be
// sent again after RetryAfter.
func (p *Problem) IsBusy() bool {
	return p.Code == "rate_limited" || p.Code == "overloaded" || p.Code == "draining"
}
