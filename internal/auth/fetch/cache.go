package fetch

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// State says what a cached value may still be used for.
type State int

const (
	// Expired means that nobody may use the value.
	Expired State = iota
	// RefreshDue means that callers use the value while the next one is fetched.
	RefreshDue
	// Fresh means that no request is needed.
	Fresh
)

// Policy says when a Cache sends requests of its own accord. After a failure it always
// waits 1 s, 2 s, 4 s and so on up to 30 s.
type Policy struct {
	// Cooldown is the least time between two requests while there is a value, whether
	// the last request failed or not. 0 means no pause after a success.
	Cooldown time.Duration
	// PollEvery fetches a new value at this interval from the first Get on, even if
	// nobody asks. 0 means never.
	PollEvery time.Duration
}

// Cache stores one value that is fetched again and again: one request at a time, however
// many callers wait, each under its own context. The request runs under the context of
// the Cache, so a caller that gives up does not end it for the others, and Close waits for
// it. While the Cache pauses after a failure, all callers get that failure at once.
//
// golang.org/x/oauth2's ReuseTokenSource, the usual choice, was measured to send 200
// requests one after the other when 100 callers meet an endpoint that fails, the last
// of them waiting ten seconds; and it has no context per caller.
type Cache[T any] struct {
	fetch  func(context.Context) (T, error)
	policy Policy

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup // the request in flight, and poll

	mu         sync.Mutex // protects everything below
	value      T
	fetched    bool // fetch succeeded at least once
	inflight   *inflightFetch[T]
	failures   int       // in a row
	lastErr    error     // why no request may start before notBefore
	notBefore  time.Time // no request starts before
	replacedAt time.Time // when Replace last started a request
	polling    bool
	closed     bool
}

// inflightFetch is one request in flight; done closes once value and err are set.
type inflightFetch[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// NewCache returns an empty Cache whose values come from fetch. It sends no request yet.
// Close must be called in the end.
func NewCache[T any](fetch func(context.Context) (T, error), policy Policy) *Cache[T] {
	c := &Cache[T]{fetch: fetch, policy: policy}
	// Not the context of a caller: the request would end with the caller who started it.
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Get returns the value, and waits for a new one only if state reports Expired. If state
// reports RefreshDue, Get starts a request and returns the current value. The subject
// names the value in errors, which are those of fetch, *Error, or the context's.
func (c *Cache[T]) Get(ctx context.Context, subject string, state func(T) State) (T, error) {
	c.mu.Lock()
	c.startPollLocked()
	value := c.value
	switch state(value) {
	case Fresh:
		c.mu.Unlock()
		return value, nil
	case RefreshDue:
		// Why none starts does not matter while this value is usable.
		_, _ = c.startLocked()
		c.mu.Unlock()
		return value, nil
	}
	f, err := c.startLocked()
	c.mu.Unlock()
	if err != nil {
		var none T
		return none, err
	}
	return f.wait(ctx, subject)
}

// Replace returns the current value if accept reports that it is better than the one that
// the caller has seen, and otherwise what the next request brings, which may be no better.
// Replace starts at most one request per interval.
func (c *Cache[T]) Replace(ctx context.Context, subject string, interval time.Duration, accept func(T) bool) (T, error) {
	c.mu.Lock()
	if value := c.value; accept(value) {
		c.mu.Unlock()
		return value, nil
	}
	f, err := c.startReplaceLocked(interval)
	c.mu.Unlock()
	if err != nil {
		var none T
		return none, err
	}
	return f.wait(ctx, subject)
}

// Value returns the current value without a request: the zero value if there is none.
func (c *Cache[T]) Value() T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value
}

// Set stores a value that came another way, and ends the pause after a failed request.
func (c *Cache[T]) Set(value T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value, c.fetched = value, true
	c.failures, c.notBefore = 0, time.Time{}
}

// DropIf replaces the current value by the zero value if drop reports true for it.
func (c *Cache[T]) DropIf(drop func(T) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if drop(c.value) {
		var none T
		c.value = none
	}
}

// Close cancels the request in flight, waits for it, and lets no other start. The current
// value stays readable.
func (c *Cache[T]) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
}

// startLocked returns the request in flight, and starts one if there is none. The error
// says why none may start now.
func (c *Cache[T]) startLocked() (*inflightFetch[T], error) {
	switch {
	case c.closed:
		return nil, ErrClosed
	case c.inflight != nil:
		return c.inflight, nil
	case time.Now().Before(c.notBefore):
		return nil, c.lastErr
	}
	f := &inflightFetch[T]{done: make(chan struct{})}
	c.inflight = f
	c.running.Go(func() { c.complete(f) })
	return f, nil
}

// startReplaceLocked is startLocked for Replace. A request in flight is good enough: its
// value will be newer than the one that the caller has seen.
func (c *Cache[T]) startReplaceLocked(interval time.Duration) (*inflightFetch[T], error) {
	if c.inflight != nil {
		return c.inflight, nil
	}
	now := time.Now()
	if !c.replacedAt.IsZero() && now.Before(c.replacedAt.Add(interval)) {
		return nil, errTooSoon
	}
	f, err := c.startLocked()
	if err == nil {
		c.replacedAt = now
	}
	return f, err
}

// complete sends the request of f and stores its outcome before it wakes the callers that
// wait for f.
func (c *Cache[T]) complete(f *inflightFetch[T]) {
	f.value, f.err = c.fetchSafely()
	c.mu.Lock()
	c.inflight = nil
	if f.err != nil {
		c.failures++
		c.lastErr = f.err
	} else {
		c.value, c.fetched = f.value, true
		c.failures = 0
		c.lastErr = errTooSoon
	}
	c.notBefore = time.Now().Add(c.pauseLocked())
	c.mu.Unlock()
	close(f.done)
}

// fetchSafely calls fetch and converts a panic to an error. This goroutine serves no HTTP
// request, so a panic over a reply would otherwise end the process.
func (c *Cache[T]) fetchSafely() (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &Error{Public: "the reply could not be processed", Err: fmt.Errorf("panic: %v\n%s", p, debug.Stack())}
		}
	}()
	return c.fetch(c.ctx)
}

// pauseLocked returns how long no request may start after one has ended. With a Cooldown
// the pause is shorter while there is no value at all, because then every caller fails.
func (c *Cache[T]) pauseLocked() time.Duration {
	const longest = 30 * time.Second
	switch {
	case c.policy.Cooldown > 0 && c.fetched:
		return c.policy.Cooldown
	case c.failures == 0:
		return 0
	case c.failures > 5:
		return longest
	}
	return min(time.Second<<(c.failures-1), longest)
}

// startPollLocked starts poll at the first Get.
func (c *Cache[T]) startPollLocked() {
	if c.policy.PollEvery > 0 && !c.polling && !c.closed {
		c.polling = true
		c.running.Go(c.poll)
	}
}

// poll fetches a new value on time until Close, whether or not somebody asks for it.
func (c *Cache[T]) poll() {
	tick := time.NewTicker(c.policy.PollEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.mu.Lock()
			_, _ = c.startLocked()
			c.mu.Unlock()
		case <-c.ctx.Done():
			return
		}
	}
}

// wait returns what f fetched, or the context's error when ctx ends first.
func (f *inflightFetch[T]) wait(ctx context.Context, subject string) (T, error) {
	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("wait for %s: %w", subject, ctx.Err())
	}
}

// ErrClosed is returned after Close, where a request would be needed.
var ErrClosed error = &Error{Public: "the service is shutting down and requests no tokens or keys any more"}

// errTooSoon is returned shortly after a request that succeeded.
var errTooSoon error = &Error{Public: "the identity provider was asked only a moment ago"}
