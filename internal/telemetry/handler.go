package telemetry

import (
	"cmp"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Handler returns a handler that gives each request a trace and calls next. The trace is the one in the request's
// header traceparent (W3C Trace Context), or else a new one. TraceID returns its id from the request's context. With
// tracing on, the request also gets a server span, named after its method and route. Requests to /healthz, /readyz and
// /metrics get no trace, because they would outnumber all others.
//
// route returns a request's pattern, such as "/runs/{run_id}", or "" if no route matches. Handler calls it before next.
// If route is nil, the pattern is the one that http.ServeMux sets. The raw path is never used as a name, because
// clients could create any number of names.
func (t *Telemetry) Handler(next http.Handler, route func(*http.Request) string) http.Handler {
	propagators := otelhttp.WithPropagators(propagator)
	if !t.tracing {
		propagators = otelhttp.WithPropagators(newTracePropagator{propagator})
	}
	const operation = "" // not used, because otelhttp names the span after the method and the route
	traced := otelhttp.NewHandler(next, operation, t.tracerProvider(), withoutMetrics(), propagators, otelhttp.WithFilter(isTraced))
	if !t.tracing || route == nil {
		return traced // only spans need the route
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// otelhttp reads the span's name and http.route from Pattern, which http.ServeMux would set.
		r.Pattern = route(r)
		traced.ServeHTTP(w, r)
	})
}

// tracerProvider returns an option that makes otelhttp use t.tracers instead of the global tracer provider.
func (t *Telemetry) tracerProvider() otelhttp.Option { return otelhttp.WithTracerProvider(t.tracers) }

// withoutMetrics returns an option that disables otelhttp's metrics. They have a label with the Host header, whose
// value the client chooses.
func withoutMetrics() otelhttp.Option {
	return otelhttp.WithMeterProvider(metricnoop.NewMeterProvider())
}

// isTraced reports whether a request gets a trace. otelhttp calls it as a filter. The path may be below that of a shared
// host, but the pattern is not.
func isTraced(r *http.Request) bool {
	return !slices.Contains([]string{"/healthz", "/readyz", "/metrics"}, cmp.Or(r.Pattern, r.URL.Path))
}

// traceContext is OpenTelemetry's propagator with a correction for repeated headers, of which OpenTelemetry reads only
// the first. Several tracestate headers form one list (W3C Trace Context section 3.3.1). The header traceparent may
// occur only once, so a request with several of them has no valid trace.
type traceContext struct{ propagation.TraceContext }

// Extract implements propagation.TextMapPropagator.
func (p traceContext) Extract(ctx context.Context, carrier propagation.TextMapCarrier) context.Context {
	if header, ok := carrier.(propagation.HeaderCarrier); ok {
		if len(header.Values("traceparent")) > 1 {
			return ctx
		}
		if states := header.Values("tracestate"); len(states) > 1 {
			carrier = propagation.MapCarrier{"traceparent": header.Get("traceparent"), "tracestate": strings.Join(states, ",")}
		}
	}
	return p.TraceContext.Extract(ctx, carrier)
}

// newTracePropagator starts a new trace for a request that has none, because disabled tracers create no ids. The trace
// is marked as not sampled, so that the MCP servers that answerd calls do not record it.
type newTracePropagator struct{ propagation.TextMapPropagator }

// Extract implements propagation.TextMapPropagator.
func (p newTracePropagator) Extract(ctx context.Context, carrier propagation.TextMapCarrier) context.Context {
	ctx = p.TextMapPropagator.Extract(ctx, carrier)
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, randomSpanContext())
	}
	return ctx
}

// randomSpanContext returns a span context with random ids, like those of the SDK, that is not sampled. The ids need
// not be unpredictable, so it uses math/rand. It tries again if an id is all zeros, which is invalid (W3C Trace
// Context, section 3.2.2.3).
func randomSpanContext() trace.SpanContext {
	var ids trace.SpanContextConfig
	for !ids.TraceID.IsValid() {
		binary.NativeEndian.PutUint64(ids.TraceID[:8], rand.Uint64())
		binary.NativeEndian.PutUint64(ids.TraceID[8:], rand.Uint64())
	}
	for !ids.SpanID.IsValid() {
		binary.NativeEndian.PutUint64(ids.SpanID[:], rand.Uint64())
	}
	return trace.NewSpanContext(ids)
}
