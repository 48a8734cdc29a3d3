package telemetry

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"answerd/internal/telemetry/otlptest"
)

const (
	callerTrace = "0af7651916cd43dd8448eb211c80319c"
	callerSpan  = "b7ad6b7169203331"
	caller      = "00-" + callerTrace + "-" + callerSpan + "-01"
)

// The spans of a run are children of the request's span, which continues the
// caller's trace; the trace continues to the next server; the collector gets it all,
// with the data key of OCI APM.
func TestSpansNestFromTheCallerToTheNextServer(t *testing.T) {
	col := newCollector(t)
	tel := newTelemetry(t, Config{
		Tracing: true, Endpoint: col.endpoint(), Headers: OCIHeaders("KEY"),
		ServiceName: "assistant", Version: "1.2.3",
	})

	var seen http.Header // by the next server
	next, nextClient := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		_, _ = io.WriteString(w, "pong")
	}))
	outgoing := &http.Client{Transport: tel.Transport(nextClient.Transport)}

	var id string
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id = TraceID(r.Context())
		ctx, loop := tel.Tracer("test").Start(r.Context(), "tool_calling_loop")
		defer loop.End()
		ctx, call := tel.Tracer("test").Start(ctx, "tool_call")
		defer call.End()
		fetchURL(ctx, t, outgoing, next+"/mcp?customer=4711")
	})
	url, client := serveHandler(t, tel.Handler(handler, func(*http.Request) string { return "/runs/{run_id}" }))
	fetchBody(t, client, url+"/runs/run_1?secret=1", "traceparent", caller, "baggage", "user=4711")
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}

	if id != callerTrace {
		t.Errorf("TraceID = %q, want the caller's", id)
	}
	chain := []otlptest.Span{
		col.onlySpan(t, "GET /runs/{run_id}"), col.onlySpan(t, "tool_calling_loop"),
		col.onlySpan(t, "tool_call"), col.onlySpan(t, "GET"),
	}
	parent := callerSpan
	for _, s := range chain {
		if got := s.TraceID; got != callerTrace {
			t.Errorf("%s: got trace %s, want the caller's %s", s.Name, got, callerTrace)
		}
		if got := s.ParentID; got != parent {
			t.Errorf("got %s has the parent %s, want %s", s.Name, got, parent)
		}
		parent = s.SpanID
	}
	if got, want := seen.Get("traceparent"), "00-"+callerTrace+"-"+parent+"-"; len(got) != 55 || got[:53] != want {
		t.Errorf("next server got traceparent %q, want %q…", got, want)
	}
	if seen.Get("baggage") != "" {
		t.Error("got baggage in the outgoing request, want none")
	}
	server, out := chain[0], chain[3]
	if got := server.Attributes["http.route"]; got != "/runs/{run_id}" {
		t.Errorf("got http.route %q, want the pattern", got)
	}
	if got := out.Attributes["url.full"]; got != next+"/mcp" {
		t.Errorf("url.full = %q, want it without the query", got)
	}
	if got := col.headers.Get("Authorization"); got != "dataKey KEY" {
		t.Errorf("got Authorization %q at the collector, want the data key", got)
	}
	if n, v := server.Resource["service.name"], server.Resource["service.version"]; n != "assistant" || v != "1.2.3" {
		t.Errorf("got service %q %q, want the configured ones", n, v)
	}
}

// A trace that is not sampled goes on just the same, for the next server to know it.
func TestTransportPropagatesATraceThatIsNotSampled(t *testing.T) {
	t.Setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
	col := newCollector(t)
	tel := newTelemetry(t, Config{Tracing: true, Endpoint: col.endpoint()})

	var seen string
	next, nextClient := serveHandler(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.Header.Get("traceparent") }))
	outgoing := &http.Client{Transport: tel.Transport(nextClient.Transport)}
	for _, sampled := range []bool{true, false} {
		seen = ""
		url, client := serveHandler(t, tel.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			fetchURL(r.Context(), t, outgoing, next)
		}), nil))
		flag := map[bool]string{true: "01", false: "00"}[sampled]
		fetchBody(t, client, url+"/x", "traceparent", strings.TrimSuffix(caller, "01")+flag)
		if !strings.HasPrefix(seen, "00-"+callerTrace+"-") || !strings.HasSuffix(seen, "-"+flag) {
			t.Errorf("sampled %v: got traceparent %q at the next server, want the caller's trace", sampled, seen)
		}
	}

	if err := tel.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(col.spans) != 2 { // of the one that its caller sampled: ours, and the way out
		t.Errorf("got %d spans, want none", len(col.spans))
	}
}

// A request that is not recorded keeps the type of its body: net/http writes a body of a type
// that it knows along with the header, and any other after it, through a buffer.
func TestTransportSendsTheBody(t *testing.T) {
	for sampler, recorded := range map[string]bool{"always_on": true, "always_off": false} {
		t.Setenv("OTEL_TRACES_SAMPLER", sampler)
		tel := newTelemetry(t, Config{Tracing: true, Endpoint: newCollector(t).endpoint()})
		ctx, span := tel.Tracer("test").Start(t.Context(), "asks")
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://server.test/?user=1", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}

		resp, err := tel.Transport(roundTripFunc(func(r *http.Request) (*http.Response, error) {
			if !recorded && r.Body != req.Body {
				t.Errorf("%s: the body is a %T, want the request's own", sampler, r.Body)
			}
			again, err := r.GetBody()
			if err != nil {
				t.Fatal(err)
			}
			for _, body := range []io.Reader{r.Body, again} {
				if got, err := io.ReadAll(body); string(got) != "body" || err != nil || r.ContentLength != 4 {
					t.Errorf("%s: the body is %q of %d bytes (%v), want body of 4", sampler, got, r.ContentLength, err)
				}
			}
			if r.Header.Get("traceparent") == "" || req.Header.Get("traceparent") != "" {
				t.Errorf("%s: got the header %v made of %v, want the latter unchanged", sampler, r.Header, req.Header)
			}
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, r.Body.Close()
		})).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		span.End()
		if err := tel.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// roundTripFunc is an http.RoundTripper.
type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The sampler decides how many requests are recorded, each as one trace. Requests that are not
// recorded still have a trace id.
func TestSamplerDecidesOncePerRequest(t *testing.T) {
	t.Setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
	col := newCollector(t)

	tel := newTelemetry(t, Config{Tracing: true, Endpoint: col.endpoint()})
	sampled, all := map[string]bool{}, map[string]bool{}
	url, client := serveHandler(t, tel.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, span := tel.Tracer("test").Start(r.Context(), "within")
		defer span.End()
		id := TraceID(r.Context())
		all[id] = true
		if trace.SpanContextFromContext(r.Context()).IsSampled() {
			sampled[id] = true
		}
	}), nil))

	const requests = 800
	for range requests {
		fetchBody(t, client, url+"/x")
	}

	if err := tel.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(sampled); len(all) != requests || n < requests/2-100 || n > requests/2+100 { // 7 standard deviations
		t.Errorf("got %d of %d traces are sampled, want about half of %d", n, len(all), requests)
	}

	spans := map[string]int{}
	for _, s := range col.spans {
		spans[s.TraceID]++
	}

	for id := range sampled {
		if spans[id] != 2 {
			t.Errorf("trace %s has %d spans, want 2", id, spans[id])
		}
	}

	if len(spans) != len(sampled) {
		t.Errorf("got %d traces came to the collector, want %d", len(spans), len(sampled))
	}
}

// fetchURL reads url to its end under ctx.
func fetchURL(ctx context.Context, t *testing.T, client *http.Client, url string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Error(err)
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
}

func TestServiceNameFallsBackToResourceAttributesThenToOurs(t *testing.T) {
	for _, c := range []struct{ env, config, want string }{
		{"", "", "answerd"},
		{"service.name=from-env", "", "from-env"},
		{"service.name=from-env", "from-config", "from-config"},
	} {
		t.Setenv("OTEL_RESOURCE_ATTRIBUTES", c.env)
		col := newCollector(t)
		tel := newTelemetry(t, Config{Tracing: true, Endpoint: col.endpoint(), ServiceName: c.config})
		_, span := tel.Tracer("test").Start(t.Context(), "work")
		span.End()
		if err := tel.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := col.onlySpan(t, "work").Resource["service.name"]; got != c.want {
			t.Errorf("with %+v: got service %q, want %q", c, got, c.want)
		}
	}
}

func TestHandlerMakesNoSpansForProbes(t *testing.T) {
	col := newCollector(t)
	tel := newTelemetry(t, Config{Tracing: true, Endpoint: col.endpoint()})
	next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if id := TraceID(r.Context()); id != "" {
			t.Errorf("%s: got trace %s, want none", r.URL.Path, id)
		}
	})
	withoutBasePath := func(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, "/ask") }
	for base, route := range map[string]func(*http.Request) string{"": nil, "/ask": withoutBasePath} {
		url, client := serveHandler(t, tel.Handler(next, route))
		for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
			fetchBody(t, client, url+base+path, "traceparent", caller)
		}
	}

	if err := tel.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(col.spans) != 0 {
		t.Errorf("got %d spans, want none", len(col.spans))
	}
}

// The caller's user agent is an attribute, so its length is the caller's choice.
func TestSpanAttributesAreTruncated(t *testing.T) {
	col := newCollector(t)
	tel := newTelemetry(t, Config{Tracing: true, Endpoint: col.endpoint()})
	url, client := serveHandler(t, tel.Handler(http.NotFoundHandler(), nil))
	fetchBody(t, client, url+"/no/such/path", "User-Agent", strings.Repeat("x", 2*maxAttributeBytes))
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Without a route the path, which the caller made up, is not in the name.
	if got := len(col.onlySpan(t, "GET").Attributes["user_agent.original"]); got != maxAttributeBytes {
		t.Errorf("user agent of %d bytes, want %d", got, maxAttributeBytes)
	}
}
