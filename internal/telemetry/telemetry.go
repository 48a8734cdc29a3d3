// Package telemetry sets up traces, which are exported with OTLP, metrics, which Prometheus reads, and the log. Metrics
// and the log can be exported with OTLP too. No other package imports the OpenTelemetry SDK. Other packages get a
// trace.Tracer or a metric.Meter, and use only the OpenTelemetry API.
//
//	lines := telemetry.NewLogWriter(os.Stderr) // never blocks
//	log, err := telemetry.NewLogger(lines, "info", false)
//	tel, err := telemetry.New(ctx, telemetry.Config{Version: version, Logger: log})
//	defer tel.Shutdown(ctx)
//
//	client := &http.Client{Transport: tel.Transport(base)} // sends traceparent
//	tracer := tel.Tracer("answerd/agent")                  // for the agent's spans
//	router.Handle("/metrics", tel.Metrics())
//	server.Handler = tel.Handler(router, route)            // one span per request
//
// Every request has a trace id, even with tracing off: the one that the client sent, or a random one. With tracing off,
// no span is recorded, and only the trace id is passed on. No function except Shutdown waits for the collector. Spans
// wait in a bounded queue, and spans that do not fit are dropped and counted. No global state is set, so several
// Telemetry values are independent. Of the W3C headers, only traceparent and tracestate are passed on. Baggage is
// neither read nor sent, because it may contain personal data.
//
// All functions and methods may be used concurrently.
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// flushTime is how long Shutdown waits for the collector to accept the last data.
const flushTime = 5 * time.Second

// propagator reads and writes W3C Trace Context, the only format in which traces enter and leave the service.
var propagator propagation.TextMapPropagator = traceContext{}

// Telemetry holds the providers of one process.
type Telemetry struct {
	version        string
	tracing        bool
	tracers        trace.TracerProvider // a no-op provider unless tracing is true
	traces         *tracePipeline       // nil unless tracing is true
	meters         *sdkmetric.MeterProvider
	metricsHandler http.Handler
	metricsExport  *metricSender // nil unless metrics are exported
	logWriter      *exportWriter // the log's writer; nil unless the log is exported
	logsExport     *logPipeline  // nil unless the log is exported

	shutdown    sync.Once
	shutdownErr error // written within shutdown
}

// New sets up telemetry. It does not connect to the collector, which need not be reachable yet. It returns an error
// that names the setting if the configuration is not usable. ctx is not kept.
func New(ctx context.Context, cfg Config) (*Telemetry, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	res, err := newResource(ctx, cfg)
	if err != nil {
		return nil, err
	}

	tel := &Telemetry{version: cfg.Version, tracing: cfg.Tracing, tracers: noop.NewTracerProvider()}
	if cfg.MetricsEndpoint != "" {
		if tel.metricsExport, err = newMetricSender(ctx, cfg); err != nil {
			return nil, err
		}
	}
	if tel.meters, tel.metricsHandler, err = newMetrics(res, tel.metricsExport, cfg.Logger); err != nil {
		return nil, fmt.Errorf("setting up metrics: %w", err)
	}
	if err := countDroppedLines(cfg.Logger, tel.Meter("answerd/telemetry")); err != nil {
		return nil, fmt.Errorf("setting up metrics: %w", err)
	}
	if cfg.Tracing {
		if tel.traces, err = newTracePipeline(ctx, cfg, res, tel.Meter("answerd/telemetry")); err != nil {
			return nil, errors.Join(err, tel.Shutdown(ctx))
		}
		tel.tracers = tel.traces.provider
	}
	if handler, ok := cfg.Logger.Handler().(*logHandler); ok && cfg.LogsEndpoint != "" {
		if tel.logsExport, err = newLogPipeline(ctx, cfg, res); err != nil {
			return nil, errors.Join(err, tel.Shutdown(ctx))
		}
		tel.logWriter = handler.writer
		tel.logWriter.pipeline.Store(tel.logsExport)
	}
	return tel, nil
}

// Tracer returns the tracer for a package, such as "answerd/agent". With tracing off, its spans are not recorded and
// only have their parent's trace id.
func (t *Telemetry) Tracer(name string) trace.Tracer {
	return t.tracers.Tracer(name, trace.WithInstrumentationVersion(t.version))
}

// Meter returns the meter for a package. Its instruments are always on. Instrument names must be unique across
// packages, because the metrics page shows no scopes. Histograms with the unit "s" or "{token}" get their buckets here.
func (t *Telemetry) Meter(name string) metric.Meter {
	return t.meters.Meter(name, metric.WithInstrumentationVersion(t.version))
}

// Metrics returns the handler that serves the Prometheus page.
func (t *Telemetry) Metrics() http.Handler { return t.metricsHandler }

// Shutdown exports the spans, metrics and log lines that are waiting, for at most 5 s or until ctx ends. It returns
// when the exporting goroutines have ended. It returns an error if anything was lost. Later calls return the result of
// the first call.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	t.shutdown.Do(func() { t.shutdownErr = t.shutdownAll(ctx) })
	return t.shutdownErr
}

// shutdownAll shuts down traces first, then metrics, and then the log, so that log lines about the first two are still
// exported.
func (t *Telemetry) shutdownAll(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	if t.traces != nil {
		err = t.traces.exports.flush(ctx, t.traces.provider.Shutdown)
	}
	if t.metricsExport != nil {
		err = errors.Join(err, t.metricsExport.exports.flush(ctx, t.meters.Shutdown))
	} else {
		// This ends only the reader for the Prometheus page. It does not block, and its error does not matter.
		_ = t.meters.Shutdown(context.WithoutCancel(ctx))
	}
	if t.logsExport != nil {
		t.logWriter.pipeline.Store(nil)
		err = errors.Join(err, t.logsExport.exports.flush(ctx, t.logsExport.provider.Shutdown))
	}
	return err
}

// TraceID returns the id of the trace in ctx as 32 hex digits, or "" if ctx has no trace.
func TraceID(ctx context.Context) string {
	if spanContext := trace.SpanContextFromContext(ctx); spanContext.HasTraceID() {
		return spanContext.TraceID().String()
	}
	return ""
}

// newResource returns the attributes of this process, which all spans, metrics and log records have. If an attribute is
// set several times, the last option applies. The options are therefore ordered: the default name, then
// OTEL_RESOURCE_ATTRIBUTES, then the explicit configuration.
func newResource(ctx context.Context, cfg Config) (*resource.Resource, error) {
	var configured []attribute.KeyValue
	if cfg.ServiceName != "" {
		configured = append(configured, semconv.ServiceName(cfg.ServiceName))
	}
	if cfg.Version != "" {
		configured = append(configured, semconv.ServiceVersion(cfg.Version))
	}
	res, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("answerd")),
		resource.WithTelemetrySDK(),
		resource.WithHost(),
		resource.WithFromEnv(),
		resource.WithAttributes(configured...),
	)
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return res, nil
}

// countDroppedLines adds the counter answerd.log.lines.dropped to m if logger writes to a LogWriter.
func countDroppedLines(logger *slog.Logger, m metric.Meter) error {
	handler, ok := logger.Handler().(*logHandler)
	if !ok || handler.logWriter == nil {
		return nil
	}
	_, err := m.Int64ObservableCounter("answerd.log.lines.dropped", metric.WithUnit("{line}"),
		metric.WithDescription("Log lines that could not be written."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(handler.logWriter.Dropped())
			return nil
		}))
	return err
}
