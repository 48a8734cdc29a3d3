package transport

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func TestRetryAfterIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for value, want := range map[string]time.Duration{
			"": 0, "7": 7 * time.Second, "0": 0, "3600": maxRetryAfter, "99999999999999999999": 0, "-1": 0, "soon": 0, "1.5": 0,
			time.Now().Add(20 * time.Second).UTC().Format(http.TimeFormat): 20 * time.Second,
			time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat):       0,
			time.Now().Add(time.Hour).UTC().Format(http.TimeFormat):        maxRetryAfter,
		} {
			if got := retryAfter(http.Header{"Retry-After": {value}}); got != want {
				t.Errorf("retryAfter(%q) = %s, want %s", value, got, want)
			}
		}
	})
}

// The waits double from a second to a minute, half of each by chance.
func TestBackoffDoublesUpToAMinute(t *testing.T) {
	for i, most := range []int{1, 2, 4, 8, 16, 32, 60, 60, 60} {
		for range 100 {
			d, top := Backoff(i), time.Duration(most)*time.Second
			if d < top/2 || d > top {
				t.Errorf("Backoff(%d) = %s, want %s to %s", i, d, top/2, top)
			}
		}
	}
	if d := Backoff(1 << 30); d > MaxBackoff || d < MaxBackoff/2 {
		t.Errorf("Backoff(1<<30) = %s, want %s to %s", d, MaxBackoff/2, MaxBackoff)
	}
}
