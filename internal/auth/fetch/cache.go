package fetch

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// State says whether a cached value may be used, and whether a new one is needed.
type State int

const (
	// Expired means that the value must not be used, so callers wait for a new one.
	Expired State = iota
	// RefreshDue means that callers use the value while the next one is fetched.
	RefreshDue
	// Fresh means that no request is needed.
	Fresh
)

// Policy limits how often a Cache sends requests, and can make it poll. After a failure, a Cache pauses in any case,
// for 1 s, 2 s, 4 s and so on, up to 30 s.
type Policy struct {
	// Cooldown is the pause after each request, once there has been a value. It replaces the pauses after failures. 0
	// means that there is no pause after a success.
	Cooldown time.Duration
	// PollEvery is the interval at which the Cache fetches a new value after the first Get, even without further calls.
	// 0 means that it does not poll.
	PollEvery time.Duration
}

// Cache stores one value that is fetched again when it gets old. It sends one request at a time, no matter how many
// callers wait. Each caller waits until its own context ends. The request has the context of the Cache, so a caller
// that gives up does not cancel the request for others. During the pause after a failure, a call that needs a request
// returns that failure's error without waiting.
//
// The usual choice, ReuseTokenSource of golang.org/x/oauth2, does not give each caller a context of its own. With many
// callers and an endpoint that fails, it sends their requests one after the other.
type Cache[T any] struct {
	fetch  func(context.Context) (T, error)
	policy Policy

	ctx     context.Context // cancelled by Close
	cancel  context.CancelFunc
	running sync.WaitGroup // the goroutines of runFetch and pollUntilClosed

	mu         sync.Mutex // protects the fields below
	value      T
	hadValue   bool              // a request has succeeded, or Set was called
	sets       int               // number of calls of Set so far
	inflight   *inflightFetch[T] // nil if no request is in flight
	failures   int               // number of failures since the last success
	notBefore  time.Time         // no request starts before this time
	pauseErr   error             // the error for calls that need a request before notBefore
	replacedAt time.Time         // when Replace last started a request with an interval
	polling    bool              // pollUntilClosed was started
	closed     bool
}

// inflightFetch is a request in flight. done is closed after value and err are set.
type inflightFetch[T any] struct {
	sets  int // value of Cache.sets when the request began
	done  chan struct{}
	value T
	err   error
}

// NewCache returns an empty Cache that gets its values from fetch. It sends no request yet. Callers must call Close.
func NewCache[T any](fetch func(context.Context) (T, error), policy Policy) *Cache[T] {
	c := &Cache[T]{fetch: fetch, policy: policy}
	// Requests do not use the context of the caller that starts them, because it may give up while others wait.
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Get returns the value. It calls state, with c.mu held, to classify the current value, which is the zero value before
// the first request. If state returns Expired, Get waits for a new value. If it returns RefreshDue, Get starts a
// request and returns the current value. Errors are those of the request or *Error, or wrap that of ctx. In the last
// case, the error text uses subject as the value's name.
func (c *Cache[T]) Get(ctx context.Context, subject string, state func(T) State) (T, error) {
	c.mu.Lock()
	c.startPollLocked()
	value := c.value
	current := state(value)
	if current == Fresh {
		c.mu.Unlock()
		return value, nil
	}
	inflight, err := c.startFetchLocked()
	c.mu.Unlock()
	if current == RefreshDue { // an error means that no request may start now, and the value is still usable
		return value, nil
	}
	if err != nil {
		var none T
		return none, err
	}
	return inflight.await(ctx, subject)
}

// Replace is for callers that could not use the value that they got. It returns the current value if accept returns
// true for it, which means that it is a better one. Otherwise it waits for a request and returns the new value without
// calling accept. It starts at most one request per interval, so that callers that can use no value do not flood the
// server. Until the interval has passed, it returns an error. subject and the other errors are as in Get. accept is
// called with c.mu held.
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

// Value returns the current value, or the zero value if there is none. It sends no request.
func (c *Cache[T]) Value() T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value
}

// Set stores a value that was obtained in another way, and ends the pause after a failed request. The value of a
// request that is already in flight will not replace it, even if DropIf removes it before that request ends.
func (c *Cache[T]) Set(value T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value, c.hadValue = value, true
	c.sets++
	c.failures = 0
	c.notBefore = time.Time{}
}

// DropIf removes the current value if drop returns true for it. drop is called with c.mu held.
func (c *Cache[T]) DropIf(drop func(T) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if drop(c.value) {
		var none T
		c.value = none
	}
}

// Close cancels the request in flight, waits until it has ended, and prevents further ones. The current value remains
// readable.
func (c *Cache[T]) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
}

// startFetchLocked returns the request in flight, after starting one if necessary. If no request may start now, it
// returns ErrClosed or, during a pause, pauseErr. c.mu must be held.
func (c *Cache[T]) startFetchLocked() (*inflightFetch[T], error) {
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

// startReplaceLocked returns a request for Replace. If a request is in flight, it returns that one, because its value
// will be newer than what Replace's caller has. Otherwise it starts a request. It returns errTooSoon if it did so less
// than interval ago, or the error of startFetchLocked. Requests with interval 0 do not count. c.mu must be held.
func (c *Cache[T]) startReplaceLocked(interval time.Duration) (*inflightFetch[T], error) {
	if c.inflight != nil {
		return c.inflight, nil
	}
	now := time.Now()
	if !c.replacedAt.IsZero() && now.Before(c.replacedAt.Add(interval)) {
		return nil, errTooSoon
	}
	inflight, err := c.startFetchLocked()
	if err != nil {
		return nil, err
	}
	if interval > 0 {
		c.replacedAt = now
	}
	return inflight, nil
}

// runFetch sends a request. It stores the outcome in inflight and, unless Set was called in the meantime, in the Cache.
// It then wakes the waiting callers, so that their next calls see the outcome.
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

// fetchSafely calls c.fetch and converts a panic to an error. Without that, a panic on this goroutine would end the
// process.
func (c *Cache[T]) fetchSafely() (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &Error{Public: "the reply could not be processed", Err: fmt.Errorf("panic: %v\n%s", p, debug.Stack())}
		}
	}()
	return c.fetch(c.ctx)
}

// pauseLocked returns the pause after the request that has just ended. Cooldown does not apply before the first value,
// because every caller fails until then. The first pauses are short instead: 1 s, 2 s, 4 s and so on. c.mu must be
// held.
func (c *Cache[T]) pauseLocked() time.Duration {
	const (
		longest      = 30 * time.Second
		maxDoublings = 5 // to 32 s, which is more than longest; without a limit, the shift would overflow
	)
	switch {
	case c.policy.Cooldown > 0 && c.hadValue:
		return c.policy.Cooldown
	case c.failures == 0:
		return 0
	}
	return min(time.Second<<min(c.failures-1, maxDoublings), longest)
}

// startPollLocked starts pollUntilClosed if the policy asks for polling and it does not run yet. c.mu must be held.
func (c *Cache[T]) startPollLocked() {
	if c.policy.PollEvery > 0 && !c.polling && !c.closed {
		c.polling = true
		c.running.Go(c.pollUntilClosed)
	}
}

// pollUntilClosed starts a request every PollEvery until Close, except during a pause (startFetchLocked).
func (c *Cache[T]) pollUntilClosed() {
	tick := time.NewTicker(c.policy.PollEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.mu.Lock()
			_, _ = c.startFetchLocked() // an error means that no request may start now
			c.mu.Unlock()
		case <-c.ctx.Done():
			return
		}
	}
}

// await waits for the outcome of f. If ctx ends first, it returns an error that wraps ctx.Err and names subject.
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

// errTooSoon is returned if a request would be needed too soon after one that succeeded.
var errTooSoon error = &Error{Public: "the identity provider was asked only a moment ago"}
