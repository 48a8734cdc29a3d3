// Package lru caches a bounded number of values and discards the least recently used ones.
//
//	sessions := lru.New[string](256, 10*time.Minute, (*Session).Close)
//	s, err := sessions.Acquire(user, func() *Session { return dial(user) })
//	if err != nil { … }
//	defer sessions.Release(user)
//
// A value that is in use is never discarded: general-purpose LRU packages do not promise that. All
// methods may be called concurrently.
package lru

import (
	"container/list"
	"errors"
	"sync"
	"time"
)

// ErrFull and ErrClosed are the errors of Acquire for a key without a value.
var (
	ErrFull   = errors.New("all values are in use")
	ErrClosed = errors.New("the cache is closed")
)

// Cache maps keys to values. Create it with New.
type Cache[K comparable, V any] struct {
	size    int
	idle    time.Duration
	discard func(V) // called once for each value, without mu

	mu       sync.Mutex // protects the fields below, and the fields of entries
	entries  map[K]*list.Element
	recent   *list.List // of *entry[K, V], the most recently used first
	closed   bool
	discards sync.WaitGroup // running calls of discard
}

// entry is a cached value.
type entry[K comparable, V any] struct {
	key     K
	value   V
	users   int       // calls of Acquire without a Release yet
	lastUse time.Time // when the value was last acquired or released
}

// New returns a cache of at most size values. A value that has no users and was last used at least idle ago is
// discarded by the next Acquire of a new key, or by Sweep. The cache calls discard for each value that it removes, on a
// new goroutine, because closing a value may block.
func New[K comparable, V any](size int, idle time.Duration, discard func(V)) *Cache[K, V] {
	return &Cache[K, V]{size: size, idle: idle, discard: discard, entries: map[K]*list.Element{}, recent: list.New()}
}

// Acquire returns the value of key. The value is not discarded before Release was called as often as Acquire, unless
// the cache is closed. For a new key Acquire stores the result of create, and discards the least recently used value
// without users if the cache is full. It returns ErrFull if all values have users, and ErrClosed after Close; values
// that exist are returned even then. create must not call the cache, which is locked during the call.
func (c *Cache[K, V]) Acquire(key K, create func() V) (V, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	element := c.entries[key]
	if element == nil {
		var none V
		if c.closed {
			return none, ErrClosed
		}
		c.sweepLocked(1)
		if len(c.entries) >= c.size {
			return none, ErrFull
		}
		element = c.recent.PushFront(&entry[K, V]{key: key, value: create()})
		c.entries[key] = element
	}
	c.useLocked(element, 1)
	return element.Value.(*entry[K, V]).value, nil
}

// Release ends the use of a value that began with one call of Acquire. It panics for a key without a value.
func (c *Cache[K, V]) Release(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.useLocked(c.entries[key], -1)
}

// useLocked adds delta to the users of an entry, which becomes the most recently used one. The caller holds mu.
func (c *Cache[K, V]) useLocked(element *list.Element, delta int) {
	c.recent.MoveToFront(element)
	e := element.Value.(*entry[K, V])
	e.users += delta
	e.lastUse = time.Now()
}

// Sweep discards the values without users that were last used at least the idle time ago (New). It does not wait for
// discard. After Close it does nothing, because Close has discarded all values.
func (c *Cache[K, V]) Sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.sweepLocked(0)
	}
}

// sweepLocked discards idle values, and then the least recently used values until n values can be added. It never
// discards values with users, so it may not reach that. The caller holds mu.
func (c *Cache[K, V]) sweepLocked(n int) {
	for element := c.recent.Back(); element != nil; {
		e := element.Value.(*entry[K, V])
		moreRecent := element.Prev() // Remove clears the links of element
		if len(c.entries)+n <= c.size && time.Since(e.lastUse) < c.idle {
			return // the remaining values were used later than this one
		}
		if e.users == 0 {
			c.recent.Remove(element)
			delete(c.entries, e.key)
			c.discards.Go(func() { c.discard(e.value) })
		}
		element = moreRecent
	}
}

// Len returns the number of values.
func (c *Cache[K, V]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}

// Close discards all values, also those with users, and waits until discard has returned for each. Acquire still
// returns the discarded values, so that their users can finish, but creates no new ones. Further calls only wait.
func (c *Cache[K, V]) Close() {
	c.mu.Lock()
	for e := c.recent.Front(); e != nil && !c.closed; e = e.Next() {
		c.discards.Go(func() { c.discard(e.Value.(*entry[K, V]).value) })
	}
	c.closed = true
	c.mu.Unlock()
	c.discards.Wait()
}
