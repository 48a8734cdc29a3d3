package telemetry

import (
	"maps"
	"net/http"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Transport sends the trace of a request's context on, as W3C traceparent, and with
// tracing on makes a client span that ends when the response body is closed or read
// to its end. A request outside of any trace, a token refresh for example, goes out
// as it is. next must not be nil.
func (t *Telemetry) Transport(next http.RoundTripper) http.RoundTripper {
	if !t.tracing {
		return &roundTripper{RoundTripper: injector{next}, inner: next}
	}
	spans := otelhttp.NewTransport(withoutQuery{next},
		otelhttp.WithTracerProvider(t.tracers),
		otelhttp.WithMeterProvider(metricnoop.NewMeterProvider()),
		otelhttp.WithPropagators(propagator),
		otelhttp.WithFilter(traced),
		// The HTTP conventions: the method alone, where no route is known.
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return r.Method }),
	)
	return &roundTripper{RoundTripper: spans, inner: next}
}

func traced(r *http.Request) bool { return trace.SpanContextFromContext(r.Context()).IsValid() }

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
	if !traced(r) {
		return i.next.RoundTrip(r)
	}
	out := r.WithContext(r.Context())
	out.Header = maps.Clone(r.Header) // its values are replaced, never written to
	propagator.Inject(r.Context(), propagation.HeaderCarrier(out.Header))
	return i.next.RoundTrip(out)
}

// withoutQuery takes the query out of the span's url.full, which otelhttp has just
// set: what a run's context puts there are ids of people and their records (S0.1).
type withoutQuery struct{ next http.RoundTripper }

func (q withoutQuery) RoundTrip(r *http.Request) (*http.Response, error) {
	if span := trace.SpanFromContext(r.Context()); r.URL.RawQuery != "" && span.IsRecording() {
		u := *r.URL
		u.RawQuery, u.User = "", nil
		span.SetAttributes(semconv.URLFull(u.String()))
	}
	return q.next.RoundTrip(r)
}
