package openai

import (
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Limits for the time between two attempts.
const (
	backoffBase         = 200 * time.Millisecond
	backoffMax          = 5 * time.Second
	maxParsedRetryAfter = 24 * time.Hour   // a longer Retry-After is treated as this
	maxRetryDelay       = 10 * time.Second // if Retry-After is longer, the caller gets the error at once
)

// retryDelay returns how long to wait before retry number try, counted from 0. retryAfter is the reply's Retry-After
// header. If it is empty or malformed, the delay is backoffDelay(try). isAcceptable is false if the endpoint asks for
// more than maxRetryDelay, because a person is waiting for the answer.
func retryDelay(try int, retryAfter string, now time.Time) (delay time.Duration, isAcceptable bool) {
	if delay, ok := parseRetryAfter(retryAfter, now); ok {
		return delay, delay <= maxRetryDelay
	}
	return backoffDelay(try), true
}

// backoffDelay returns a random time between 0 and a limit. The limit is 200 ms for try 0 and doubles with each try, up
// to 5 s. The range starts at 0 ("full jitter"), so that callers that failed together do not retry together.
func backoffDelay(try int) time.Duration {
	doublings := min(try, 5) // 200 ms doubled five times is more than 5 s
	ceiling := min(backoffBase<<doublings, backoffMax)
	return rand.N(ceiling + 1)
}

// parseRetryAfter returns the delay in a Retry-After header, which has seconds or an HTTP date (RFC 9110, section
// 10.2.3). It accepts fractions of seconds, which some gateways send. For a date in the past it returns 0, and for a
// delay above maxParsedRetryAfter it returns maxParsedRetryAfter. ok is false if value is empty, negative or malformed.
func parseRetryAfter(value string, now time.Time) (delay time.Duration, ok bool) {
	value = strings.TrimSpace(value)
	if seconds, err := strconv.ParseFloat(value, 64); err == nil {
		if seconds < 0 || math.IsNaN(seconds) {
			return 0, false
		}
		seconds = min(seconds, maxParsedRetryAfter.Seconds()) // a larger number could overflow
		return time.Duration(seconds * float64(time.Second)), true
	}
	if date, err := http.ParseTime(value); err == nil {
		return min(max(date.Sub(now), 0), maxParsedRetryAfter), true
	}
	return 0, false
}
