package telemetry

import "log/slog"

// Config says what to export. The zero Config is valid: it provides the metrics page and exports nothing. There are no
// fields for the sampler, batch sizes, timeouts, TLS files and resource attributes, because the SDK itself reads the
// standard OTEL_* settings for these.
type Config struct {
	ServiceName string // service.name; "" means the one in OTEL_RESOURCE_ATTRIBUTES, or else "answerd"
	Version     string // service.version, and the version of tracers and meters
	Tracing     bool   // ENABLE_TRACING
	// Endpoint is the complete URL, including the path, to which traces are posted. It is required with Tracing.
	Endpoint string
	// MetricsEndpoint and LogsEndpoint are the complete URLs to which metrics and log lines are posted. If a URL is "",
	// nothing is exported there. The metrics page and Logger's writer get everything in any case. The log is exported
	// only if Logger comes from NewLogger.
	MetricsEndpoint, LogsEndpoint string
	// Headers, unless empty, are sent with every export of traces and replace OTEL_EXPORTER_OTLP_HEADERS. They contain
	// credentials (see OCIHeaders) and are never printed.
	Headers map[string]string
	// QueueSize is how many ended spans may wait for the collector (OTEL_BSP_MAX_QUEUE_SIZE). 0 means 2048. Unlike
	// other SDK settings, it has a field here, because it is needed to count dropped spans.
	QueueSize int
	// MaxAttribute is the maximum length of the text in a span's attribute. 0 means 4096. If
	// OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT is set, that setting applies instead.
	MaxAttribute int
	Logger       *slog.Logger // nil discards lines
}
