package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const (
	defaultQueue = 2048 // ended spans, as the SDK's own
	maxValue     = 4096 // bytes of one attribute, unless OTEL_* says otherwise
)

// pipeline is the way of a span from its end to the collector:
//
//	OnEnd → places (bounded) → the SDK's batch processor → ExportSpans → OTLP
//
// The batch processor drops silently when it is full and reports failed exports to
// a global handler with the collector's own words. So the places in front of it are
// ours, never more than it can hold, and ExportSpans hands it no errors.
type pipeline struct {
	provider *sdktrace.TracerProvider
	abandon  context.CancelFunc // ends the export under way and all later ones
}

// spanQueue lets in as many spans as there are places.
type spanQueue struct {
	sdktrace.SpanProcessor
	size    int64
	waiting *atomic.Int64 // spans taken in and not yet exported
	full    func()        // counts a dropped span
}

// spanSender gives the places back. ExportSpans is never called concurrently.
type spanSender struct {
	sdktrace.SpanExporter
	abandoned context.Context
	waiting   *atomic.Int64
	failed    func(spans int)
	logger    *slog.Logger
	failing   bool // so that an outage is one line and not one per batch
}

func newPipeline(ctx context.Context, c Config, res *resource.Resource, m metric.Meter) (*pipeline, error) {
	exporter, err := newExporter(ctx, c)
	if err != nil {
		return nil, err
	}
	full, failed, err := dropCounters(m)
	if err != nil {
		return nil, fmt.Errorf("setting up metrics: %w", err)
	}
	if c.QueueSize <= 0 {
		c.QueueSize = defaultQueue
	}

	abandoned, abandon := context.WithCancel(context.Background())
	waiting := new(atomic.Int64)
	sender := &spanSender{
		SpanExporter: exporter, abandoned: abandoned, waiting: waiting, failed: failed, logger: c.Logger,
	}
	queue := &spanQueue{
		SpanProcessor: sdktrace.NewBatchSpanProcessor(sender, sdktrace.WithMaxQueueSize(c.QueueSize)),
		size:          int64(c.QueueSize),
		waiting:       waiting,
		full:          full,
	}
	return &pipeline{abandon: abandon, provider: sdktrace.NewTracerProvider(
		sdktrace.WithSpanProcessor(queue),
		sdktrace.WithResource(res),
		sdktrace.WithRawSpanLimits(spanLimits()),
	)}, nil
}

func newExporter(ctx context.Context, c Config) (sdktrace.SpanExporter, error) {
	if err := checkEndpoint(c.Endpoint, c.Headers); err != nil {
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

// spanLimits bounds the length of an attribute, which the SDK leaves open: the
// caller's user agent is one, and a full queue of long ones is a lot of memory.
func spanLimits() sdktrace.SpanLimits {
	l := sdktrace.NewSpanLimits()
	if l.AttributeValueLengthLimit < 0 {
		l.AttributeValueLengthLimit = maxValue
	}
	return l
}

// dropCounters makes the counter of lost spans, with both reasons standing at 0
// from the start so that an alert can see the first loss.
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

// OnEnd takes a place for s or drops it; it never blocks (F33).
func (q *spanQueue) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return // recorded, but not for export
	}
	if q.waiting.Add(1) > q.size {
		q.waiting.Add(-1)
		q.full()
		return
	}
	q.SpanProcessor.OnEnd(s)
}

// ExportSpans sends one batch. It always returns nil: a failure is counted and
// logged here, once per outage.
func (s *spanSender) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	defer s.waiting.Add(-int64(len(spans)))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.abandoned, cancel)()

	err := s.export(ctx, spans)
	switch {
	case err != nil:
		s.failed(len(spans))
		if !s.failing {
			s.logger.Warn("traces do not reach the collector", "error", withoutBody(err))
		}
	case s.failing:
		s.logger.Info("traces reach the collector again")
	}
	s.failing = err != nil
	return nil
}

// export is the exporter's. A panic in it is a failure: the goroutine is the SDK's, and
// all runs would go with the process.
func (s *spanSender) export(ctx context.Context, spans []sdktrace.ReadOnlySpan) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return s.SpanExporter.ExportSpans(ctx, spans)
}

// withoutBody cuts off what the collector wrote: the exporter puts it behind one of
// these words.
func withoutBody(err error) string {
	text := err.Error()
	for _, mark := range []string{"body: ", "partial success: "} {
		text, _, _ = strings.Cut(text, mark)
	}
	return strings.TrimRight(text, " (:")
}

// close flushes within flushTime and ctx. The provider itself gets no deadline,
// because then it would return and leave its goroutine in the export; abandoning
// the export ends both.
func (p *pipeline) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	stop := context.AfterFunc(ctx, p.abandon)
	err := p.provider.Shutdown(context.WithoutCancel(ctx))
	if !stop() {
		return fmt.Errorf("flushing traces: %w", context.Cause(ctx))
	}
	p.abandon()
	if err != nil {
		return fmt.Errorf("flushing traces: %w", err)
	}
	return nil
}
