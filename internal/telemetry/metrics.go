package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"

	"answerd/internal/help"
)

// maxLabelSets is the maximum number of label sets of one instrument. Further measurements are counted together, with
// the label otel_metric_overflow.
const maxLabelSets = 2000

var (
	// durationBuckets are in seconds, from a call over loopback to a long run.
	durationBuckets = []float64{
		0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120,
	}
	// tokenBuckets are from the OpenTelemetry GenAI conventions for gen_ai.client.token.usage.
	tokenBuckets = []float64{
		1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864,
	}
)

// newMetrics returns the meter provider and the handler for /metrics. Both use a registry of their own, which also has
// the metrics of the Go runtime and the process. Unless exporter is nil, the provider also exports the metrics with it,
// at the interval OTEL_METRIC_EXPORT_INTERVAL.
//
// Values of labels come from the configuration or the code, or are "_other", so that their number is limited. If an
// instrument violates this rule, maxLabelSets applies.
func newMetrics(res *resource.Resource, exporter *metricSender, logger *slog.Logger) (*sdkmetric.MeterProvider, http.Handler, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	// Leave out scope labels, which would repeat the package's name on every line of the page.
	reader, err := otelprom.New(otelprom.WithRegisterer(registry), otelprom.WithoutScopeInfo())
	if err != nil {
		return nil, nil, err
	}
	options := []sdkmetric.Option{
		sdkmetric.WithResource(res),
		sdkmetric.WithCardinalityLimit(maxLabelSets),
		sdkmetric.WithReader(reader),
		sdkmetric.WithView(newBucketView("s", durationBuckets), newBucketView("{token}", tokenBuckets)),
	}
	if exporter != nil {
		options = append(options, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)))
	}
	provider := sdkmetric.NewMeterProvider(options...)
	page := promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelError),
		// If one collector of the registry fails, the page still has all other metrics.
		ErrorHandling:       promhttp.ContinueOnError,
		EnableOpenMetrics:   true,
		MaxRequestsInFlight: 8,
	})
	return provider, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page.ServeHTTP(&scrapeWriter{ResponseWriter: w}, r)
	}), nil
}

// scrapeWriter reports no errors, and discards everything after a write has failed. Otherwise, if a client closes the
// connection, promhttp would log an error for each metric that it cannot send. Only the request's goroutine uses it.
type scrapeWriter struct {
	http.ResponseWriter
	failed bool
}

// Write implements http.ResponseWriter. It never returns an error.
func (w *scrapeWriter) Write(b []byte) (int, error) {
	if !w.failed {
		_, err := w.ResponseWriter.Write(b)
		w.failed = err != nil
	}
	return len(b), nil
}

// metricSender exports metrics.
type metricSender struct {
	sdkmetric.Exporter
	exports *signalExports
}

// newMetricSender returns the OTLP exporter for metrics, or an error if the configuration is not usable. The exporter
// does not connect before its first export.
func newMetricSender(ctx context.Context, cfg Config) (*metricSender, error) {
	if err := checkEndpoint("OTEL_METRICS_EXPORTER is otlp", "metrics", cfg.MetricsEndpoint, nil); err != nil {
		return nil, err
	}
	exporter, err := otlpmetrichttp.New(ctx,
		otlpmetrichttp.WithEndpointURL(cfg.MetricsEndpoint), otlpmetrichttp.WithProxy(proxyUnlessRedirected))
	if err != nil {
		return nil, fmt.Errorf("setting up the OTLP exporter of metrics (OTEL_EXPORTER_OTLP_*): %w", err)
	}
	return &metricSender{exporter, newSignalExports("metrics", cfg.Logger, help.Metrics)}, nil
}

// Export implements sdkmetric.Exporter. It always returns nil, because signalExports logs a failure.
func (s *metricSender) Export(ctx context.Context, metrics *metricdata.ResourceMetrics) error {
	_ = s.exports.run(ctx, func(ctx context.Context) error { return s.Exporter.Export(ctx, metrics) })
	return nil
}

// newBucketView returns a view that gives all histograms with the given unit these bucket boundaries.
func newBucketView(unit string, boundaries []float64) sdkmetric.View {
	return sdkmetric.NewView(
		sdkmetric.Instrument{Kind: sdkmetric.InstrumentKindHistogram, Unit: unit},
		sdkmetric.Stream{Aggregation: sdkmetric.AggregationExplicitBucketHistogram{Boundaries: boundaries}},
	)
}
