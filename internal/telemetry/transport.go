package telemetry

import (
	"context"
	"maps"
	"net/http"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Transport sends the trace of a request's context on, as W3C traceparent, and within
// a span that is recorded makes a client span, which ends when the response body is closed
// or read to its end. A request outside of any trace, a token refresh for example, goes out
// as it is. next must not be nil.
func (t *Telemetry) Transport(next http.RoundTripper) http.RoundTripper {
	if !t.tracing {
		return &roundTripper{RoundTripper: injector{next}, inner: next}
	}
	spans := otelhttp.NewTransport(recorded{next},
		otelhttp.WithTracerProvider(t.tracers),
		otelhttp.WithMeterProvider(metricnoop.NewMeterProvider()),
		otelhttp.WithPropagators(propagator),
		// The HTTP conventions: the method alone, where no route is known.
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return r.Method }),
	)
	return &roundTripper{RoundTripper: sampled{spans: spans, rest: injector{next}}, inner: next}
}

// sampled leaves otelhttp out where there is nothing to record. By every OTEL_TRACES_SAMPLER
// what is within a span of ours that is not recorded is not recorded either; to find that out
// otelhttp copies the request, wraps its bodies and gathers the attributes of a metric that
// is off, and nine requests in ten or more are usually not sampled.
type sampled struct{ spans, rest http.RoundTripper }

func (s sampled) RoundTrip(r *http.Request) (*http.Response, error) {
	if trace.SpanFromContext(r.Context()).IsRecording() {
		return s.spans.RoundTrip(r.WithContext(context.WithValue(r.Context(), original{}, r)))
	}
	return s.rest.RoundTrip(r)
}

// original is the key of a request as it was before otelhttp had it.
type original struct{}

// roundTripper lets http.Client.CloseIdleConnections through to the transport that
// has the connections; otelhttp's doesn't.
type roundTripper struct {
	http.RoundTripper
	inner http.RoundTripper
}

func (t *roundTripper) CloseIdleConnections() {
	if c, ok := t.inner.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// injector only adds the headers. A RoundTripper may not change its request, so it
// changes a copy.
type injector struct{ next http.RoundTripper }

func (i injector) RoundTrip(r *http.Request) (*http.Response, error) {
	if !trace.SpanContextFromContext(r.Context()).IsValid() {
		return i.next.RoundTrip(r)
	}
	out := r.WithContext(r.Context())
	out.Header = maps.Clone(r.Header) // its values are replaced, never written to
	propagator.Inject(r.Context(), propagation.HeaderCarrier(out.Header))
	return i.next.RoundTrip(out)
}

// recorded sends what otelhttp made of a request. It takes the query out of the span's
// url.full, which otelhttp has just set: what a run's context puts there are ids of people and
// their records (S0.1). And it sends the body that the request had: otelhttp counts its bytes
// for a metric that is off, and net/http copies a body of a type that it doesn't know through
// 32 kB of its own, a quarter of what tracing allocates, and writes it after the header.
type recorded struct{ next http.RoundTripper }

func (c recorded) RoundTrip(r *http.Request) (*http.Response, error) {
	if span := trace.SpanFromContext(r.Context()); r.URL.RawQuery != "" && span.IsRecording() {
		u := *r.URL
		u.RawQuery, u.User = "", nil
		span.SetAttributes(semconv.URLFull(u.String()))
	}
	was := r.Context().Value(original{}).(*http.Request)
	r.Body, r.GetBody = was.Body, was.GetBody // r is otelhttp's copy
	return c.next.RoundTrip(r)
}
