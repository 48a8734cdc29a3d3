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

// With tracing off an answer still has a trace id, which is sent to the next server too.
func TestHandlerGivesEveryRequestATraceWithTracingOff(t *testing.T) {
	tel := newTelemetry(t, Config{})
	var seen http.Header
	next, nextClient := serveHandler(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.Header.Clone() }))
	outgoing := &http.Client{Transport: tel.Transport(nextClient.Transport)}
	url, client := serveHandler(t, tel.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := tel.Tracer("test").Start(r.Context(), "work")
		defer span.End()
		if span.IsRecording() {
			t.Error("got a recording span, want none with tracing off")
		}
		fetchURL(ctx, t, outgoing, next)
		_, _ = io.WriteString(w, TraceID(ctx))
	}), nil))

	if id := fetchBody(t, client, url, "traceparent", caller, "baggage", "user=4711"); id != callerTrace {
		t.Errorf("trace %q, want the caller's", id)
	}
	if got := seen.Get("traceparent"); got != caller {
		t.Errorf("the next server got %q, want the caller's traceparent as it came", got)
	}
	if seen.Get("baggage") != "" {
		t.Error("got baggage in the outgoing request, want none")
	}

	ids := map[string]bool{}
	for _, bad := range []string{"", "00-" + strings.Repeat("0", 32) + "-" + callerSpan + "-01", "garbage", strings.ToUpper(caller)} {
		id := fetchBody(t, client, url, "traceparent", bad)
		if len(id) != 32 || id == callerTrace || ids[id] {
			t.Errorf("after %q the trace is %q, want a new one", bad, id)
		}
		ids[id] = true
		if got := seen.Get("traceparent"); !strings.HasPrefix(got, "00-"+id+"-") || !strings.HasSuffix(got, "-00") {
			t.Errorf("the next server got %q, want trace %s, not sampled", got, id)
		}
	}
}

// TestSeveralTraceparentsBeginANewTrace sends traceparent in two headers, as in the tests of W3C Trace Context.
func TestSeveralTraceparentsBeginANewTrace(t *testing.T) {
	col := newCollector(t)
	for name, tel := range map[string]*Telemetry{
		"off": newTelemetry(t, Config{}), "on": newTelemetry(t, Config{Tracing: true, Endpoint: col.endpoint()}),
	} {
		url, client := serveHandler(t, tel.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, TraceID(r.Context()))
		}), nil))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		other := strings.Replace(caller, callerTrace, strings.Repeat("1", 32), 1)
		req.Header["Traceparent"] = []string{caller, other}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		id, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || len(id) != 32 || strings.Contains(caller+other, string(id)) {
			t.Errorf("%s: got the trace %q, %v, want a new one", name, id, err)
		}
	}
}

// TestTracestateOfSeveralHeadersIsForwarded sends tracestate in more than one header, as a proxy that adds its own
// member may do. The next server gets all members, in order (W3C Trace Context section 3.3.1).
func TestTracestateOfSeveralHeadersIsForwarded(t *testing.T) {
	col := newCollector(t)
	for name, tel := range map[string]*Telemetry{
		"off": newTelemetry(t, Config{}), "on": newTelemetry(t, Config{Tracing: true, Endpoint: col.endpoint()}),
	} {
		var seen []string
		next, nextClient := serveHandler(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.Header.Values("tracestate") }))
		outgoing := &http.Client{Transport: tel.Transport(nextClient.Transport)}
		url, client := serveHandler(t, tel.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			fetchURL(r.Context(), t, outgoing, next)
		}), nil))
		for sent, want := range map[string]string{"a=1;b=2,c=3": "a=1,b=2,c=3", "a=1": "a=1", "a=1;": "a=1", "a=1;b": ""} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header["Traceparent"], req.Header["Tracestate"] = []string{caller}, strings.Split(sent, ";")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if got := strings.Join(seen, ";"); got != want {
				t.Errorf("%s: tracestate %q goes on as %q, want %q", name, sent, got, want)
			}
		}
	}
}

// A request that belongs to no trace goes out as it is, and no request is changed.
func TestTransportDoesNotChangeTheRequest(t *testing.T) {
	col := newCollector(t)
	for name, tel := range map[string]*Telemetry{
		"off": newTelemetry(t, Config{}), "on": newTelemetry(t, Config{Tracing: true, Endpoint: col.endpoint()}),
	} {
		var seen string
		url, server := serveHandler(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.Header.Get("traceparent") }))
		client := &http.Client{Transport: tel.Transport(server.Transport)}
		fetchBody(t, client, url)
		if seen != "" {
			t.Errorf("%s: got traceparent %q, want none outside of a trace", name, seen)
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
			t.Errorf("%s: got traceparent %q and the caller's header %v, want the latter unchanged", name, seen, req.Header)
		}
	}
}

// idleCloser counts the calls that http.Client.CloseIdleConnections lets through.
type idleCloser struct {
	http.RoundTripper
	closed int
}

func (i *idleCloser) CloseIdleConnections() { i.closed++ }

func TestTransportClosesIdleConnections(t *testing.T) {
	col := newCollector(t)
	for _, c := range []Config{{}, {Tracing: true, Endpoint: col.endpoint()}} {
		base := &idleCloser{RoundTripper: http.DefaultTransport}
		client := http.Client{Transport: newTelemetry(t, c).Transport(base)}
		client.CloseIdleConnections()
		if base.closed != 1 {
			t.Errorf("tracing %t: got %d calls of CloseIdleConnections, want 1", c.Tracing, base.closed)
		}
	}
}

// The stream loop sets a deadline for each write and flushes by itself; both must
// reach the connection through the wrapping.
func TestHandlerPassesStreamsThrough(t *testing.T) {
	col := newCollector(t)
	for _, c := range []Config{{}, {Tracing: true, Endpoint: col.endpoint()}} {
		heard := make(chan struct{})
		url, client := serveHandler(t, newTelemetry(t, c).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
			t.Errorf("tracing %t: got %v for the first bytes, want no error", c.Tracing, err)
		}
		close(heard)
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("tracing %t: got a clean end of an aborted stream, want an error", c.Tracing)
		}
		resp.Body.Close()
	}
}

// What tracing costs a request that makes a request of its own: bare is without telemetry.
func BenchmarkRequest(b *testing.B) {
	sent := roundTripFunc(func(r *http.Request) (*http.Response, error) {
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
	off := newTelemetry(b, Config{})
	run("off", off.Handler(handler(off.Transport(sent)), nil))

	for _, sampler := range []string{"always_off", "always_on"} {
		b.Setenv("OTEL_TRACES_SAMPLER", sampler)
		on := newTelemetry(b, Config{Tracing: true, Endpoint: newCollector(b).endpoint()})
		run(sampler, on.Handler(handler(on.Transport(sent)), nil))
	}
}
