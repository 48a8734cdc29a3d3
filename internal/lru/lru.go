// Package lru caches a limited number of values and discards the least recently used ones.
//
//	sessions := lru.New[string](256, 10*time.Minute, (*Session).Close)
//	s, err := sessions.Acquire(user, func() *Session { return dial(user) })
//	if err != nil { … }
//	defer sessions.Release(user)
//
// A value that is in use is not discarded before Close. General-purpose LRU packages do not promise that. All methods
// may be called concurrently.
package lru

import (
	"container/list"
	"errors"
	"sync"
	"time"
)

// Acquire returns these errors for a key without a value.
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
	users   int       // number of calls of Acquire minus calls of Release
	lastUse time.Time // when the value was last acquired or released
}

// New returns a cache for at most size values. A value that is not in use and was last used at least idle ago is
// discarded by the next Acquire of a new key, or by Sweep. The cache calls discard once for each value that it removes,
// on a new goroutine, because closing a value may block.
func New[K comparable, V any](size int, idle time.Duration, discard func(V)) *Cache[K, V] {
	return &Cache[K, V]{size: size, idle: idle, discard: discard, entries: map[K]*list.Element{}, recent: list.New()}
}

// Acquire returns the value of key and marks it as in use until Release is called as often as Acquire. Values in use
// are not discarded before Close. If key has no value, Acquire stores the result of create. If the cache is full, it
// first discards the least recently used value that is not in use, or returns ErrFull if all are. After Close, it
// returns ErrClosed for a key without a value, but still returns the values that exist. create must not call the cache,
// whose mutex is held.
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

// Release ends one use of a value, which began with a call of Acquire. It panics if key has no value.
func (c *Cache[K, V]) Release(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.useLocked(c.entries[key], -1)
}

// useLocked adds delta to an entry's users and makes it the most recently used entry. c.mu must be held.
func (c *Cache[K, V]) useLocked(element *list.Element, delta int) {
	c.recent.MoveToFront(element)
	e := element.Value.(*entry[K, V])
	e.users += delta
	e.lastUse = time.Now()
}

// Sweep discards the values that are not in use and were last used at least the idle time ago (see New). It does not
// wait for discard. After Close it does nothing, because Close has discarded all values.
func (c *Cache[K, V]) Sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.sweepLocked(0)
	}
}

// sweepLocked discards idle values. Then it discards the least recently used values until newValues more values fit. It
// never discards values in use, so they may still not fit. c.mu must be held.
func (c *Cache[K, V]) sweepLocked(newValues int) {
	for element := c.recent.Back(); element != nil; {
		e := element.Value.(*entry[K, V])
		moreRecent := element.Prev() // before Remove, which clears it
		fits := len(c.entries)+newValues <= c.size
		isIdle := time.Since(e.lastUse) >= c.idle
		if fits && !isIdle {
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

// Close discards all values, even those in use, and waits until discard has returned for each of them. After Close,
// Acquire still returns the discarded values, so that their users can finish, but creates no new ones. Further calls of
// Close only wait.
func (c *Cache[K, V]) Close() {
	c.mu.Lock()
	if !c.closed {
		for element := c.recent.Front(); element != nil; element = element.Next() {
			c.discards.Go(func() { c.discard(element.Value.(*entry[K, V]).value) })
		}
	}
	c.closed = true
	c.mu.Unlock()
	c.discards.Wait()
}
