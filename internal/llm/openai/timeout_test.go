package openai

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// These tests measure exact times, so they run on synctest's clock, where no socket may
// be: the endpoint is a transport here that writes its body into a pipe.

// fakeTransport answers requests in memory. It keeps http.RoundTripper's promise that a
// request's context ends its body.
type fakeTransport func(r *http.Request, body *io.PipeWriter) *http.Response

// instead returns f in place of the transport that it would wrap.
func (f fakeTransport) instead(http.RoundTripper) http.RoundTripper { return f }

func (f fakeTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	pr, pw := io.Pipe()
	context.AfterFunc(r.Context(), func() { pw.CloseWithError(r.Context().Err()) })
	res := f(r, pw)
	if res == nil {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	res.Body, res.Request = pr, r
	if res.Header == nil {
		res.Header = http.Header{"Content-Type": {"text/event-stream"}}
	}
	return res, nil
}

// writeEvery answers with each text after a pause of d, and then ends.
func writeEvery(d time.Duration, texts ...string) fakeTransport {
	return func(_ *http.Request, body *io.PipeWriter) *http.Response {
		go func() {
			for _, text := range texts {
				<-time.After(d)
				if _, err := io.WriteString(body, text); err != nil {
					return
				}
			}
			body.Close()
		}()
		return &http.Response{StatusCode: 200}
	}
}

// askInBubble asks in a bubble and returns how long that took on its clock.
func askInBubble(t *testing.T, cfg Config, check func(parts []llm.Part, err error, took time.Duration)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		parts, err := llmtest.Collect(t.Context(), New(cfg), testRequest)
		check(parts, err, time.Since(start))
	})
}

// F2, F3
func TestTimeoutsAreTheConfiguredOnes(t *testing.T) {
	never := fakeTransport(func(*http.Request, *io.PipeWriter) *http.Response { return nil })
	bytesThen := func(n int, d time.Duration) fakeTransport {
		return func(_ *http.Request, body *io.PipeWriter) *http.Response {
			go func() {
				for range n {
					<-time.After(d)
					if _, err := io.WriteString(body, ": ping\n"); err != nil {
						return
					}
				}
			}()
			return &http.Response{StatusCode: 200}
		}
	}
	for name, c := range map[string]struct {
		cfg  Config
		want time.Duration
	}{
		"default, no reply":       {Config{Transport: never.instead, MaxRetries: 5}, 60 * time.Second},
		"default, headers only":   {Config{Transport: bytesThen(0, 0).instead}, 60 * time.Second},
		"default, first byte":     {Config{Transport: bytesThen(1, 59*time.Second).instead}, 89 * time.Second},
		"default, heartbeats":     {Config{Transport: bytesThen(3, 29*time.Second).instead}, (3*29 + 30) * time.Second},
		"configured, no reply":    {Config{Transport: never.instead, FirstByteTimeout: time.Second}, time.Second},
		"configured, in between":  {Config{Transport: bytesThen(1, time.Second).instead, IdleTimeout: 2 * time.Second}, 3 * time.Second},
		"idle longer than first":  {Config{Transport: bytesThen(1, 0).instead, FirstByteTimeout: time.Second, IdleTimeout: time.Minute}, time.Minute},
		"first longer than idle":  {Config{Transport: bytesThen(1, 4*time.Second).instead, FirstByteTimeout: 5 * time.Second, IdleTimeout: time.Second}, 5 * time.Second},
		"negative is taken for 0": {Config{Transport: never.instead, FirstByteTimeout: -1}, 60 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			askInBubble(t, c.cfg, func(_ []llm.Part, err error, took time.Duration) {
				if e := requireError(t, err, llm.ModelTimeout); !e.Retryable {
					t.Errorf("got %+v, want a retryable error", e)
				}
				if took != c.want {
					t.Errorf("got a timeout after %s, want %s", took, c.want)
				}
			})
		})
	}
}

// F2
func TestTimeoutOfTheFirstByteIsNotRetried(t *testing.T) {
	for name, reply := range map[string]*http.Response{"no reply": nil, "headers only": {StatusCode: 200}} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			silent := fakeTransport(func(*http.Request, *io.PipeWriter) *http.Response {
				requests.Add(1)
				return reply
			})
			askInBubble(t, Config{Transport: silent.instead, MaxRetries: 2}, func(_ []llm.Part, err error, _ time.Duration) {
				if e := requireError(t, err, llm.ModelTimeout); e.Public != publicNoFirstByte || !e.Retryable {
					t.Errorf("got %+v, want a retryable error with %q", e, publicNoFirstByte)
				}
				if n := requests.Load(); n != 1 {
					t.Errorf("got %d requests, want 1", n)
				}
			})
		})
	}
}

// F3
func TestTimeoutInMidStreamIsNotRetried(t *testing.T) {
	var requests atomic.Int32
	stalls := fakeTransport(func(_ *http.Request, body *io.PipeWriter) *http.Response {
		requests.Add(1)
		go func() { _, _ = io.WriteString(body, eventStream(textChunk("a"))) }()
		return &http.Response{StatusCode: 200}
	})
	askInBubble(t, Config{Transport: stalls.instead, MaxRetries: 2}, func(parts []llm.Part, err error, _ time.Duration) {
		if e := requireError(t, err, llm.ModelTimeout); e.Public != publicIdle {
			t.Errorf("got %+v, want %q", e, publicIdle)
		}
		if n := requests.Load(); len(parts) != 1 || n != 1 {
			t.Errorf("got %d parts and %d requests, want one each", len(parts), n)
		}
	})
}

// A slow consumer is not a slow endpoint: the idle time runs only while bytes are awaited.
func TestTimeoutDoesNotCountASlowConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{Transport: writeEvery(time.Second, eventStream(textChunk("a")), eventStream(textChunk("b")), eventStream(stopChunk)).instead})
		n := 0
		for _, err := range m.Stream(t.Context(), testRequest) {
			if err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Hour)
			n++
		}
		if n != 3 {
			t.Errorf("got %d parts, want 3", n)
		}
	})
}

// An endpoint that keeps the connection open must not hold a complete answer back.
func TestTimeoutAfterFinishReasonIsShort(t *testing.T) {
	keepOpen := func(_ *http.Request, body *io.PipeWriter) *http.Response {
		go func() { _, _ = io.WriteString(body, eventStream(textChunk("a"), stopChunk)) }()
		return &http.Response{StatusCode: 200}
	}
	askInBubble(t, Config{Transport: fakeTransport(keepOpen).instead}, func(parts []llm.Part, err error, took time.Duration) {
		if err != nil || len(parts) != 2 || took != afterFinish {
			t.Errorf("got %v, %v after %s, want 2 parts after %s", parts, err, took, afterFinish)
		}
	})
}

// Usage comes after finish_reason, and late at some endpoints.
func TestTimeoutAfterFinishReasonWaitsForUsage(t *testing.T) {
	askInBubble(t, Config{Transport: writeEvery(time.Second, eventStream(textChunk("a"), stopChunk), eventStream(usageChunk)).instead}, func(parts []llm.Part, err error, _ time.Duration) {
		if got, want := llmtest.FormatParts(parts), llmtest.Lines(`text "a"`, `usage 3 2 5`, `finish stop m-1`); err != nil || got != want {
			t.Errorf("got error %v and\n%swant\n%s", err, got, want)
		}
	})
}

// F7
func TestRetryWaitsForRetryAfter(t *testing.T) {
	tries := 0
	limited := fakeTransport(func(r *http.Request, body *io.PipeWriter) *http.Response {
		if tries++; tries > 2 {
			return writeEvery(0, helloStream)(r, body)
		}
		go body.Close()
		return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"7"}}}
	})
	askInBubble(t, Config{Transport: limited.instead, MaxRetries: 2}, func(_ []llm.Part, err error, took time.Duration) {
		if err != nil || took != 14*time.Second {
			t.Errorf("got %v after %s, want an answer after 14s", err, took)
		}
	})
}

func TestRetryWaitEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limited := fakeTransport(func(_ *http.Request, body *io.PipeWriter) *http.Response {
			go body.Close()
			return &http.Response{StatusCode: 503, Header: http.Header{"Retry-After": {"10"}}}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := llmtest.Collect(ctx, New(Config{Transport: limited.instead, MaxRetries: 1}), testRequest)
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took != time.Second {
			t.Errorf("got %v after %s, want %v after 1s", err, took, context.DeadlineExceeded)
		}
	})
}

func TestRetryDelayReadsRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for after, c := range map[string]struct {
		delay time.Duration
		ok    bool
	}{
		"0": {0, true}, "1": {time.Second, true}, " 10 ": {10 * time.Second, true}, "0.5": {500 * time.Millisecond, true},
		"11": {11 * time.Second, false}, "3600": {time.Hour, false}, "1e300": {maxParsedRetryAfter, false}, "+Inf": {maxParsedRetryAfter, false},
		"Sat, 21 Nov 2026 10:00:03 GMT": {3 * time.Second, true},
		"Sat, 21 Nov 2026 09:00:00 GMT": {0, true},
		"Sat, 21 Nov 2026 11:00:00 GMT": {time.Hour, false},
	} {
		if d, ok := retryDelay(0, after, now); d != c.delay || ok != c.ok {
			t.Errorf("retryDelay with Retry-After %q = %s, %v, want %s, %v", after, d, ok, c.delay, c.ok)
		}
	}
	for _, garbage := range []string{"", "soon", "-1", "NaN", "1 s"} {
		if d, ok := retryDelay(0, garbage, now); d > backoffBase || !ok {
			t.Errorf("retryDelay with Retry-After %q = %s, %v, want at most %s, true", garbage, d, ok, backoffBase)
		}
	}
}

func TestBackoffDelayIsFullJitterUpToFiveSeconds(t *testing.T) {
	for try, ceiling := range []time.Duration{200, 400, 800, 1600, 3200, 5000, 5000, 5000} {
		ceiling *= time.Millisecond
		seen := map[time.Duration]bool{}
		for range 200 {
			d := backoffDelay(try)
			if d < 0 || d > ceiling {
				t.Fatalf("backoffDelay(%d) = %s, want 0 to %s", try, d, ceiling)
			}
			seen[d] = true
		}
		if len(seen) < 100 {
			t.Errorf("backoffDelay(%d): got %d different delays of 200, want at least 100", try, len(seen))
		}
	}
	if d := backoffDelay(1 << 40); d > backoffMax {
		t.Errorf("got %s for a very late try, want at most %s", d, backoffMax)
	}
}
