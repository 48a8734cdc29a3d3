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

// ErrFull and ErrClosed are the errors of Acquire.
var (
	ErrFull   = errors.New("all values are in use")
	ErrClosed = errors.New("the cache is closed")
)

// Cache maps keys to values. Create it with New.
type Cache[K comparable, V any] struct {
	size    int
	idle    time.Duration
	discard func(V)

	mu       sync.Mutex // protects the fields below, and the fields of entries
	entries  map[K]*list.Element
	recent   *list.List // of *entry[K, V], the latest first
	closed   bool
	discards sync.WaitGroup // running calls of discard
}

// entry is a cached value. Its users have acquired and not released it.
type entry[K comparable, V any] struct {
	key   K
	value V
	users int
	used  time.Time // when it was acquired or released last
}

// New returns a cache of at most size values. A value that was not used for the time idle is
// discarded by the next Acquire of a new key, or by Sweep. discard is called on its own goroutine,
// because closing a value may block.
func New[K comparable, V any](size int, idle time.Duration, discard func(V)) *Cache[K, V] {
	return &Cache[K, V]{size: size, idle: idle, discard: discard, entries: map[K]*list.Element{}, recent: list.New()}
}

// Acquire returns the value of key, which it creates if there is none, and protects it from being
// discarded until Release was called as often as Acquire. create must not call the cache. After
// Close, Acquire returns existing values only.
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

// Release ends one use of the value of key.
func (c *Cache[K, V]) Release(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.useLocked(c.entries[key], -1)
}

// useLocked adds delta to the users of an entry and makes it the most recently used one. The caller holds
// mu.
func (c *Cache[K, V]) useLocked(e *list.Element, delta int) {
	c.recent.MoveToFront(e)
	v := e.Value.(*entry[K, V])
	v.users += delta
	v.used = time.Now()
}

// Sweep discards the values that were idle for too long.
func (c *Cache[K, V]) Sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.sweepLocked(0)
	}
}

// sweepLocked discards idle values, and the least recently used ones until there is space for n
// more. It walks from the least recently used value and skips those in use, so there may be less
// space in the end. The caller holds mu.
func (c *Cache[K, V]) sweepLocked(n int) {
	for element := c.recent.Back(); element != nil; {
		v, next := element.Value.(*entry[K, V]), element.Prev()
		if len(c.entries)+n <= c.size && time.Since(v.used) < c.idle {
			return
		}
		if v.users == 0 {
			c.recent.Remove(element)
			delete(c.entries, v.key)
			c.discards.Go(func() { c.discard(v.value) })
		}
		element = next
	}
}

// Len returns the number of values.
func (c *Cache[K, V]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}

// Close discards all values, also those in use, and waits until that is done. Acquire still
// returns these values, so that their users can finish, but creates no new ones.
func (c *Cache[K, V]) Close() {
	c.mu.Lock()
	for e := c.recent.Front(); e != nil && !c.closed; e = e.Next() {
		c.discards.Go(func() { c.discard(e.Value.(*entry[K, V]).value) })
	}
	c.closed = true
	c.mu.Unlock()
	c.discards.Wait()
}
