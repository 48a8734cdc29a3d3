package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"

	"answerd/internal/help"
)

// exportWriter passes a logger's lines on to the wrapped writer and, if there is one, to a pipeline that exports them.
// It gets the encoded lines, in which secrets are already replaced.
type exportWriter struct {
	io.Writer
	pipeline atomic.Pointer[logPipeline] // nil if lines are not exported
}

// Write writes a line, which is one JSON object, and queues it for the collector without waiting for it.
func (w *exportWriter) Write(line []byte) (int, error) {
	if p := w.pipeline.Load(); p != nil {
		p.emit(line)
	}
	return w.Writer.Write(line)
}

// logPipeline exports log lines. When the queue of the SDK's batch processor is full, the processor drops the oldest
// line.
type logPipeline struct {
	provider *sdklog.LoggerProvider
	logger   log.Logger
	exports  *signalExports
}

// logSender exports log lines.
type logSender struct {
	sdklog.Exporter
	exports *signalExports
}

// newLogPipeline returns a pipeline to cfg.LogsEndpoint, or an error if the configuration is not usable. It starts a
// goroutine, which runs until provider is shut down.
func newLogPipeline(ctx context.Context, cfg Config, res *resource.Resource) (*logPipeline, error) {
	if err := checkEndpoint("OTEL_LOGS_EXPORTER is otlp", "logs", cfg.LogsEndpoint, nil); err != nil {
		return nil, err
	}
	exporter, err := otlploghttp.New(ctx,
		otlploghttp.WithEndpointURL(cfg.LogsEndpoint), otlploghttp.WithProxy(proxyUnlessRedirected))
	if err != nil {
		return nil, fmt.Errorf("setting up the OTLP exporter of logs (OTEL_EXPORTER_OTLP_*): %w", err)
	}
	exports := newSignalExports("logs", cfg.Logger, help.ExportedLog)
	provider := sdklog.NewLoggerProvider(
		sdklog.WithResource(res),
		sdklog.WithProcessor(sdklog.NewBatchProcessor(&logSender{exporter, exports})),
		sdklog.WithAttributeValueLengthLimit(maxAttributeBytes),
	)
	logger := provider.Logger("answerd", log.WithInstrumentationVersion(cfg.Version))
	return &logPipeline{provider: provider, logger: logger, exports: exports}, nil
}

// Export implements sdklog.Exporter. It always returns nil, because signalExports logs a failure.
func (s *logSender) Export(ctx context.Context, records []sdklog.Record) error {
	_ = s.exports.run(ctx, func(ctx context.Context) error { return s.Exporter.Export(ctx, records) })
	return nil
}

// severities maps slog's levels to OpenTelemetry's severities.
var severities = map[string]log.Severity{
	slog.LevelDebug.String(): log.SeverityDebug,
	slog.LevelInfo.String():  log.SeverityInfo,
	slog.LevelWarn.String():  log.SeverityWarn,
	slog.LevelError.String(): log.SeverityError,
}

// emit queues a log line as a record. The line's time, level, message and trace_id become the record's fields of that
// kind, and all other members become attributes. emit ignores a line that is not a JSON object.
func (p *logPipeline) emit(line []byte) {
	var fields map[string]any
	if json.Unmarshal(line, &fields) != nil {
		return
	}
	removeText := func(key string) string { // returns the removed text; "" if there is none
		text, _ := fields[key].(string)
		delete(fields, key)
		return text
	}
	var record log.Record
	if loggedAt, err := time.Parse(time.RFC3339Nano, removeText(slog.TimeKey)); err == nil {
		record.SetTimestamp(loggedAt)
	}
	level := removeText(slog.LevelKey)
	record.SetSeverity(severities[level])
	record.SetSeverityText(level)
	record.SetBody(attribute.StringValue(removeText(slog.MessageKey)))
	ctx := context.Background()
	if id, err := trace.TraceIDFromHex(removeText("trace_id")); err == nil {
		sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, TraceFlags: trace.FlagsSampled})
		ctx = trace.ContextWithSpanContext(ctx, sc)
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		record.AddAttributes(logAttribute(key, fields[key]))
	}
	p.logger.Emit(ctx, record)
}

// logAttribute returns the attribute for a line's member. Lists, objects and null become a string with their JSON. A
// number without a fraction becomes an integer.
func logAttribute(key string, v any) attribute.KeyValue {
	switch v := v.(type) {
	case string:
		return attribute.String(key, v)
	case bool:
		return attribute.Bool(key, v)
	case float64:
		if i := int64(v); float64(i) == v {
			return attribute.Int64(key, i)
		}
		return attribute.Float64(key, v)
	}
	text, _ := json.Marshal(v) // cannot fail, because v was decoded from JSON
	return attribute.String(key, string(text))
}
