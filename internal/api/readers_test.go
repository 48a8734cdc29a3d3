package api

import (
	"net/http"
	"testing"
)

// Behind a proxy a header could say anything, and one subscriber has 2^64 addresses.
func TestAnonymousCallersAreToldApartByTheirConnection(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1",
		"[2001:db8::1]:80": "2001:db8::/64", "[2001:db8::2]:81": "2001:db8::/64", "[fe80::1%eth0]:80": "fe80::/64",
		"": "", "pipe": "",
	} {
		r := &http.Request{RemoteAddr: remote, Header: http.Header{"X-Forwarded-For": {"198.51.100.1"}, "Forwarded": {"for=198.51.100.1"}}}
		if got := addressOf(r); got != want {
			t.Errorf("%s is %s, want %s", remote, got, want)
		}
	}
}

func TestReadersOfARunAreBounded(t *testing.T) {
	c := newCrowd()
	var leave func()
	for range maxReaders {
		l, full := c.read("run")
		if full != nil {
			t.Fatal(full)
		}
		leave = l
	}
	if _, full := c.read("run"); full == nil || full.Code != "rate_limited" {
		t.Errorf("one more: %v", full)
	}
	if _, full := c.read("other"); full != nil {
		t.Error(full)
	}
	leave()
	if _, full := c.read("run"); full != nil {
		t.Error(full)
	}
}
