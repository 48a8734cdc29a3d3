package fetch

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// State tells whether a cached value may be used, and whether a new one is needed.
type State int

const (
	// Expired means that the value may not be used: callers wait for a new one.
	Expired State = iota
	// RefreshDue means that callers use the value while the next one is fetched.
	RefreshDue
	// Fresh means that no request is needed.
	Fresh
)

// Policy bounds how often a Cache sends requests, and makes it poll. After a failure a Cache also
// pauses, for 1 s, 2 s, 4 s and so on up to 30 s.
type Policy struct {
	// Cooldown is the pause after each request once there has been a value. It replaces the pauses after failures. 0
	// means no pause after a success.
	Cooldown time.Duration
	// PollEvery is the interval at which the Cache fetches a new value after the first Get, even if no further call
	// follows. 0 means that it does not poll.
	PollEvery time.Duration
}

// Cache stores one value that is fetched again when it gets old. It sends one request at a time, no matter how many
// callers wait, and each caller waits under its own context. The request runs under the context of the Cache, so a
// caller that gives up does not cancel the request for other callers. Close waits for the request. While the Cache
// pauses after a failure, a call that needs a request returns the error of that failure without waiting.
//
// The usual choice, ReuseTokenSource of golang.org/x/oauth2, has no context per caller. When 100
// callers met an endpoint that fails, it sent 200 requests one after the other, and the last
// caller waited ten seconds (measured).
type Cache[T any] struct {
	fetch  func(context.Context) (T, error)
	policy Policy

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup // the goroutines of runFetch and pollUntilClosed

	mu         sync.Mutex // protects everything below
	value      T
	hadValue   bool              // a request has succeeded, or Set was called
	sets       int               // calls of Set so far
	inflight   *inflightFetch[T] // nil if no request is in flight
	failures   int               // since the last success
	notBefore  time.Time         // no request starts before this time
	pauseErr   error             // what calls that need a request before notBefore return
	replacedAt time.Time         // when Replace last started a request
	polling    bool              // pollUntilClosed was started
	closed     bool
}

// inflightFetch is a request in flight. done is closed once value and err are set.
type inflightFetch[T any] struct {
	sets  int // Cache.sets when the request began
	done  chan struct{}
	value T
	err   error
}

// NewCache returns an empty Cache whose values come from fetch. It does not send a request yet.
// The caller must Close the Cache.
func NewCache[T any](fetch func(context.Context) (T, error), policy Policy) *Cache[T] {
	c := &Cache[T]{fetch: fetch, policy: policy}
	// Requests do not run under the context of the caller that starts them: it may give up while other callers wait.
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Get returns the value. state classifies the current value, which is the zero value before the first request. It is
// called under the lock of the Cache. If it returns Expired, Get waits for a new value; if it returns RefreshDue, Get
// starts a request and returns the current value. Errors are those of the request, *Error, or that of ctx with subject
// as the name of the value.
func (c *Cache[T]) Get(ctx context.Context, subject string, state func(T) State) (T, error) {
	c.mu.Lock()
	c.startPollLocked()
	value := c.value
	switch state(value) {
	case Fresh:
		c.mu.Unlock()
		return value, nil
	case RefreshDue:
		// An error means that no request may start now. The value is usable until a later call starts one.
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

// Replace is for a caller that could not use the value it has. It returns the current value if accept reports that this
// is a better one. Otherwise it waits for the value of a request, which it returns without calling accept. It starts at
// most one request per interval, so that callers that can use no value do not flood the server. Until the interval has
// passed it returns an error. subject and errors are those of Get. accept is called under the lock of the Cache.
func (c *Cache[T]) Replace(ctx context.Context, subject string, interval time.Duration, accept func(T) bool) (T, error) {
	c.mu.Lock()
	if value := c.value; accept(value) {
		c.mu.Unlock()
		return value, nil
	}
	inflight, err := c.startReplaceLocked(interval)
	c.mu.Unlock()
	if err != nil {
		var none T
		return none, err
	}
	return inflight.await(ctx, subject)
}

// Value returns the current value, or the zero value if there is none. It does not send a request.
func (c *Cache[T]) Value() T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value
}

// Set stores a value that was obtained in another way. It ends the pause after a failed request. The value of a request
// in flight does not replace it, also not after DropIf.
func (c *Cache[T]) Set(value T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value, c.hadValue = value, true
	c.sets++
	c.failures = 0
	c.notBefore = time.Time{}
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

// startLocked returns the request in flight, after starting one if necessary. It returns an error if no request may
// start now: ErrClosed, or pauseErr during a pause. The caller holds mu.
func (c *Cache[T]) startLocked() (*inflightFetch[T], error) {
	switch {
	case c.closed:
		return nil, ErrClosed
	case c.inflight != nil:
		return c.inflight, nil
	case time.Now().Before(c.notBefore):
		return nil, c.pauseErr
	}
	started := &inflightFetch[T]{sets: c.sets, done: make(chan struct{})}
	c.inflight = started
	c.running.Go(func() { c.runFetch(started) })
	return started, nil
}

// startReplaceLocked returns a request for Replace. If a request is in flight, it returns that one, whose value will be
// newer than the caller's. Otherwise it starts one, unless less than interval has passed since it last did (errTooSoon)
// or startLocked returns an error. The caller holds mu.
func (c *Cache[T]) startReplaceLocked(interval time.Duration) (*inflightFetch[T], error) {
	if c.inflight != nil {
		return c.inflight, nil
	}
	now := time.Now()
	if !c.replacedAt.IsZero() && now.Before(c.replacedAt.Add(interval)) {
		return nil, errTooSoon
	}
	inflight, err := c.startLocked()
	if err == nil {
		c.replacedAt = now
	}
	return inflight, err
}

// runFetch sends a request, and stores its outcome in inflight and, unless Set was called in between, in the Cache. It
// wakes the waiting callers after that, so that their next calls see the outcome.
func (c *Cache[T]) runFetch(inflight *inflightFetch[T]) {
	inflight.value, inflight.err = c.fetchSafely()
	c.mu.Lock()
	c.inflight = nil
	if inflight.err != nil {
		c.failures++
		c.pauseErr = inflight.err
	} else {
		if c.sets == inflight.sets {
			c.value = inflight.value
		}
		c.hadValue = true
		c.failures = 0
		c.pauseErr = errTooSoon
	}
	c.notBefore = time.Now().Add(c.pauseLocked())
	c.mu.Unlock()
	close(inflight.done)
}

// fetchSafely calls fetch and converts a panic to an error. On this goroutine net/http does not recover from panics, so
// a panic would end the process.
func (c *Cache[T]) fetchSafely() (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &Error{Public: "the reply could not be processed", Err: fmt.Errorf("panic: %v\n%s", p, debug.Stack())}
		}
	}()
	return c.fetch(c.ctx)
}

// pauseLocked returns the pause after the request that has just ended. Before the first value every caller fails, so
// Cooldown does not apply yet, and the first pauses are shorter: 1 s, 2 s, 4 s and so on. The caller holds mu.
func (c *Cache[T]) pauseLocked() time.Duration {
	const longest = 30 * time.Second
	switch {
	case c.policy.Cooldown > 0 && c.hadValue:
		return c.policy.Cooldown
	case c.failures == 0:
		return 0
	}
	return min(time.Second<<min(c.failures-1, 5), longest)
}

// startPollLocked starts pollUntilClosed if the policy asks for it and it does not run yet. The caller holds mu.
func (c *Cache[T]) startPollLocked() {
	if c.policy.PollEvery > 0 && !c.polling && !c.closed {
		c.polling = true
		c.running.Go(c.pollUntilClosed)
	}
}

// pollUntilClosed starts a request every PollEvery until Close. A tick during a pause is skipped.
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

// await waits for the outcome of f. If ctx ends first, it returns an error that wraps that of ctx and names subject.
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

// errTooSoon is returned if a request would be needed so soon after one that succeeded that a pause applies.
var errTooSoon error = &Error{Public: "the identity provider was asked only a moment ago"}
