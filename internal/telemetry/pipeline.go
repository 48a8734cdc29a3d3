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
	defaultQueue      = 2048 // ended spans, as the SDK's own
	maxAttributeBytes = 4096 // bytes of one attribute, unless OTEL_* says otherwise
)

// tracePipeline passes ended spans to the collector:
//
//	OnEnd → spanQueue (bounded) → the SDK's batch processor → ExportSpans → OTLP
//
// The batch processor drops spans silently when it is full, and reports failed exports, with the
// collector's message, to a global handler. So spanQueue lets in only as many spans as the
// processor can hold and counts the others, and ExportSpans returns no errors to it.
type tracePipeline struct {
	provider     *sdktrace.TracerProvider
	cancelExport context.CancelFunc // ends the current export and all later ones
}

// spanQueue accepts at most size spans that are not exported yet.
type spanQueue struct {
	sdktrace.SpanProcessor
	size      int64
	waiting   *atomic.Int64 // accepted spans that are not exported yet
	countFull func()        // counts a dropped span
}

// spanSender exports spans and frees their places in spanQueue. The SDK never calls ExportSpans
// concurrently, so outage needs no lock.
type spanSender struct {
	sdktrace.SpanExporter
	canceled    context.Context
	waiting     *atomic.Int64
	countFailed func(spans int)
	outage      outage
}

// newTracePipeline creates the pipeline. Its goroutine runs until shutdown.
func newTracePipeline(ctx context.Context, cfg Config, res *resource.Resource, m metric.Meter) (*tracePipeline, error) {
	exporter, err := newExporter(ctx, cfg)
	if err != nil {
		return nil, err
	}
	full, failed, err := dropCounters(m)
	if err != nil {
		return nil, fmt.Errorf("setting up metrics: %w", err)
	}
	if cfg.QueueSize <= 0 {
		cfg.QueueSize = defaultQueue
	}

	abandoned, abandon := context.WithCancel(context.Background())
	waiting := new(atomic.Int64)
	sender := &spanSender{
		SpanExporter: exporter, canceled: abandoned, waiting: waiting, countFailed: failed,
		outage: outage{logger: cfg.Logger, begins: "traces do not reach the collector", ends: "traces reach the collector again", help: help.Traces},
	}
	queue := &spanQueue{
		SpanProcessor: sdktrace.NewBatchSpanProcessor(sender, sdktrace.WithMaxQueueSize(cfg.QueueSize)),
		size:          int64(cfg.QueueSize),
		waiting:       waiting,
		countFull:     full,
	}
	return &tracePipeline{cancelExport: abandon, provider: sdktrace.NewTracerProvider(
		sdktrace.WithSpanProcessor(queue),
		sdktrace.WithResource(res),
		sdktrace.WithRawSpanLimits(spanLimits(cfg.MaxAttribute)),
	)}, nil
}

// newExporter returns the OTLP exporter. It connects when it exports.
func newExporter(ctx context.Context, c Config) (sdktrace.SpanExporter, error) {
	if err := checkEndpoint("ENABLE_TRACING is true", "traces", c.Endpoint, c.Headers); err != nil {
		return nil, err
	}
	opts := []otlptracehttp.Option{
		otlptracehttp.WithEndpointURL(c.Endpoint),
		otlptracehttp.WithProxy(proxyUnlessRedirected),
	}
	if len(c.Headers) > 0 {
		opts = append(opts, otlptracehttp.WithHeaders(c.Headers))
	}
	exporter, err := otlptracehttp.New(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("setting up the OTLP exporter (OTEL_EXPORTER_OTLP_*): %w", err)
	}
	return exporter, nil
}

// spanLimits returns the SDK's limits, and a limit for the length of an attribute, which the SDK
// does not have. The caller's user agent is an attribute, and a full queue of long ones would need
// much memory.
func spanLimits(length int) sdktrace.SpanLimits {
	l := sdktrace.NewSpanLimits()
	if l.AttributeValueLengthLimit < 0 {
		l.AttributeValueLengthLimit = cmp.Or(length, maxAttributeBytes)
	}
	return l
}

// inherited are the attributes of a run's span that the spans below it carry too. Backends group spans
// by them.
var inherited = []attribute.Key{
	"gen_ai.agent.name", "gen_ai.conversation.id", "session.id", "enduser.id", "user.id", "answerd.run_id",
}

// OnStart copies the inherited attributes from the parent, unless the span has its own, as the span of
// a run below another run does.
func (q *spanQueue) OnStart(parent context.Context, span sdktrace.ReadWriteSpan) {
	if above, ok := trace.SpanFromContext(parent).(sdktrace.ReadOnlySpan); ok {
		var own []attribute.Key
		for _, kv := range span.Attributes() {
			own = append(own, kv.Key)
		}
		for _, kv := range above.Attributes() {
			if slices.Contains(inherited, kv.Key) && !slices.Contains(own, kv.Key) {
				span.SetAttributes(kv)
			}
		}
	}
	q.SpanProcessor.OnStart(parent, span)
}

// dropCounters creates the counter of lost spans, and returns a function for each reason that
// counts one. Both reasons are 0 from the start, so that an alert sees the first loss as an
// increase.
func dropCounters(m metric.Meter) (full func(), failed func(int), err error) {
	counter, err := m.Int64Counter("answerd.trace.spans.dropped", metric.WithUnit("{span}"),
		metric.WithDescription("Ended spans that never reached the collector."))
	if err != nil {
		return nil, nil, err
	}
	add := func(reason string) func(int) {
		opt := metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", reason)))
		counter.Add(context.Background(), 0, opt)
		return func(n int) { counter.Add(context.Background(), int64(n), opt) }
	}
	fullN, failed := add("queue_full"), add("export_failed")
	return func() { fullN(1) }, failed, nil
}

// OnEnd queues s, or drops and counts it. It never blocks, even if the collector does not answer.
func (q *spanQueue) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return // recorded, but not for export
	}
	if q.waiting.Add(1) > q.size {
		q.waiting.Add(-1)
		q.countFull()
		return
	}
	q.SpanProcessor.OnEnd(s)
}

// ExportSpans sends one batch. It always returns nil, because it counts and logs a failure itself,
// the latter once per outage.
func (s *spanSender) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	defer s.waiting.Add(-int64(len(spans)))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.canceled, cancel)()

	err := exportRecovered(func() error { return s.SpanExporter.ExportSpans(ctx, spans) })
	if err != nil {
		s.countFailed(len(spans))
	}
	s.outage.record(err)
	return nil
}
