package api

import (
	"net/http"
	"testing"
	"time"
)

// RFC 7240: what is not understood is ignored, and of two the first counts.
func TestPreferredWait(t *testing.T) {
	for _, c := range []struct {
		lines []string
		want  time.Duration
	}{
		{nil, 0},
		{[]string{"wait=5"}, 5 * time.Second},
		{[]string{"respond-async, Wait = \"5\""}, 5 * time.Second},
		{[]string{"respond-async", "wait=5; x=1"}, 5 * time.Second},
		{[]string{"wait=5, wait=9"}, 5 * time.Second},
		{[]string{"wait=x, wait=9"}, 0},
		{[]string{"wait"}, 0},
		{[]string{"wait=-5"}, 0},
		{[]string{"wait=0"}, 0},
		{[]string{"wait=2000000000"}, time.Hour},
		{[]string{"wait=99999999999999999999"}, 0},
		{[]string{"awaits=5"}, 0},
		{[]string{"\x00=;,,=5"}, 0},
	} {
		got, applied := preferredWait(&http.Request{Header: http.Header{"Prefer": c.lines}})
		if got != c.want || got > 0 && applied == "" {
			t.Errorf("%q: %s, %q", c.lines, got, applied)
		}
	}
}
