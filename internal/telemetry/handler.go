package telemetry

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/http"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Handler gives every request of next a trace: the one of the caller's traceparent, or else a
// new one. TraceID returns its id. With tracing on, the request also gets a
// server span named after its method and route. Requests to /healthz, /readyz and /metrics
// are left out, because probes would outnumber all others.
//
// route returns the pattern of a request ("/runs/{run_id}"), or "" where there is none;
// it runs before next. A nil route leaves the name to http.ServeMux. The raw path
// never becomes a name, so that there are few names.
func (t *Telemetry) Handler(next http.Handler, route func(*http.Request) string) http.Handler {
	propagators := otelhttp.WithPropagators(propagator)
	if !t.tracing {
		propagators = otelhttp.WithPropagators(newTracePropagator{propagator})
	}
	traced := otelhttp.NewHandler(next, "", t.tracerProvider(), withoutMetrics(), propagators, otelhttp.WithFilter(isNotProbe))
	if !t.tracing || route == nil {
		return traced // without spans nothing needs the route
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// otelhttp takes span name and http.route from here, where http.ServeMux puts them.
		r.Pattern = route(r)
		traced.ServeHTTP(w, r)
	})
}

// tracerProvider returns the option that makes otelhttp use our tracers and not the global ones.
func (t *Telemetry) tracerProvider() otelhttp.Option { return otelhttp.WithTracerProvider(t.tracers) }

// withoutMetrics returns the option that switches otelhttp's metrics off: those of the handler have
// the Host header, which the caller chooses, as a label.
func withoutMetrics() otelhttp.Option {
	return otelhttp.WithMeterProvider(metricnoop.NewMeterProvider())
}

func isNotProbe(r *http.Request) bool {
	switch r.URL.Path {
	case "/healthz", "/readyz", "/metrics":
		return false
	}
	return true
}

// newTracePropagator starts a new trace for a request without one, since tracers that are off
// make no ids. The trace is marked as not sampled, so that the servers we call do not record it.
type newTracePropagator struct{ propagation.TextMapPropagator }

// Extract implements propagation.TextMapPropagator.
func (p newTracePropagator) Extract(ctx context.Context, carrier propagation.TextMapCarrier) context.Context {
	ctx = p.TextMapPropagator.Extract(ctx, carrier)
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, randomSpanContext())
	}
	return ctx
}

// randomSpanContext returns ids as the SDK makes them: random, not secret.
func randomSpanContext() trace.SpanContext {
	var c trace.SpanContextConfig
	for !c.TraceID.IsValid() {
		binary.NativeEndian.PutUint64(c.TraceID[:8], rand.Uint64())
		binary.NativeEndian.PutUint64(c.TraceID[8:], rand.Uint64())
	}
	for !c.SpanID.IsValid() {
		binary.NativeEndian.PutUint64(c.SpanID[:], rand.Uint64())
	}
	return trace.NewSpanContext(c)
}
