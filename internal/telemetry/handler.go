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

// Handler puts every request of next into a trace: the one that the caller's
// traceparent names, else a new one, which TraceID then gives. With tracing on, the
// request gets a server span named after its method and route. Requests to
// /healthz, /readyz and /metrics are left alone: probes would drown the rest.
//
// route tells the pattern of a request ("/runs/{run_id}"), or "" where there is none;
// it runs before next. A nil route leaves the name to http.ServeMux. The raw path
// never becomes a name, so that names stay few.
func (t *Telemetry) Handler(next http.Handler, route func(*http.Request) string) http.Handler {
	in := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { identified(next, w, r) })
	if t.tracing {
		in = t.spanned(next, route)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz", "/readyz", "/metrics":
			next.ServeHTTP(w, r)
		default:
			in(w, r)
		}
	})
}

// spanned is next under otelhttp where the request is recorded. To find out that it is not,
// otelhttp wraps it, its body and its writer, and gathers attributes: 28 allocations and a
// twenty-fifth of the CPU time of an answer with one call, nine of ten of which are usually
// not sampled. So the sampler is asked before, by a span that is never ended and so never
// exported, and once more by otelhttp, about the same trace: by every OTEL_TRACES_SAMPLER it
// says the same. otelhttp's metrics stay off: they are labelled with the Host header that the
// caller made up, and the page should not depend on tracing.
func (t *Telemetry) spanned(next http.Handler, route func(*http.Request) string) http.HandlerFunc {
	spans := otelhttp.NewHandler(next, "",
		otelhttp.WithTracerProvider(t.tracers),
		otelhttp.WithMeterProvider(metricnoop.NewMeterProvider()),
		otelhttp.WithPropagators(propagator),
	)
	tracer := t.Tracer("answerd/telemetry")
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, asked := tracer.Start(propagator.Extract(r.Context(), propagation.HeaderCarrier(r.Header)), r.Method)
		if !asked.IsRecording() {
			next.ServeHTTP(w, r.WithContext(ctx))
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), decided{}, asked.SpanContext().TraceID()))
		if route != nil {
			// As http.ServeMux does it; otelhttp takes span name and
			// http.route from here.
			r.Pattern = route(r)
		}
		spans.ServeHTTP(w, r)
	}
}

// decided is the key of the trace ID about which the sampler was asked.
type decided struct{}

// traceIDs makes ids as the SDK does, random and not secret, but for a trace that has been
// decided about.
type traceIDs struct{}

// NewIDs implements sdktrace.IDGenerator.
func (traceIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	made := randomSpanContext()
	if id, ok := ctx.Value(decided{}).(trace.TraceID); ok {
		return id, made.SpanID()
	}
	return made.TraceID(), made.SpanID()
}

// NewSpanID implements sdktrace.IDGenerator.
func (traceIDs) NewSpanID(context.Context, trace.TraceID) trace.SpanID {
	return randomSpanContext().SpanID()
}

// identified is all that happens with tracing off: the request's context carries the
// caller's trace, or a random one that is marked as not sampled, so that the servers
// we call don't record it either.
func identified(next http.Handler, w http.ResponseWriter, r *http.Request) {
	ctx := propagator.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, randomSpanContext())
	}
	next.ServeHTTP(w, r.WithContext(ctx))
}

// randomSpanContext makes ids as the SDK does: random, not secret.
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
