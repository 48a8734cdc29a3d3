package telemetry

import "log/slog"

// Config selects what is exported. The zero Config is valid: the metrics page, and no export. Config does not
// have the sampler, batch sizes, timeouts, TLS files and resource attributes, because the SDK
// reads the standard OTEL_* settings for them itself.
type Config struct {
	ServiceName string // service.name; "" means that of OTEL_RESOURCE_ATTRIBUTES, or else "answerd"
	Version     string // service.version, and the version of tracers and meters
	Tracing     bool   // ENABLE_TRACING
	// Endpoint is the whole URL that traces are posted to, path included.
	// Required with Tracing.
	Endpoint string
	// MetricsEndpoint and LogsEndpoint are the whole URLs that metrics and lines of the log are posted to; "" means
	// that they are not exported. The metrics page and the writer of Logger get them in any case. The log is exported
	// only if Logger is one of NewLogger.
	MetricsEndpoint, LogsEndpoint string
	// Headers are sent with every export of traces and replace OTEL_EXPORTER_OTLP_HEADERS unless they are
	// empty. They hold credentials (OCIHeaders) and are never printed.
	Headers map[string]string
	// QueueSize is the number of ended spans that may wait for the collector (OTEL_BSP_MAX_QUEUE_SIZE); 0 means 2048.
	// Unlike other settings of the SDK it is given here, because dropped spans are counted with it.
	QueueSize int
	// MaxAttribute is the maximum length of the text of a span's attribute; 0 means 4096. If
	// OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT is set, that setting applies instead.
	MaxAttribute int
	Logger       *slog.Logger // nil discards lines
}
