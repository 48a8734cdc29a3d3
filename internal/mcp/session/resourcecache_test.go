package session

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// newListeningCache returns a cache that is notified of changes of n resources, "r0" and so on.
func newListeningCache(n int) *resourceCache {
	c := newResourceCache()
	c.setListening(true)
	for i := range n {
		c.wantSubscription(fmt.Sprint("r", i))
	}
	c.setSubscribed(c.wantedFrom(0)...)
	return c
}

func TestResourceCacheIsBounded(t *testing.T) {
	c := newListeningCache(2 * maxSubscriptions)
	if got := len(c.wantedFrom(0)); got != maxSubscriptions {
		t.Errorf("got %d resources to subscribe to, want %d", got, maxSubscriptions)
	}

	const size = 300 << 10
	for i := range maxSubscriptions {
		k := newCacheKey(fmt.Sprint("r", i), nil)
		_, version := c.lookup(k)
		c.store(k, make(json.RawMessage, size), 0, version)
	}

	if n := len(c.entries); n != maxCacheBytes/size || c.size != n*size {
		t.Errorf("got %d entries of %d bytes, want %d entries of %d bytes each", n, c.size, maxCacheBytes/size, size)
	}
	k := newCacheKey("r1", nil)
	_, version := c.lookup(k)
	c.store(k, make(json.RawMessage, maxEntryBytes+1), time.Hour, version)
	if raw, _ := c.lookup(k); raw != nil {
		t.Errorf("got an entry of %d bytes, want none above %d", len(raw), maxEntryBytes)
	}
}

func TestResourceCacheDropsAReadThatAChangeOvertook(t *testing.T) {
	c := newListeningCache(2)
	k := newCacheKey("r1", nil)
	_, version := c.lookup(k)
	c.handleNotification("notifications/resources/updated", json.RawMessage(`{"uri":"r1/part"}`))
	c.store(k, json.RawMessage(`{}`), time.Hour, version)
	if raw, _ := c.lookup(k); raw != nil {
		t.Errorf("got %s, want nothing: it changed while it was read", raw)
	}
}

func TestResourceCacheIsEmptyWhileNotificationsAreMissed(t *testing.T) {
	c := newListeningCache(2)
	k := newCacheKey("r1", nil)
	_, version := c.lookup(k)
	c.store(k, json.RawMessage(`{}`), 0, version)
	if raw, _ := c.lookup(k); raw == nil {
		t.Fatal("got nothing, want the entry of a resource that is subscribed to")
	}
	c.setListening(false)
	if len(c.entries) != 0 || c.size != 0 {
		t.Errorf("got %d entries of %d bytes, want none", len(c.entries), c.size)
	}
	_, version = c.lookup(k)
	c.store(k, json.RawMessage(`{}`), 0, version)
	if raw, _ := c.lookup(k); raw != nil {
		t.Errorf("got %s, want nothing: a change would be missed", raw)
	}
}

// Each acknowledgement lists the subscriptions of a stream of its own. A resource that the server no
// longer accepts would otherwise count as current forever.
func TestResourceCacheForgetsSubscriptionsOfAnEarlierStream(t *testing.T) {
	c := newResourceCache()
	k := newCacheKey("r1", nil)
	for _, accepted := range []struct {
		uris string
		kept bool
	}{{`["r0","r1"]`, true}, {`["r0"]`, false}} {
		c.handleNotification(methodAcknowledged, json.RawMessage(`{"notifications":{"resourceSubscriptions":`+accepted.uris+`}}`))
		c.setListening(true)
		_, version := c.lookup(k)
		c.store(k, json.RawMessage(`{}`), 0, version)
		if raw, _ := c.lookup(k); (raw != nil) != accepted.kept {
			t.Errorf("subscribed to %s: got %s of r1, want an entry: %t", accepted.uris, raw, accepted.kept)
		}
		c.setListening(false)
	}
}
