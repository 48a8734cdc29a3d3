package auth

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// renewal keeps a value that is fetched over and over: one fetch at a time, however
// many callers wait, each under its own context. The fetch runs on the renewal's
// context, so a caller that gives up spoils nothing for the others, and close waits
// for it. After a failure no fetch starts for a while; until then everybody gets
// that failure at once.
//
// golang.org/x/oauth2's ReuseTokenSource, the usual choice, was measured to send 200
// requests one after the other when 100 callers meet an endpoint that fails, the last
// of them waiting ten seconds; and it has no context per caller.
//
// When to fetch is the owner's matter: it holds mu, looks at value, and calls
// startLocked.
type renewal[T any] struct {
	fetch func(context.Context) (T, error)
	// pause is how long after a fetch the next one may start: failures is 0 after
	// a success, else how many failed in a row.
	pause func(failures int, have bool) time.Duration

	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	running sync.WaitGroup // fetches, and what else the owner starts

	mu       sync.Mutex // protects everything below
	value    T
	have     bool // value was fetched
	current  *flight[T]
	failures int
	last     error     // why no fetch may start before next
	next     time.Time // no fetch starts before
	closed   bool
}

// flight is one fetch that is under way; done closes once value and err are set.
type flight[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// newRenewal starts nothing. Its context is nobody's request: a fetch under the first
// caller's context would die with that caller.
func newRenewal[T any](fetch func(context.Context) (T, error), pause func(failures int, have bool) time.Duration) *renewal[T] {
	r := &renewal[T]{fetch: fetch, pause: pause}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// startLocked returns the fetch under way, having started it if there was none, or
// the reason why none may start now.
func (r *renewal[T]) startLocked() (*flight[T], error) {
	switch {
	case r.closed:
		return nil, errClosed
	case r.current != nil:
		return r.current, nil
	case time.Now().Before(r.next):
		return nil, r.last
	}
	f := &flight[T]{done: make(chan struct{})}
	r.current = f
	r.running.Go(func() { r.run(f) })
	return f, nil
}

// run fetches and lands f: what the next caller finds is set before anybody who waits
// is woken.
func (r *renewal[T]) run(f *flight[T]) {
	f.value, f.err = r.contained()
	r.mu.Lock()
	r.current = nil
	if f.err != nil {
		r.failures++
		r.last = f.err
	} else {
		r.value, r.have = f.value, true
		r.failures = 0
		r.last = errTooSoon
	}
	r.next = time.Now().Add(r.pause(r.failures, r.have))
	r.mu.Unlock()
	close(f.done)
}

// contained fetches. A panic over what came is an error: nobody's request is on this
// goroutine, and all that wait for it would go with the process.
func (r *renewal[T]) contained() (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &FetchError{Public: "the reply could not be dealt with", Err: fmt.Errorf("panic: %v\n%s", p, debug.Stack())}
		}
	}()
	return r.fetch(r.ctx)
}

// close ends the fetch under way and waits for it. Values that are there stay.
func (r *renewal[T]) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.running.Wait()
}

// wait returns what f fetched, or gives up when ctx ends. What names the thing
// waited for.
func (f *flight[T]) wait(ctx context.Context, what string) (T, error) {
	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("wait for %s: %w", what, ctx.Err())
	}
}

// Why nothing is fetched: shortly after a fetch that succeeded, and after close.
var (
	errTooSoon error = &FetchError{Public: "the IAM was asked a moment ago"}
	errClosed  error = &FetchError{Public: "nothing is fetched any more, the service ends"}
)

// backoff is the pause after failures in a row: 1 s, 2 s, 4 s … 30 s.
func backoff(failures int) time.Duration {
	const longest = 30 * time.Second
	if failures > 5 {
		return longest
	}
	return min(time.Second<<max(failures-1, 0), longest)
}
