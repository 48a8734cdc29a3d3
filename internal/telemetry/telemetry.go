// Package telemetry sets up what watches the service: traces that go out by OTLP,
// metrics that Prometheus reads, and the log. Nobody else imports the OpenTelemetry
// SDK; the other rooms are handed a trace.Tracer or a metric.Meter and see only the
// OpenTelemetry API.
//
//	lines := telemetry.NewLines(os.Stderr) // nobody waits for stderr
//	log, err := telemetry.NewLogger(lines, "info", false)
//	tel, err := telemetry.New(ctx, telemetry.Config{Version: version, Logger: log})
//	defer tel.Shutdown(ctx)
//
//	client := &http.Client{Transport: tel.Transport(base)} // sends traceparent on
//	tracer := tel.Tracer("answerd/agent")                  // for the agent's spans
//	router.Handle("/metrics", tel.Metrics())
//	server.Handler = tel.Handler(router, route)            // one span per request
//
// Every request has a trace id, with tracing off too: the caller's, or a random one.
// With tracing off nothing records; what stays is that id. No caller ever waits for
// the collector: spans wait in a bounded queue, and what doesn't fit is dropped and
// counted. Nothing global is set, so two Telemetry can live side by side. Only W3C
// trace context crosses the service; baggage is neither read nor sent.
//
// Everything here may be used concurrently.
package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// flushTime is how long Shutdown waits for the collector to take the last spans.
const flushTime = 5 * time.Second

// propagator is the one format in which a trace enters and leaves the service.
var propagator = propagation.TraceContext{}

// Config says what to watch with. The zero Config is valid: metrics, no tracing.
// Sampler, batch sizes, time-outs, TLS files and resource attributes are not here:
// the SDK reads the standard OTEL_* settings itself.
type Config struct {
	ServiceName string // service.name; "" means OTEL_RESOURCE_ATTRIBUTES', else "answerd"
	Version     string // service.version and the version of our spans
	Tracing     bool   // ENABLE_TRACING
	// Endpoint is the whole URL that traces are posted to, path included.
	// Required with Tracing.
	Endpoint string
	// Headers go with every export in place of OTEL_EXPORTER_OTLP_HEADERS; empty
	// leaves those. They hold credentials (see OCIHeaders) and are never printed.
	Headers map[string]string
	// QueueSize is how many ended spans may wait for the collector. 0 means 2048,
	// the default of OTEL_BSP_MAX_QUEUE_SIZE, whose place it takes.
	QueueSize int
	Logger    *slog.Logger // nil means none
}

// Telemetry holds the providers of one process.
type Telemetry struct {
	version string
	tracing bool
	tracers trace.TracerProvider // no-op unless tracing
	traces  *pipeline            // nil unless tracing
	meters  *sdkmetric.MeterProvider
	metrics http.Handler

	shutdown sync.Once
	err      error // of the shutdown; written inside it
}

// New sets up telemetry. It makes no connection, so a collector that is away is no
// error; every error is an unusable configuration and says which setting is wrong.
// ctx is not kept.
func New(ctx context.Context, c Config) (*Telemetry, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	res, err := describe(ctx, c)
	if err != nil {
		return nil, err
	}
	t := &Telemetry{version: c.Version, tracing: c.Tracing, tracers: noop.NewTracerProvider()}
	if t.meters, t.metrics, err = newMetrics(res, c.Logger); err != nil {
		return nil, fmt.Errorf("setting up metrics: %w", err)
	}
	if err := observe(c.Logger, t.Meter("answerd/telemetry")); err != nil {
		return nil, fmt.Errorf("setting up metrics: %w", err)
	}
	if c.Tracing {
		if t.traces, err = newPipeline(ctx, c, res, t.Meter("answerd/telemetry")); err != nil {
			return nil, err
		}
		t.tracers = t.traces.provider
	}
	return t, nil
}

// Tracer gives the tracer of one room, for example "answerd/agent". With tracing
// off its spans do nothing but carry the trace id of their parent.
func (t *Telemetry) Tracer(name string) trace.Tracer {
	return t.tracers.Tracer(name, trace.WithInstrumentationVersion(t.version))
}

// Meter gives the meter of one room. Its instruments are always on. Instrument
// names must be unique across rooms: the metrics page shows no scopes. Histograms
// in seconds ("s") and in tokens ("{token}") get their buckets here.
func (t *Telemetry) Meter(name string) metric.Meter {
	return t.meters.Meter(name, metric.WithInstrumentationVersion(t.version))
}

// Metrics serves the Prometheus page.
func (t *Telemetry) Metrics() http.Handler { return t.metrics }

// Shutdown sends the spans that still wait, for 5 s at most or until ctx ends, and
// returns when the exporting goroutine is gone. Its error says that spans were lost.
// Later calls return what the first one did.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	t.shutdown.Do(func() {
		if t.traces != nil {
			t.err = t.traces.close(ctx)
		}
		// The reader only unregisters; it has nothing to wait for and no error
		// that anybody could act on.
		_ = t.meters.Shutdown(context.WithoutCancel(ctx))
	})
	return t.err
}

// TraceID is the id of the trace that ctx belongs to, 32 hex digits, or "" outside
// of any.
func TraceID(ctx context.Context) string {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.HasTraceID() {
		return ""
	}
	return sc.TraceID().String()
}
