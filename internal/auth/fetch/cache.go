package fetch

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// State tells what a cached value may still be used for.
type State int

const (
	// Expired means that the value may not be used.
	Expired State = iota
	// RefreshDue means that callers use the value while the next one is fetched.
	RefreshDue
	// Fresh means that no request is needed.
	Fresh
)

// Policy bounds how often a Cache sends requests, and makes it poll. After a failure a Cache also
// pauses, for 1 s, 2 s, 4 s and so on up to 30 s.
type Policy struct {
	// Cooldown is the shortest time between two requests while there is a value, whether the last
	// request failed or not. 0 means no pause after a success.
	Cooldown time.Duration
	// PollEvery is the interval at which a new value is fetched from the first Get on, even without
	// callers. 0 means never.
	PollEvery time.Duration
}

// Cache stores one value that is fetched again when it gets old. It sends one request at a time,
// no matter how many callers wait, and each caller waits under its own context. The request runs
// under the context of the Cache: a caller that gives up does not cancel it for the others, and
// Close waits for it. While the Cache pauses after a failure, all callers get that failure at
// once.
//
// The usual choice, ReuseTokenSource of golang.org/x/oauth2, has no context per caller. When 100
// callers met an endpoint that fails, it sent 200 requests one after the other, and the last
// caller waited ten seconds (measured).
type Cache[T any] struct {
	fetch  func(context.Context) (T, error)
	policy Policy

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup // the request in flight, and poll

	mu         sync.Mutex // protects everything below
	value      T
	fetched    bool // there was a value at least once
	inflight   *inflightFetch[T]
	failures   int       // since the last success
	lastErr    error     // the error of callers before notBefore
	notBefore  time.Time // no request starts before this time
	replacedAt time.Time // when Replace last started a request
	polling    bool
	closed     bool
}

// inflightFetch is a request in flight. done is closed once value and err are set.
type inflightFetch[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// NewCache returns an empty Cache whose values come from fetch. It does not send a request yet.
// The caller must Close the Cache.
func NewCache[T any](fetch func(context.Context) (T, error), policy Policy) *Cache[T] {
	c := &Cache[T]{fetch: fetch, policy: policy}
	// With the context of a caller, a request would end when the caller that started it gives up.
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Get returns the value. It waits for a new one only if state reports Expired. If state reports
// RefreshDue, it starts a request and returns the current value. The subject names the value in
// errors, which are those of fetch, *Error, or the context's.
func (c *Cache[T]) Get(ctx context.Context, subject string, state func(T) State) (T, error) {
	c.mu.Lock()
	c.startPollLocked()
	value := c.value
	switch state(value) {
	case Fresh:
		c.mu.Unlock()
		return value, nil
	case RefreshDue:
		// If no request may start now, a later call starts one; the value is usable until then.
		_, _ = c.startLocked()
		c.mu.Unlock()
		return value, nil
	}
	inflight, err := c.startLocked()
	c.mu.Unlock()
	if err != nil {
		var none T
		return none, err
	}
	return inflight.await(ctx, subject)
}

// Replace returns the current value if accept reports that it is better than the one that the
// caller has. Otherwise it waits for the value of the next request, which may not be better. It
// starts at most one request per interval, so that callers which refuse every value do not flood
// the other side.
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
	return f.await(ctx, subject)
}

// Value returns the current value, or the zero value if there is none. It does not send a request.
func (c *Cache[T]) Value() T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value
}

// Set stores a value that was obtained in another way. It ends the pause after a failed request.
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

// Close cancels the request in flight, waits for it, and prevents further ones. The current value
// stays readable.
func (c *Cache[T]) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
}

// startLocked returns the request in flight, and starts one if there is none. The error is the
// reason why none may start now. The caller holds mu.
func (c *Cache[T]) startLocked() (*inflightFetch[T], error) {
	switch {
	case c.closed:
		return nil, ErrClosed
	case c.inflight != nil:
		return c.inflight, nil
	case time.Now().Before(c.notBefore):
		return nil, c.lastErr
	}
	started := &inflightFetch[T]{done: make(chan struct{})}
	c.inflight = started
	c.running.Go(func() { c.runFetch(started) })
	return started, nil
}

// startReplaceLocked starts a request for Replace. It returns a request in flight instead, because
// the value of that is newer than the one that the caller has. The caller holds mu.
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

// runFetch sends the request of fetch and stores its outcome. It wakes the waiting callers last, so
// that their next calls see the outcome.
func (c *Cache[T]) runFetch(fetch *inflightFetch[T]) {
	fetch.value, fetch.err = c.fetchSafely()
	c.mu.Lock()
	c.inflight = nil
	if fetch.err != nil {
		c.failures++
		c.lastErr = fetch.err
	} else {
		c.value, c.fetched = fetch.value, true
		c.failures = 0
		c.lastErr = errTooSoon
	}
	c.notBefore = time.Now().Add(c.pauseLocked())
	c.mu.Unlock()
	close(fetch.done)
}

// fetchSafely calls fetch and converts a panic to an error. This goroutine serves no HTTP request,
// so a panic would end the process.
func (c *Cache[T]) fetchSafely() (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &Error{Public: "the reply could not be processed", Err: fmt.Errorf("panic: %v\n%s", p, debug.Stack())}
		}
	}()
	return c.fetch(c.ctx)
}

// pauseLocked returns for how long no request may start after one has ended. Cooldown applies only
// once there was a value: before that every caller fails, and the pauses after failures are
// shorter at first.
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

// startPollLocked starts the polling goroutine, at the first Get.
func (c *Cache[T]) startPollLocked() {
	if c.policy.PollEvery > 0 && !c.polling && !c.closed {
		c.polling = true
		c.running.Go(c.pollUntilClosed)
	}
}

// pollUntilClosed fetches a new value at each interval until Close, also without callers.
func (c *Cache[T]) pollUntilClosed() {
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

// await returns the outcome of f, or an error with the context's if ctx ends first.
func (f *inflightFetch[T]) await(ctx context.Context, subject string) (T, error) {
	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("wait for %s: %w", subject, ctx.Err())
	}
}

// ErrClosed is returned after Close if a request would be needed.
var ErrClosed error = &Error{Public: "the service is shutting down and requests no tokens or keys any more"}

// errTooSoon is returned shortly after a request that succeeded.
var errTooSoon error = &Error{Public: "the identity provider was asked only a moment ago"}
