package api

import (
	"net/http"
	"strings"
	"testing"
)

// Whatever a caller prefers, nobody waits longer than we would, and what is said to have
// been applied is a header's value.
func FuzzPrefer(f *testing.F) {
	for _, s := range []string{"wait=10", "wait=\"10\"", "respond-async, wait=100", "wait=-1", "wait=99999999999", "WAIT = 5;a=b", "wait", "wait=1,wait=2", ",;=", "wait=\"", "wait=1\r\nX: y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		wait, preferred := preferredWait(&http.Request{Header: http.Header{"Prefer": {value}}})
		if wait < 0 || wait > longestWait || strings.ContainsAny(preferred, "\r\n\x00") || (preferred == "") && wait > 0 {
			t.Errorf("%q: %s %q", value, wait, preferred)
		}
	})
}

// Whoever calls is one of few by his address, whatever net/http says that it is.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"192.0.2.1:80", "[2001:db8::1]:80", "[fe80::1%eth0]:1", "@", "", "[::ffff:1.2.3.4]:1", "a:b:c", "[::1]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, remote string) {
		if got := addressOf(&http.Request{RemoteAddr: remote}); len(got) > 50 {
			t.Errorf("%q is counted as %q", remote, got)
		}
	})
}
