package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"answerd/internal/mcp/config"
)

// serveEndingLate returns a server that ends the reply to each tools/call that long after its answer.
// It has a certificate if secure is true. listening is closed when the client has opened its stream
// for messages that belong to no request, which has a connection of its own.
func serveEndingLate(t *testing.T, h http.Handler, late time.Duration, secure bool) (w *httpServer, listening chan struct{}) {
	t.Helper()
	w, listening = &httpServer{}, make(chan struct{})
	var once sync.Once
	w.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := peekBody(r)
		if r.Method == http.MethodGet || strings.Contains(body, `"subscriptions/listen"`) {
			once.Do(func() { close(listening) })
		}
		h.ServeHTTP(w, r)
		if late > 0 && strings.Contains(body, `"tools/call"`) {
			<-time.After(late)
		}
	}))
	if secure {
		w.StartTLS()
	} else {
		w.Start()
	}
	t.Cleanup(func() { w.CloseClientConnections(); w.Close() })
	return w, listening
}

// countReasons returns a http.RoundTripper that counts why a call may open a connection. slow counts the
// replies whose end a busy machine brings to the client more than 10 ms later than late after their beginning, or
// not before the client stops waiting for it. others counts the beginnings and ends of requests whose context
// has no countedKey.
func countReasons(next http.RoundTripper, late time.Duration, slow, others *atomic.Int64) http.RoundTripper {
	return roundTripFunc(func(r *http.Request) (*http.Response, error) {
		countOther := func() {
			if r.Context().Value(countedKey{}) == nil {
				others.Add(1)
			}
		}
		countOther()
		resp, err := next.RoundTrip(r)
		if err != nil {
			countOther()
			return nil, err
		}
		begun := time.Now()
		resp.Body = &endingBody{ReadCloser: resp.Body, ended: sync.OnceFunc(func() {
			countOther()
			if time.Since(begun) > late+10*time.Millisecond {
				slow.Add(1)
			}
		})}
		return resp, nil
	})
}

// countedKey marks the contexts of the calls whose connections are counted.
type countedKey struct{}

// endingBody calls ended when a body has ended or is closed.
type endingBody struct {
	io.ReadCloser
	ended func()
}

func (b *endingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.ended()
	}
	return n, err
}

func (b *endingBody) Close() error {
	b.ended()
	return b.ReadCloser.Close()
}

// Servers end the stream of an answer after the answer, some of them after the caller has cancelled
// the call's context, as the agent does. The connection is still kept for the next call, and the
// request counts as successful.
func TestCallsReuseOneConnectionWhenCallersCancelAfterEachResult(t *testing.T) {
	places := make(chan struct{}, 2) // more at a time would end streams late
	for flavour, options := range flavours {
		lates := []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 50 * time.Millisecond}
		if options.JSONResponse {
			lates = lates[:1] // its answer is the end
		}
		for _, late := range lates {
			for _, secure := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s late, TLS %t", flavour, late, secure), func(t *testing.T) {
					t.Parallel()
					places <- struct{}{}
					defer func() { <-places }()
					w, listening := serveEndingLate(t, streamableHandler(t, newToolServer(nil), options), late, secure)
					var slow, others atomic.Int64
					spans := tracetest.NewSpanRecorder()
					traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
					cfg := config.Server{Name: "a", URL: w.URL}
					if secure {
						cfg.TLS = trustOnly(t, w.Server)
					}
					c := newClient(t, Options{Transport: func(next http.RoundTripper) http.RoundTripper {
						return otelhttp.NewTransport(countReasons(next, late, &slow, &others), otelhttp.WithTracerProvider(traces))
					}}, cfg)
					c.Tools(t.Context())
					<-listening
					trace, root := traces.Tracer("test").Start(t.Context(), "calls")
					call := func(dials *atomic.Int64) { // a dial for it may begin after its end
						counted := context.WithValue(trace, countedKey{}, true)
						ctx, cancel := context.WithCancel(httptrace.WithClientTrace(counted, &httptrace.ClientTrace{
							ConnectStart: func(string, string) { dials.Add(1) },
						}))
						defer cancel()
						res, err := c.Call(ctx, Call{Tool: "echo", Args: json.RawMessage(`{"text":"a"}`)})
						mustResult(t, res, err)
					}

					// The session's requests at its begin run at the same time: one may dial and then be sent on a
					// connection that another has left. This call may find that dial unfinished and dial too,
					// and leaves an idle connection for the next ones.
					call(new(atomic.Int64))
					// A busy machine ends streams so late that calls open connections, as they should. So do calls
					// beside another request, such as the second list of tools, which may have begun before them. Such
					// 20 calls show nothing and are made again.
					for attempt := 1; ; attempt++ {
						var dials atomic.Int64
						ended, beside := slow.Load(), others.Load()
						for range 20 {
							call(&dials)
						}
						ended, beside = slow.Load()-ended, others.Load()-beside
						if dials.Load() == 0 {
							break
						}
						if ended+beside == 0 || attempt == 5 {
							t.Errorf("20 calls dialled %d new connections (%d streams ended late, %d other requests), want 0", dials.Load(), ended, beside)
							break
						}
					}

					root.End()
					failed := 0
					for _, s := range spans.Ended() {
						if s.SpanContext().TraceID() == root.SpanContext().TraceID() && s.Status().Code == codes.Error {
							failed++
						}
					}
					if failed > 0 {
						t.Errorf("got %d failed spans of at least 21 calls, want 0", failed)
					}
				})
			}
		}
	}
}

// A caller who gives up is not kept waiting, and the server learns of it, although the request's
// context does not end with the caller's once there is an answer.
func TestCancelledCallReturnsAndTellsTheServer(t *testing.T) {
	begun, told := make(chan struct{}), make(chan struct{}, 8)
	var calls atomic.Int64

	s := &scriptedServer{before: func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(peekBody(r), cancelled) {
			told <- struct{}{}
		}
		return false
	}}

	s.call = func(_ http.ResponseWriter, r *http.Request, _ message) {
		calls.Add(1)
		close(begun)
		<-r.Context().Done()
	}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	cancelBegunCall(t, c, "t", begun)
	waitUntil(t, "the cancellation", told)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.Call(ctx, Call{Tool: "t"})
	if e := mustFail(t, err); e.Kind != Cancelled || calls.Load() != 1 {
		t.Errorf("got %s after %d calls, want %s and no request under a context that has ended", e.Kind, calls.Load(), Cancelled)
	}
}
