package openai

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Bounds of the time between two attempts.
const (
	backoffBase         = 200 * time.Millisecond
	backoffMax          = 5 * time.Second
	maxParsedRetryAfter = 24 * time.Hour   // a longer Retry-After counts as this
	maxRetryDelay       = 10 * time.Second // for a longer Retry-After the caller gets the error at once
)

// retryDelay returns how long to wait before the retry with the number try, counted from 0. retry is false if the
// endpoint asks for more than maxRetryDelay: a person waits for the answer. retryAfter is the reply's Retry-After; if
// it is empty or malformed, the delay is that of backoffDelay.
func retryDelay(try int, retryAfter string, now time.Time) (delay time.Duration, retry bool) {
	if delay, ok := parseRetryAfter(retryAfter, now); ok {
		return delay, delay <= maxRetryDelay
	}
	return backoffDelay(try), true
}

// backoffDelay returns a random time between 0 and a limit, which is 200 ms and doubles with every try up to 5 s. The
// range starts at 0 ("full jitter") so that callers that failed together do not retry together.
func backoffDelay(try int) time.Duration {
	ceiling := backoffMax
	if try < 5 { // 200 ms doubled five times is more than 5 s
		ceiling = min(backoffBase<<try, backoffMax)
	}
	return rand.N(ceiling + 1)
}

// parseRetryAfter returns the delay that a Retry-After header asks for: seconds or an HTTP date (RFC 9110, section
// 10.2.3). It accepts fractions of seconds, which some gateways send. A date in the past is a delay of 0, and the
// longest delay is maxParsedRetryAfter. It returns false if value is empty, negative or malformed.
func parseRetryAfter(value string, now time.Time) (delay time.Duration, ok bool) {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0, false
	}
	if seconds, err := strconv.ParseFloat(value, 64); err == nil {
		switch {
		case seconds >= 0 && seconds <= maxParsedRetryAfter.Seconds():
			return time.Duration(seconds * float64(time.Second)), true
		case seconds > maxParsedRetryAfter.Seconds():
			return maxParsedRetryAfter, true // converting the number could overflow
		default:
			return 0, false
		}
	}
	if date, err := http.ParseTime(value); err == nil {
		return min(max(date.Sub(now), 0), maxParsedRetryAfter), true
	}
	return 0, false
}

// sleepContext waits for d, or returns ctx's error once it ends.
func sleepContext(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
