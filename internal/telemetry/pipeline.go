package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"answerd/internal/help"
)

const (
	defaultQueue      = 2048 // number of ended spans, as in the SDK
	maxAttributeBytes = 4096 // length of one attribute, if Config.MaxAttribute is 0
)

// tracePipeline passes ended spans to the collector:
//
//	OnEnd → spanQueue (bounded) → the SDK's batch processor → ExportSpans → OTLP
//
// The batch processor drops spans silently when it is full, and reports failed exports, including the collector's
// message, to a global handler. To avoid both, spanQueue admits only as many spans as the processor can hold and counts
// those that it drops, and ExportSpans returns no errors.
type tracePipeline struct {
	provider *sdktrace.TracerProvider
	exports  *signalExports
}

// spanQueue accepts at most size spans that are not yet exported.
type spanQueue struct {
	sdktrace.SpanProcessor
	size      int64
	waiting   *atomic.Int64 // number of accepted spans that are not yet exported; shared with spanSender
	countFull func()        // counts a span that was dropped because the queue is full
}

// spanSender exports spans, and frees their places in spanQueue.
type spanSender struct {
	sdktrace.SpanExporter
	exports     *signalExports
	waiting     *atomic.Int64   // spanQueue.waiting
	countFailed func(spans int) // counts spans whose export failed
}

// newTracePipeline returns a pipeline to cfg.Endpoint, or an error if the configuration is not usable. It starts a
// goroutine, which runs until provider is shut down. It creates the counter of dropped spans with m.
func newTracePipeline(ctx context.Context, cfg Config, res *resource.Resource, m metric.Meter) (*tracePipeline, error) {
	exporter, err := newExporter(ctx, cfg)
	if err != nil {
		return nil, err
	}
	countFull, countFailed, err := newDropCounters(m)
	if err != nil {
		return nil, fmt.Errorf("setting up metrics: %w", err)
	}
	if cfg.QueueSize <= 0 {
		cfg.QueueSize = defaultQueue
	}

	exports := newSignalExports("traces", cfg.Logger, help.Traces)
	waiting := new(atomic.Int64)
	sender := &spanSender{SpanExporter: exporter, exports: exports, waiting: waiting, countFailed: countFailed}
	queue := &spanQueue{
		SpanProcessor: sdktrace.NewBatchSpanProcessor(sender, sdktrace.WithMaxQueueSize(cfg.QueueSize)),
		size:          int64(cfg.QueueSize),
		waiting:       waiting,
		countFull:     countFull,
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSpanProcessor(queue),
		sdktrace.WithResource(res),
		sdktrace.WithRawSpanLimits(spanLimits(cfg.MaxAttribute)),
	)
	return &tracePipeline{provider: provider, exports: exports}, nil
}

// newExporter returns the OTLP exporter for traces, or an error if the configuration is not usable. The exporter does
// not connect before its first export.
func newExporter(ctx context.Context, cfg Config) (sdktrace.SpanExporter, error) {
	if err := checkEndpoint("ENABLE_TRACING is true", "traces", cfg.Endpoint, cfg.Headers); err != nil {
		return nil, err
	}
	options := []otlptracehttp.Option{
		otlptracehttp.WithEndpointURL(cfg.Endpoint),
		otlptracehttp.WithProxy(proxyUnlessRedirected),
	}
	if len(cfg.Headers) > 0 {
		options = append(options, otlptracehttp.WithHeaders(cfg.Headers))
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("setting up the OTLP exporter (OTEL_EXPORTER_OTLP_*): %w", err)
	}
	return exporter, nil
}

// spanLimits returns the SDK's limits, with maxAttribute, or maxAttributeBytes if that is 0, as the length limit for
// attributes. If OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT is set, that limit applies instead. By default the SDK has no
// limit. One attribute is the client's user agent, so a full queue of spans with long ones would need much memory.
func spanLimits(maxAttribute int) sdktrace.SpanLimits {
	l := sdktrace.NewSpanLimits()
	if l.AttributeValueLengthLimit < 0 { // not set
		l.AttributeValueLengthLimit = cmp.Or(maxAttribute, maxAttributeBytes)
	}
	return l
}

// inheritedKeys lists the attributes of a run's span that its child spans also get, because tracing backends group
// spans by them.
var inheritedKeys = []attribute.Key{
	"gen_ai.agent.name", "gen_ai.conversation.id", "session.id", "enduser.id", "user.id", "answerd.run_id",
}

// OnStart copies the inherited attributes from the parent span. It does not replace attributes that span already has,
// such as those of a child run's span.
func (q *spanQueue) OnStart(parent context.Context, span sdktrace.ReadWriteSpan) {
	if parentSpan, ok := trace.SpanFromContext(parent).(sdktrace.ReadOnlySpan); ok {
		var ownKeys []attribute.Key
		for _, kv := range span.Attributes() {
			ownKeys = append(ownKeys, kv.Key)
		}
		for _, kv := range parentSpan.Attributes() {
			if slices.Contains(inheritedKeys, kv.Key) && !slices.Contains(ownKeys, kv.Key) {
				span.SetAttributes(kv)
			}
		}
	}
	q.SpanProcessor.OnStart(parent, span)
}

// newDropCounters creates the counter of dropped spans. countFull counts one span with the reason queue_full, and
// countFailed counts spans with the reason export_failed. Both reasons start at 0, so that an alert sees the first loss
// as an increase.
func newDropCounters(m metric.Meter) (countFull func(), countFailed func(spans int), err error) {
	counter, err := m.Int64Counter("answerd.trace.spans.dropped", metric.WithUnit("{span}"),
		metric.WithDescription("Ended spans that never reached the collector."))
	if err != nil {
		return nil, nil, err
	}
	counterOf := func(reason string) func(spans int) {
		label := metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", reason)))
		counter.Add(context.Background(), 0, label)
		return func(spans int) { counter.Add(context.Background(), int64(spans), label) }
	}
	countDropped := counterOf("queue_full")
	return func() { countDropped(1) }, counterOf("export_failed"), nil
}

// OnEnd queues a sampled span. If the queue is full, it drops and counts the span instead. It never blocks, even if the
// collector does not answer.
func (q *spanQueue) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return // the batch processor does not export it, so its place in the queue would never be freed
	}
	if q.waiting.Add(1) > q.size {
		q.waiting.Add(-1)
		q.countFull()
		return
	}
	q.SpanProcessor.OnEnd(s)
}

// ExportSpans implements sdktrace.SpanExporter. It always returns nil, because it counts the spans of a failed export,
// and signalExports logs the failure.
func (s *spanSender) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	defer s.waiting.Add(-int64(len(spans)))
	err := s.exports.run(ctx, func(ctx context.Context) error { return s.SpanExporter.ExportSpans(ctx, spans) })
	if err != nil {
		s.countFailed(len(spans))
	}
	return nil
}
