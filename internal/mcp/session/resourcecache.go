package session

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"
)

// methodAcknowledged is the notification that lists the subscriptions which the server has accepted.
const methodAcknowledged = "notifications/subscriptions/acknowledged"

// Bounds of a session's cache of resources.
const (
	maxCacheEntries = 64      // results
	maxCacheBytes   = 8 << 20 // bytes of all results
	maxEntryBytes   = 1 << 20 // bytes of one result; larger results are not cached
	// maxSubscriptions is how many resources a session subscribes to: the first ones that were listed or read.
	maxSubscriptions = 128
)

// resourceCache caches a session's results of resources/read while they are known to be current: until their ttlMs has
// passed (2026-07-28), or while the session is subscribed to the resource and no change was notified. It also lists the
// resources to which the session subscribes. Each session has a cache, because subscriptions end with it.
type resourceCache struct {
	wake chan struct{} // of capacity 1: wakes the goroutine that subscribes to the resources in wanted

	mu         sync.Mutex // protects the fields below
	entries    map[cacheKey]cacheEntry
	size       int             // bytes of all entries
	wanted     []string        // URIs to subscribe to, in the order of the calls of wantSubscription
	subscribed map[string]bool // URIs whose subscription the server confirmed
	listening  bool            // notifications outside of requests are received
	// version counts changes of resources and of subscriptions, so that store notices a change during a read.
	version int
}

// cacheKey identifies a result. scope is ResourceRead.Scope as JSON, because the content may depend on it.
type cacheKey struct{ uri, scope string }

// cacheEntry is a cached result, with what isCurrentLocked needs to know about its age.
type cacheEntry struct {
	raw     json.RawMessage
	expires time.Time // when the ttlMs has passed; zero if the server sent none
	watched bool      // no notification about the resource can have been missed since the read
}

// newResourceCache returns an empty cache.
func newResourceCache() *resourceCache {
	return &resourceCache{wake: make(chan struct{}, 1), entries: map[cacheKey]cacheEntry{}, subscribed: map[string]bool{}}
}

// newCacheKey returns the key for a read of uri with the given ResourceRead.Scope.
func newCacheKey(uri string, scope map[string]string) cacheKey {
	k := cacheKey{uri: uri}
	if len(scope) > 0 {
		text, _ := json.Marshal(scope) // sorts the keys, so equal scopes have equal texts
		k.scope = string(text)
	}
	return k
}

// lookup returns the cached result for k if it is current, otherwise nil. Pass version to store after the read.
func (c *resourceCache) lookup(k cacheKey) (raw json.RawMessage, version int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, isCached := c.entries[k]
	if isCached && !c.isCurrentLocked(k.uri, entry) {
		c.removeLocked(k)
		return nil, c.version
	}
	return entry.raw, c.version
}

// isCurrentLocked reports whether e, the result for uri, may be used: its ttlMs has not passed, or a change of the
// resource would have been notified. c.mu must be held.
func (c *resourceCache) isCurrentLocked(uri string, e cacheEntry) bool {
	isWatched := e.watched && c.listening && c.subscribed[uri]
	return isWatched || time.Now().Before(e.expires)
}

// store caches raw, the result of a read for key. version is what lookup returned before the read. store does not
// cache raw if a change has happened since then, if raw is too large, or if raw would not be current.
func (c *resourceCache) store(key cacheKey, raw json.RawMessage, ttl time.Duration, version int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry := cacheEntry{raw: raw, watched: c.listening && c.subscribed[key.uri]}
	if ttl > 0 {
		entry.expires = time.Now().Add(ttl)
	}
	c.removeLocked(key)
	hasChanged := c.version != version
	if hasChanged || len(raw) > maxEntryBytes || !c.isCurrentLocked(key.uri, entry) {
		return
	}
	for old := range c.entries { // in random order; results that are read often are soon stored again
		if len(c.entries) < maxCacheEntries && c.size+len(raw) <= maxCacheBytes {
			break
		}
		c.removeLocked(old)
	}
	c.entries[key] = entry
	c.size += len(raw)
}

// removeLocked removes the result for k, if one is cached. c.mu must be held.
func (c *resourceCache) removeLocked(k cacheKey) {
	c.size -= len(c.entries[k].raw)
	delete(c.entries, k)
}

// wantSubscription adds uri to the resources to subscribe to, and wakes the goroutine that subscribes. It does nothing
// if uri was already added, or if there are already maxSubscriptions.
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

// wantedFrom returns the URIs to subscribe to, without the first n.
func (c *resourceCache) wantedFrom(n int) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wanted[n:len(c.wanted):len(c.wanted)]
}

// setSubscribed records that the server has confirmed the subscriptions to uris. It increments c.version, because
// changes before the subscription were not notified: the result of a read that is in progress must not be cached.
func (c *resourceCache) setSubscribed(uris ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version++
	for _, uri := range uris {
		c.subscribed[uri] = true
	}
}

// clearSubscribed records that the session is not subscribed to any resource.
func (c *resourceCache) clearSubscribed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.subscribed)
}

// setListening records whether notifications about resources are received. A notification may have been missed around
// each change of that, so setListening removes the entries that depend on notifications. It keeps entries whose ttlMs
// has not passed, until it has.
func (c *resourceCache) setListening(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listening = on
	c.version++
	now := time.Now()
	for k, e := range c.entries {
		if !now.Before(e.expires) {
			c.removeLocked(k)
			continue
		}
		e.watched = false
		c.entries[k] = e
	}
}

// handleNotification updates the cache if a notification of the server is about resources or subscriptions.
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
		c.invalidate(allResources)
	case methodAcknowledged:
		var p struct {
			Notifications struct {
				URIs []string `json:"resourceSubscriptions"`
			} `json:"notifications"`
		}
		_ = json.Unmarshal(params, &p) // after an error, no subscription is confirmed
		c.clearSubscribed()            // the previous stream's subscriptions ended with it
		c.setSubscribed(p.Notifications.URIs...)
	}
}

// allResources is the argument with which invalidate removes all results: every URI begins with it.
const allResources = ""

// invalidate removes the results that may be outdated after a change of the resource uri, or allResources. A resource
// and its parts have URIs with a common prefix, and an update may have the URI of a part (2025-11-25
// server/resources). So invalidate removes results whose URI is a prefix of uri or begins with uri.
func (c *resourceCache) invalidate(uri string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version++
	for k := range c.entries {
		if strings.HasPrefix(uri, k.uri) || strings.HasPrefix(k.uri, uri) {
			c.removeLocked(k)
		}
	}
}
