package openai

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Bounds of the time between two tries.
const (
	backoffBase   = 200 * time.Millisecond
	backoffMax    = 5 * time.Second
	longestWait   = 24 * time.Hour   // a longer Retry-After counts as this
	maxRetryAfter = 10 * time.Second // a longer delay is not waited for: the caller gets the error at once
)

// retryDelay returns how long to wait before the retry with the number try, counted from 0, and
// whether to retry at all: not if the endpoint asks for more than maxRetryAfter, because a person waits
// for the answer. after is the reply's Retry-After: seconds or an HTTP date (RFC 9110,
// section 10.2.3). A malformed one counts as absent.
func retryDelay(try int, after string, now time.Time) (time.Duration, bool) {
	if d, ok := parseRetryAfter(after, now); ok {
		return d, d <= maxRetryAfter
	}
	return backoffDelay(try), true
}

// backoffDelay returns a random time between 0 and a limit, which is 200 ms and doubles with
// every try up to 5 s. The range starts at 0 ("full jitter") so that callers that failed
// together do not retry together.
func backoffDelay(try int) time.Duration {
	ceiling := backoffMax
	if try < 5 { // 200 ms doubled five times is more than 5 s
		ceiling = min(backoffBase<<try, backoffMax)
	}
	return rand.N(ceiling + 1)
}

// parseRetryAfter parses a Retry-After of seconds or a date. It accepts fractions of seconds,
// which some gateways send. A date in the past gives no delay.
func parseRetryAfter(value string, now time.Time) (time.Duration, bool) {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0, false
	}
	if seconds, err := strconv.ParseFloat(value, 64); err == nil {
		switch {
		case seconds >= 0 && seconds <= longestWait.Seconds():
			return time.Duration(seconds * float64(time.Second)), true
		case seconds > longestWait.Seconds():
			return longestWait, true // before the number overflows
		default:
			return 0, false
		}
	}
	if date, err := http.ParseTime(value); err == nil {
		return min(max(date.Sub(now), 0), longestWait), true
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
