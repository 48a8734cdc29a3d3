package session

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"
)

// methodAcknowledged is the notification with the subscriptions that the server accepted.
const methodAcknowledged = "notifications/subscriptions/acknowledged"

// Bounds of a session's cache of resources.
const (
	maxCacheEntries = 64      // results
	maxCacheBytes   = 8 << 20 // of all results
	maxEntryBytes   = 1 << 20 // of one result; larger ones are not cached
	// maxSubscriptions bounds the resources of a session that are subscribed to: first those
	// that the server lists, then those that are read.
	maxSubscriptions = 128
)

// resourceCache keeps what was read of a server's resources in one session, for as long as
// it is known to be current: while the server notifies us of changes and has not, or for the
// time that the server gave (ttlMs, 2026-07-28). Everything else is read again. The cache
// ends with its session, because subscriptions do.
type resourceCache struct {
	wake chan struct{} // of capacity 1: there are more resources to subscribe to

	mu         sync.Mutex // protects what follows
	entries    map[cacheKey]cacheEntry
	size       int             // bytes of all entries
	wanted     []string        // URIs to subscribe to, in that order
	subscribed map[string]bool // URIs whose subscription the server confirmed
	listening  bool            // notifications outside of requests reach us
	changes    int             // counts changes and subscriptions, so that a read that one overtook is not kept
}

// cacheKey identifies a result: a server may answer by the context and the ids in _meta.
type cacheKey struct{ uri, scope string }

type cacheEntry struct {
	raw      json.RawMessage
	until    time.Time // by the server's ttlMs; zero if it gave none
	notified bool      // we have been notified of every change since it was read
}

// newResourceCache returns an empty cache.
func newResourceCache() *resourceCache {
	return &resourceCache{wake: make(chan struct{}, 1), entries: map[cacheKey]cacheEntry{}, subscribed: map[string]bool{}}
}

// newCacheKey returns the key of uri as read with that scope.
func newCacheKey(uri string, scope map[string]string) cacheKey {
	k := cacheKey{uri: uri}
	if len(scope) > 0 {
		sorted, _ := json.Marshal(scope) // a map's keys come sorted
		k.scope = string(sorted)
	}
	return k
}

// lookup returns the last result for k if it is current, else nil. version is for store.
func (c *resourceCache) lookup(k cacheKey) (raw json.RawMessage, version int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[k]
	if ok && !c.isCurrentLocked(k.uri, e) {
		c.removeLocked(k)
		e.raw = nil
	}
	return e.raw, c.changes
}

// isCurrentLocked reports whether an entry may be used: its lifetime has not ended, or the server would have sent a
// notification about a change.
func (c *resourceCache) isCurrentLocked(uri string, e cacheEntry) bool {
	isWatched := e.notified && c.listening && c.subscribed[uri]
	return isWatched || time.Now().Before(e.until)
}

// store keeps a result for key that was asked for at version, unless something has changed
// since.
func (c *resourceCache) store(key cacheKey, raw json.RawMessage, ttl time.Duration, version int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry := cacheEntry{raw: raw, notified: c.listening && c.subscribed[key.uri]}
	if ttl > 0 {
		entry.until = time.Now().Add(ttl)
	}
	c.removeLocked(key)
	if c.changes != version || len(raw) > maxEntryBytes || !c.isCurrentLocked(key.uri, entry) {
		return
	}
	for old := range c.entries { // in random order: what is read often is soon stored again
		if len(c.entries) < maxCacheEntries && c.size+len(raw) <= maxCacheBytes {
			break
		}
		c.removeLocked(old)
	}
	c.entries[key] = entry
	c.size += len(raw)
}

func (c *resourceCache) removeLocked(k cacheKey) {
	c.size -= len(c.entries[k].raw)
	delete(c.entries, k)
}

// wantSubscription adds a resource to those that are to be subscribed to.
func (c *resourceCache) wantSubscription(uri string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.wanted) == maxSubscriptions || slices.Contains(c.wanted, uri) {
		return
	}
	c.wanted = append(c.wanted, uri)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// wantedFrom returns the URIs to subscribe to, from the n-th on.
func (c *resourceCache) wantedFrom(n int) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wanted[n:len(c.wanted):len(c.wanted)]
}

// setSubscribed notes that the server has confirmed subscriptions. It did not notify us of earlier changes, so
// a read that began before is not kept.
func (c *resourceCache) setSubscribed(uris ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	for _, uri := range uris {
		c.subscribed[uri] = true
	}
}

// clearSubscribed notes that no resource is subscribed to.
func (c *resourceCache) clearSubscribed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.subscribed)
}

// setListening notes whether notifications about resources reach us. Meanwhile they may have
// been missed, so entries that depend on them are removed either way. The others are kept for the
// time that the server gave, and not for longer.
func (c *resourceCache) setListening(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listening = on
	c.changes++
	now := time.Now()
	for k, e := range c.entries {
		if !now.Before(e.until) {
			c.removeLocked(k)
			continue
		}
		e.notified = false
		c.entries[k] = e
	}
}

// handleNotification updates the cache after a notification of the server.
func (c *resourceCache) handleNotification(method string, params json.RawMessage) {
	switch method {
	case "notifications/resources/updated":
		var p struct {
			URI string `json:"uri"`
		}
		if json.Unmarshal(params, &p) == nil {
			c.invalidate(p.URI)
		}
	case "notifications/resources/list_changed":
		c.invalidate("")
	case methodAcknowledged:
		var p struct {
			Notifications struct {
				URIs []string `json:"resourceSubscriptions"`
			} `json:"notifications"`
		}
		_ = json.Unmarshal(params, &p) // what cannot be read has confirmed nothing
		c.clearSubscribed()            // the subscriptions ended with the stream before
		c.setSubscribed(p.Notifications.URIs...)
	}
}

// invalidate removes what was read of a resource that has changed; "" stands for all
// resources. An update of a part of a resource has the URI of the part (2025-11-25
// server/resources).
func (c *resourceCache) invalidate(uri string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	for k := range c.entries {
		if strings.HasPrefix(uri, k.uri) || strings.HasPrefix(k.uri, uri) {
			c.removeLocked(k)
		}
	}
}
