package telemetry

import "log/slog"

// Config selects what is exported. The zero Config is valid: metrics and no tracing. It does not
// have the sampler, batch sizes, timeouts, TLS files and resource attributes, because the SDK
// reads the standard OTEL_* settings itself.
type Config struct {
	ServiceName string // service.name; "" means OTEL_RESOURCE_ATTRIBUTES', else "answerd"
	Version     string // service.version and the version of our spans
	Tracing     bool   // ENABLE_TRACING
	// Endpoint is the whole URL that traces are posted to, path included.
	// Required with Tracing.
	Endpoint string
	// MetricsEndpoint and LogsEndpoint are the whole URLs that metrics and lines of the log are posted to,
	// besides the page and the writer of Logger; "" exports none.
	MetricsEndpoint, LogsEndpoint string
	// Headers are sent with every export of traces and replace OTEL_EXPORTER_OTLP_HEADERS unless they are
	// empty. They hold credentials (OCIHeaders) and are never printed.
	Headers map[string]string
	// QueueSize is the number of ended spans that may wait for the collector: OTEL_BSP_MAX_QUEUE_SIZE, which
	// the SDK would read itself. 0 means the default of that, 2048.
	QueueSize int
	// MaxAttribute is how long the text of an attribute may be; 0 means 4096. It replaces
	// OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT only if that is not set.
	MaxAttribute int
	Logger       *slog.Logger // nil means none
}
