package openai

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"answerd/internal/llm"
	"answerd/internal/llm/genai"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	// The latest release in Go that still has the GenAI conventions.
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// instruments records spans and metrics of model calls as OpenTelemetry's semantic conventions
// for generative AI clients define them. It records prompts and answers only with content.
type instruments struct {
	tracer     trace.Tracer
	common     []attribute.KeyValue // of every span and measurement
	models     []string             // that metrics name
	price      func(model string) *llm.Price
	content    bool // prompts and answers are added to spans
	duration   metric.Float64Histogram
	firstChunk metric.Float64Histogram
	tokens     metric.Int64Histogram
	cache      attributeCache
}

// Bucket boundaries from the conventions.
var (
	durationBuckets = []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
	firstBuckets    = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60}
	tokenBuckets    = []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}
)

// newTelemetry makes the instruments. Without a tracer or meter it uses the API's no-op ones, so
// that callers need no checks.
func newTelemetry(cfg Config, base string) *instruments {
	var meter metric.Meter = metricnoop.Meter{}
	if cfg.Meter != nil {
		meter = cfg.Meter
	}
	meters := &instruments{tracer: tracenoop.Tracer{}, models: cfg.MetricModels, price: cfg.Price, content: cfg.TraceContent}
	if cfg.Tracer != nil {
		meters.tracer = cfg.Tracer
	}
	meters.common = append(serverAttributes(base), semconv.GenAIOperationNameChat,
		semconv.GenAIProviderNameOpenAI)
	// Errors can only come from wrong arguments in these lines; the meter then returns a no-op
	// instrument.
	meters.duration, _ = meter.Float64Histogram("gen_ai.client.operation.duration", metric.WithUnit("s"),
		metric.WithDescription("GenAI operation duration."), metric.WithExplicitBucketBoundaries(durationBuckets...))
	meters.firstChunk, _ = meter.Float64Histogram("gen_ai.client.operation.time_to_first_chunk", metric.WithUnit("s"),
		metric.WithDescription("Time from the request to the first part of the answer."), metric.WithExplicitBucketBoundaries(firstBuckets...))
	meters.tokens, _ = meter.Int64Histogram("gen_ai.client.token.usage", metric.WithUnit("{token}"),
		metric.WithDescription("Number of input and output tokens used."), metric.WithExplicitBucketBoundaries(tokenBuckets...))
	return meters
}

// serverAttributes returns server.address and server.port of a base URL.
func serverAttributes(base string) []attribute.KeyValue {
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

// callRecorder records one model call. Only the goroutine of the stream uses it.
type callRecorder struct {
	telemetry *instruments
	span      trace.Span
	model     string
	start     time.Time
	gotPart   bool
	finish    llm.Finish
	usage     llm.Usage
	content   bool // the span gets the answer, which is collected in the fields below
	text      strings.Builder
	calls     []llm.ToolCall
}

var clientSpan = trace.WithSpanKind(trace.SpanKindClient)

// startCall starts the span of one call, with the attributes that the OpenTelemetry conventions for
// generative AI define for the operation chat. The name is the predecessor's. The requests of the call must use the context that it
// returns.
func (t *instruments) startCall(ctx context.Context, request *llm.Request) (context.Context, *callRecorder) {
	ctx, span := t.tracer.Start(ctx, "llm_invoke", clientSpan)
	recorder := &callRecorder{telemetry: t, span: span, model: request.Model, start: time.Now()}
	if !span.IsRecording() {
		return ctx, recorder
	}
	span.SetAttributes(t.common...)
	span.SetAttributes(attribute.String("model", request.Model), semconv.GenAIRequestModel(request.Model), attribute.Bool("gen_ai.request.stream", true))
	if request.MaxTokens > 0 {
		span.SetAttributes(semconv.GenAIRequestMaxTokens(int(request.MaxTokens)))
	}
	if len(request.OutputSchema) > 0 {
		span.SetAttributes(semconv.GenAIOutputTypeJSON)
	}
	if t.content {
		recorder.content = true
		span.SetAttributes(genai.Input(request.Messages)...)
	}
	return ctx, recorder
}

// recordPart records the properties of the call that a part contains.
func (o *callRecorder) recordPart(ctx context.Context, p llm.Part) {
	if !o.gotPart {
		o.gotPart = true
		if o.telemetry.firstChunk.Enabled(ctx) {
			o.telemetry.firstChunk.Record(ctx, time.Since(o.start).Seconds(), o.measurementAttributes())
		}
	}
	switch p := p.(type) {
	case llm.Usage:
		o.usage = p
	case llm.Finish:
		o.finish = p
	case llm.Text:
		if o.content && o.text.Len() < genai.MaxBytes { // the span gets no more of it
			o.text.WriteString(p.Delta)
		}
	case llm.ToolCall:
		if o.content {
			o.calls = append(o.calls, p)
		}
	}
}

// recordEnd ends the span and records the call. A consumer that stopped early is not an error.
func (o *callRecorder) recordEnd(ctx context.Context, err error) {
	var extra []attribute.KeyValue
	if err != nil && !errors.Is(err, errStopped) {
		kind, public := errorType(err)
		extra = append(extra, semconv.ErrorTypeKey.String(kind))
		if o.span.IsRecording() {
			// The cause may quote the endpoint, so it is only logged.
			o.span.RecordError(errors.New(public))
			o.span.SetStatus(codes.Error, public)
			o.span.SetAttributes(extra...)
		}
	}
	// Attributes are made only for a recording span or an enabled instrument, so that disabled
	// telemetry costs almost nothing.
	if o.span.IsRecording() {
		o.span.SetAttributes(o.responseAttributes()...)
	}
	o.span.End()
	t := o.telemetry
	if t.duration.Enabled(ctx) {
		t.duration.Record(ctx, time.Since(o.start).Seconds(), o.measurementAttributes(extra...))
	}
	if o.usage != (llm.Usage{}) && t.tokens.Enabled(ctx) {
		t.tokens.Record(ctx, o.usage.Input, o.measurementAttributes(semconv.GenAITokenTypeInput))
		t.tokens.Record(ctx, o.usage.Output, o.measurementAttributes(semconv.GenAITokenTypeOutput))
	}
}

// responseAttributes returns attributes from the answer.
func (o *callRecorder) responseAttributes() []attribute.KeyValue {
	var kv []attribute.KeyValue
	if o.finish.Reason != "" {
		kv = append(kv, semconv.GenAIResponseFinishReasons(o.finish.Reason))
	}
	if o.finish.Model != "" {
		kv = append(kv, semconv.GenAIResponseModel(o.finish.Model))
	}
	if o.usage != (llm.Usage{}) {
		kv = append(kv, semconv.GenAIUsageInputTokens(int(o.usage.Input)), semconv.GenAIUsageOutputTokens(int(o.usage.Output)))
		if o.telemetry.price != nil {
			if cost := o.telemetry.price(o.model).CostOf(o.usage.Input, o.usage.Output); cost != nil {
				// The conventions have no attribute for it. The first is Langfuse's, the second OpenInference's.
				kv = append(kv, attribute.Float64("gen_ai.usage.cost", *cost), attribute.Float64("llm.cost.total", *cost))
			}
		}
	}
	if o.content && o.gotPart {
		kv = append(kv, genai.Output(o.text.String(), o.calls, o.finish.Reason))
	}
	return kv
}

// otherValue replaces values that are not configured in the attributes of measurements.
const otherValue = "_other"

// modelLabel returns the model as metrics name it.
func (t *instruments) modelLabel(model string) string {
	if model == "" || slices.Contains(t.models, model) {
		return model
	}
	return otherValue
}

// measurementAttributes returns the attributes of a measurement. The model that was asked is named
// only once it has answered.
func (o *callRecorder) measurementAttributes(extra ...attribute.KeyValue) metric.MeasurementOption {
	key := attributeKey{answered: o.telemetry.modelLabel(o.finish.Model)}
	if o.gotPart {
		key.asked = o.telemetry.modelLabel(o.model)
	}
	if len(extra) > 0 { // at most one extra attribute
		key.extra = extra[0]
	}
	return o.telemetry.cache.cachedAttributes(key, func() attribute.Set {
		kv := make([]attribute.KeyValue, 0, len(o.telemetry.common)+len(extra)+2)
		kv = append(kv, o.telemetry.common...)
		if o.gotPart {
			kv = append(kv, semconv.GenAIRequestModel(key.asked))
		}
		if key.answered != "" {
			kv = append(kv, semconv.GenAIResponseModel(key.answered))
		}
		return attribute.NewSet(append(kv, extra...)...)
	})
}

// attributeKey identifies a set of attributes among the measurements of one endpoint.
type attributeKey struct {
	asked, answered string
	extra           attribute.KeyValue
}

// attributeCache caches the attributes of measurements. Each answer needs four sets of the few
// that exist; sorting them again caused 5 % of an answer's garbage.
type attributeCache struct {
	mu   sync.RWMutex // guards sets
	sets map[attributeKey]metric.MeasurementOption
}

// maxAttributeSets bounds them.
const maxAttributeSets = 256

// cachedAttributes returns the attributes of key, and calls set to make them if they are not cached. Two
// goroutines may both make them, with the same result. A full cache is emptied.
func (a *attributeCache) cachedAttributes(key attributeKey, set func() attribute.Set) metric.MeasurementOption {
	a.mu.RLock()
	kept := a.sets[key]
	a.mu.RUnlock()
	if kept != nil {
		return kept
	}
	made := metric.WithAttributeSet(set())
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sets == nil || len(a.sets) >= maxAttributeSets {
		a.sets = make(map[attributeKey]metric.MeasurementOption)
	}
	a.sets[key] = made
	return made
}

// errorType returns error.type, which has few values, and a text that quotes nothing from the
// endpoint.
func errorType(err error) (kind, public string) {
	var modelErr *llm.Error
	switch {
	case errors.As(err, &modelErr) && modelErr.Status != 0:
		if http.StatusText(modelErr.Status) == "" { // an endpoint may send any of 900
			return otherValue, modelErr.Public
		}
		return strconv.Itoa(modelErr.Status), modelErr.Public
	case modelErr != nil:
		return string(modelErr.Kind), modelErr.Public
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline_exceeded", "The call's time was over."
	default:
		return "cancelled", "The call was cancelled."
	}
}
