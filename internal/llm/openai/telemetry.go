package openai

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"strconv"
	"sync"
	"time"

	"answerd/internal/llm"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	// The last release of the conventions in Go that holds the GenAI ones.
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// telemetry is the spans and metrics of model calls, after OpenTelemetry's semantic
// conventions for generative AI clients. Of prompts and answers it records nothing.
type telemetry struct {
	tracer   trace.Tracer
	common   []attribute.KeyValue // of every span and measurement
	duration metric.Float64Histogram
	first    metric.Float64Histogram
	tokens   metric.Int64Histogram
	sets     attributeSets
}

// Bucket bounds that the conventions ask for.
var (
	durationBuckets = []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
	firstBuckets    = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60}
	tokenBuckets    = []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}
)

// newTelemetry makes the instruments. Without a tracer or meter those of the API that do
// nothing stand in, so that no call has to ask whether there are any.
func newTelemetry(cfg Config, base string) *telemetry {
	var meter metric.Meter = metricnoop.Meter{}
	if cfg.Meter != nil {
		meter = cfg.Meter
	}
	t := &telemetry{tracer: tracenoop.Tracer{}}
	if cfg.Tracer != nil {
		t.tracer = cfg.Tracer
	}
	t.common = append(endpoint(base), semconv.GenAIOperationNameChat,
		semconv.GenAIProviderNameKey.String(cmp.Or(cfg.System, "openai")))
	// A meter refuses only what is wrong in these lines, and hands out an instrument
	// that does nothing then.
	t.duration, _ = meter.Float64Histogram("gen_ai.client.operation.duration", metric.WithUnit("s"),
		metric.WithDescription("GenAI operation duration."), metric.WithExplicitBucketBoundaries(durationBuckets...))
	t.first, _ = meter.Float64Histogram("gen_ai.client.operation.time_to_first_chunk", metric.WithUnit("s"),
		metric.WithDescription("Time from the request to the first part of the answer."), metric.WithExplicitBucketBoundaries(firstBuckets...))
	t.tokens, _ = meter.Int64Histogram("gen_ai.client.token.usage", metric.WithUnit("{token}"),
		metric.WithDescription("Number of input and output tokens used."), metric.WithExplicitBucketBoundaries(tokenBuckets...))
	return t
}

// endpoint returns server.address and server.port of a base URL.
func endpoint(base string) []attribute.KeyValue {
	u, err := url.Parse(base)
	if err != nil || u.Hostname() == "" {
		return nil
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		port = 443
		if u.Scheme == "http" {
			port = 80
		}
	}
	return []attribute.KeyValue{semconv.ServerAddress(u.Hostname()), semconv.ServerPort(port)}
}

// observation is one model call under way.
// It is for the goroutine that runs the stream.
type observation struct {
	telemetry *telemetry
	span      trace.Span
	model     string
	start     time.Time
	begun     bool
	finish    llm.Finish
	usage     llm.Usage
}

var clientSpan = trace.WithSpanKind(trace.SpanKindClient)

// begin starts the span of one call; the requests of the call belong under the context
// that it returns.
func (t *telemetry) begin(ctx context.Context, model string) (context.Context, *observation) {
	ctx, span := t.tracer.Start(ctx, "llm_invoke", clientSpan)
	o := &observation{telemetry: t, span: span, model: model, start: time.Now()}
	if span.IsRecording() {
		span.SetAttributes(t.common...)
		span.SetAttributes(attribute.String("model", model), semconv.GenAIRequestModel(model))
	}
	return ctx, o
}

// part notes what a part says about the call.
func (o *observation) part(ctx context.Context, p llm.Part) {
	if !o.begun {
		o.begun = true
		if o.telemetry.first.Enabled(ctx) {
			o.telemetry.first.Record(ctx, time.Since(o.start).Seconds(), o.attributes())
		}
	}
	switch p := p.(type) {
	case llm.Usage:
		o.usage = p
	case llm.Finish:
		o.finish = p
	}
}

// end ends the span and records the call. A consumer that stopped is no error.
func (o *observation) end(ctx context.Context, err error) {
	var extra []attribute.KeyValue
	if err != nil && !errors.Is(err, errStopped) {
		kind, public := describe(err)
		extra = append(extra, semconv.ErrorTypeKey.String(kind))
		if o.span.IsRecording() {
			// The cause quotes the endpoint and stays in the log.
			o.span.RecordError(errors.New(public))
			o.span.SetStatus(codes.Error, public)
			o.span.SetAttributes(extra...)
		}
	}
	// Attributes are made only for a span or an instrument that takes them: switched off,
	// telemetry costs a few calls of empty functions.
	if o.span.IsRecording() {
		o.span.SetAttributes(o.outcome()...)
	}
	o.span.End()
	t := o.telemetry
	if t.duration.Enabled(ctx) {
		t.duration.Record(ctx, time.Since(o.start).Seconds(), o.attributes(extra...))
	}
	if o.usage != (llm.Usage{}) && t.tokens.Enabled(ctx) {
		t.tokens.Record(ctx, o.usage.Input, o.attributes(semconv.GenAITokenTypeInput))
		t.tokens.Record(ctx, o.usage.Output, o.attributes(semconv.GenAITokenTypeOutput))
	}
}

// outcome returns what the answer said about itself.
func (o *observation) outcome() []attribute.KeyValue {
	var kv []attribute.KeyValue
	if o.finish.Reason != "" {
		kv = append(kv, semconv.GenAIResponseFinishReasons(o.finish.Reason))
	}
	if o.finish.Model != "" {
		kv = append(kv, semconv.GenAIResponseModel(o.finish.Model))
	}
	if o.usage != (llm.Usage{}) {
		kv = append(kv, semconv.GenAIUsageInputTokens(int(o.usage.Input)), semconv.GenAIUsageOutputTokens(int(o.usage.Output)))
	}
	return kv
}

// attributes returns the attributes of a measurement. Models are named only once one
// has answered: callers may ask for any, and each name would be a series of its own.
func (o *observation) attributes(extra ...attribute.KeyValue) metric.MeasurementOption {
	key := measured{answered: o.finish.Model}
	if o.begun {
		key.asked = o.model
	}
	if len(extra) > 0 { // at most one
		key.extra = extra[0]
	}
	return o.telemetry.sets.of(key, func() attribute.Set {
		kv := make([]attribute.KeyValue, 0, len(o.telemetry.common)+len(extra)+2)
		kv = append(kv, o.telemetry.common...)
		if o.begun {
			kv = append(kv, semconv.GenAIRequestModel(key.asked))
		}
		if key.answered != "" {
			kv = append(kv, semconv.GenAIResponseModel(key.answered))
		}
		return attribute.NewSet(append(kv, extra...)...)
	})
}

// measured is what tells the measurements of one endpoint apart.
type measured struct {
	asked, answered string
	extra           attribute.KeyValue
}

// attributeSets keeps the attributes of measurements. There are few, and each takes four
// sets to an answer: to sort them anew was a twentieth of its garbage.
type attributeSets struct {
	mu   sync.RWMutex // protects sets
	sets map[measured]metric.MeasurementOption
}

// maxSets bounds them; names of models come from outside.
const maxSets = 256

func (a *attributeSets) of(key measured, set func() attribute.Set) metric.MeasurementOption {
	a.mu.RLock()
	kept := a.sets[key]
	a.mu.RUnlock()
	if kept != nil {
		return kept
	}
	made := metric.WithAttributeSet(set())
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sets == nil || len(a.sets) >= maxSets {
		a.sets = make(map[measured]metric.MeasurementOption)
	}
	a.sets[key] = made
	return made
}

// describe returns error.type, which has few values, and a text without anything that
// the endpoint said.
func describe(err error) (kind, public string) {
	var e *llm.Error
	switch {
	case errors.As(err, &e) && e.Status != 0:
		return strconv.Itoa(e.Status), e.Public
	case e != nil:
		return string(e.Kind), e.Public
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline_exceeded", "The call's time was over."
	default:
		return "cancelled", "The call was cancelled."
	}
}
