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

// Problem is an error of the API (RFC 9457).
type Problem struct {
	Status int          `json:"status"`
	Detail string       `json:"detail"`
	Code   string       `json:"code"`
	Errors []FieldError `json:"errors"`

	RetryAfter time.Duration `json:"-"` // at most a minute; 0 if answerd names no time
}

// FieldError says what is wrong with a field of the request, which a JSON pointer names.
type FieldError struct {
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}

// readProblem decodes the body of a response whose status is 400 or more.
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

// Error implements error. It names the wrong fields, and what to do where that is known.
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

// IsTooLate reports whether an interrupt was not waiting for the input that was sent: it has been answered or
// has expired, or its run has ended.
func (p *Problem) IsTooLate() bool {
	return p.Status == http.StatusConflict || p.Status == http.StatusNotFound || p.Status == http.StatusGone
}

// IsBusy reports whether a question was refused before a run started, so that it may be asked again.
func (p *Problem) IsBusy() bool {
	return p.Code == "rate_limited" || p.Code == "overloaded" || p.Code == "draining"
}
