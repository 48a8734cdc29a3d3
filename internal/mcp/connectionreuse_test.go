package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
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

// serveEndingLate returns a server that ends the reply to each tools/call that long after its answer,
// and counts the TCP connections. It has a certificate if secure is true. slow counts the replies
// that a busy machine ended more than 10 ms later than that. listening is closed when the client has
// opened its stream for messages that belong to no request, which has a connection of its own.
func serveEndingLate(t *testing.T, h http.Handler, late time.Duration, secure bool) (w *web, slow *atomic.Int64, listening chan struct{}) {
	t.Helper()
	w, slow, listening = &web{}, new(atomic.Int64), make(chan struct{})
	var once sync.Once
	w.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := peek(r)
		isCall := strings.Contains(body, `"tools/call"`)
		if r.Method == http.MethodGet || strings.Contains(body, `"subscriptions/listen"`) {
			once.Do(func() { close(listening) })
		}
		h.ServeHTTP(w, r)
		answered := time.Now()
		if isCall && late > 0 {
			<-time.After(late)
		}
		if time.Since(answered) > late+10*time.Millisecond {
			slow.Add(1)
		}
	}))
	w.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			w.conns.Add(1)
		}
	}
	if secure {
		w.StartTLS()
	} else {
		w.Start()
	}
	t.Cleanup(func() { w.CloseClientConnections(); w.Close() })
	return w, slow, listening
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
					w, slow, listening := serveEndingLate(t, handler(tools(nil), options), late, secure)
					spans := tracetest.NewSpanRecorder()
					traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
					cfg := config.Server{Name: "a", URL: w.URL}
					if secure {
						cfg.TLS = trust(t, w.Server)
					}
					c := open(t, Options{Transport: func(next http.RoundTripper) http.RoundTripper {
						return otelhttp.NewTransport(next, otelhttp.WithTracerProvider(traces))
					}}, cfg)
					c.Tools(t.Context())
					trace, root := traces.Tracer("test").Start(t.Context(), "calls")
					call := func() {
						ctx, cancel := context.WithCancel(trace)
						defer cancel()
						res, err := c.Call(ctx, Call{Tool: "echo", Args: json.RawMessage(`{"text":"a"}`)})
						must(t, res, err)
					}
					call()
					<-listening
					// A busy machine ends streams so late that calls open connections, as they should.
					// Such 20 calls show nothing and are made again.
					for attempt := 1; ; attempt++ {
						opened, ended := w.conns.Load(), slow.Load()
						for range 20 {
							call()
						}
						opened, ended = w.conns.Load()-opened, slow.Load()-ended
						if opened == 0 {
							break
						}
						if ended == 0 || attempt == 5 {
							t.Errorf("got %d new connections for 20 calls (%d streams ended late), want 0", opened, ended)
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
	s := &script{before: func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(peek(r), cancelled) {
			told <- struct{}{}
		}
		return false
	}}
	s.call = func(_ http.ResponseWriter, r *http.Request, _ message) {
		calls.Add(1)
		close(begun)
		<-r.Context().Done()
	}
	c := open(t, Options{}, config.Server{Name: "a", URL: serve(t, s).URL})
	hangUp(t, c, "t", begun)
	reached(t, "the cancellation", told)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.Call(ctx, Call{Tool: "t"})
	if e := kind(t, err); e.Kind != Cancelled || calls.Load() != 1 {
		t.Errorf("got %s after %d calls, want %s and no request under a context that has ended", e.Kind, calls.Load(), Cancelled)
	}
}
