package telemetry

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// With tracing off an answer has a trace id all the same, and the next server is told.
func TestEveryRequestHasATraceWithTracingOff(t *testing.T) {
	tel := start(t, Config{})
	var seen http.Header
	next, nextClient := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.Header.Clone() }))
	outgoing := &http.Client{Transport: tel.Transport(nextClient.Transport)}
	url, client := serve(t, tel.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := tel.Tracer("test").Start(r.Context(), "work")
		defer span.End()
		if span.IsRecording() {
			t.Error("a span records")
		}
		fetch(ctx, t, outgoing, next)
		_, _ = io.WriteString(w, TraceID(ctx))
	}), nil))

	if id := get(t, client, url, "traceparent", caller, "baggage", "user=4711"); id != callerTrace {
		t.Errorf("trace %q, want the caller's", id)
	}
	if got := seen.Get("traceparent"); got != caller {
		t.Errorf("the next server got %q, want the caller's traceparent as it came", got)
	}
	if seen.Get("baggage") != "" {
		t.Error("baggage was sent on")
	}

	ids := map[string]bool{}
	for _, bad := range []string{"", "00-" + strings.Repeat("0", 32) + "-" + callerSpan + "-01", "garbage", strings.ToUpper(caller)} {
		id := get(t, client, url, "traceparent", bad)
		if len(id) != 32 || id == callerTrace || ids[id] {
			t.Errorf("after %q the trace is %q, want a new one", bad, id)
		}
		ids[id] = true
		if got := seen.Get("traceparent"); !strings.HasPrefix(got, "00-"+id+"-") || !strings.HasSuffix(got, "-00") {
			t.Errorf("the next server got %q, want trace %s, not sampled", got, id)
		}
	}
}

// A request that belongs to no trace goes out as it is, and no request is changed.
func TestTransportLeavesTheRequestAlone(t *testing.T) {
	col := newCollector(t)
	for name, tel := range map[string]*Telemetry{
		"off": start(t, Config{}), "on": start(t, Config{Tracing: true, Endpoint: col.endpoint()}),
	} {
		var seen string
		url, server := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.Header.Get("traceparent") }))
		client := &http.Client{Transport: tel.Transport(server.Transport)}
		get(t, client, url)
		if seen != "" {
			t.Errorf("%s: traceparent %q out of nowhere", name, seen)
		}
		ctx := trace.ContextWithSpanContext(t.Context(), randomSpanContext())
		req := httptest.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		req.RequestURI = ""
		resp, err := tel.Transport(server.Transport).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if seen == "" || len(req.Header) != 0 {
			t.Errorf("%s: sent %q, and the caller's header is %v", name, seen, req.Header)
		}
	}
}

// idle counts the calls that http.Client.CloseIdleConnections lets through.
type idle struct {
	http.RoundTripper
	closed int
}

func (i *idle) CloseIdleConnections() { i.closed++ }

func TestIdleConnectionsCanBeClosedThroughTransport(t *testing.T) {
	col := newCollector(t)
	for _, c := range []Config{{}, {Tracing: true, Endpoint: col.endpoint()}} {
		base := &idle{RoundTripper: http.DefaultTransport}
		client := http.Client{Transport: start(t, c).Transport(base)}
		client.CloseIdleConnections()
		if base.closed != 1 {
			t.Errorf("tracing %t: the base transport heard of it %d times", c.Tracing, base.closed)
		}
	}
}

// The stream loop sets a deadline for each write and flushes by itself; both must
// reach the connection through the wrapping.
func TestStreamsPassThroughHandler(t *testing.T) {
	col := newCollector(t)
	for _, c := range []Config{{}, {Tracing: true, Endpoint: col.endpoint()}} {
		heard := make(chan struct{})
		url, client := serve(t, start(t, c).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rc := http.NewResponseController(w)
			if err := rc.SetWriteDeadline(time.Now().Add(time.Hour)); err != nil {
				t.Errorf("SetWriteDeadline: %v", err)
			}
			_, _ = io.WriteString(w, "one")
			if err := rc.Flush(); err != nil {
				t.Errorf("Flush: %v", err)
			}
			select {
			case <-heard:
			case <-r.Context().Done():
			}
			panic(http.ErrAbortHandler) // must stay one, or a broken run looks whole
		}), nil))
		resp, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, 3)
		if _, err := io.ReadFull(resp.Body, first); err != nil {
			t.Errorf("tracing %t: reading the first bytes: %v", c.Tracing, err)
		}
		close(heard)
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("tracing %t: an aborted stream ended cleanly", c.Tracing)
		}
		resp.Body.Close()
	}
}

// What tracing costs a request that makes a request of its own: bare is without telemetry.
func BenchmarkRequest(b *testing.B) {
	sent := roundTrip(func(r *http.Request) (*http.Response, error) {
		_, err := io.Copy(io.Discard, r.Body)
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, err
	})
	handler := func(transport http.RoundTripper) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			out, err := http.NewRequestWithContext(r.Context(), http.MethodPost, "http://server.test/mcp", strings.NewReader("body"))
			if err != nil {
				b.Fatal(err)
			}
			resp, err := transport.RoundTrip(out)
			if err != nil {
				b.Fatal(err)
			}
			resp.Body.Close()
			w.WriteHeader(http.StatusNoContent)
		})
	}
	run := func(name string, h http.Handler) {
		b.Run(name, func(b *testing.B) {
			r := httptest.NewRequest(http.MethodPost, "/answer", nil)
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(httptest.NewRecorder(), r)
			}
		})
	}
	run("bare", handler(sent))
	off := start(b, Config{})
	run("off", off.Handler(handler(off.Transport(sent)), nil))
	for _, sampler := range []string{"always_off", "always_on"} {
		b.Setenv("OTEL_TRACES_SAMPLER", sampler)
		on := start(b, Config{Tracing: true, Endpoint: newCollector(b).endpoint()})
		run(sampler, on.Handler(handler(on.Transport(sent)), nil))
	}
}
