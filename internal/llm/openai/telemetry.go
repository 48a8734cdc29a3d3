package openai

import (
	"cmp"
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
	// This is the latest release in Go that still has the GenAI conventions.
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// instruments records spans and metrics of model calls, as OpenTelemetry's semantic conventions for generative AI
// clients define them.
type instruments struct {
	tracer     trace.Tracer
	common     []attribute.KeyValue          // attributes of every span and measurement
	models     []string                      // models that metrics may name (Config.MetricModels)
	price      func(model string) *llm.Price // Config.Price; nil if no prices are known
	content    bool                          // add prompts and answers to spans (Config.TraceContent)
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

// newTelemetry returns the instruments for cfg and the endpoint with the base URL base. It replaces a nil tracer or
// meter with a no-op one, so that callers need no checks.
func newTelemetry(cfg Config, base string) *instruments {
	meter := cmp.Or[metric.Meter](cfg.Meter, metricnoop.Meter{})
	meters := &instruments{
		tracer: cmp.Or[trace.Tracer](cfg.Tracer, tracenoop.Tracer{}),
		common: append(serverAttributes(base), semconv.GenAIOperationNameChat, semconv.GenAIProviderNameOpenAI),
		models: cfg.MetricModels, price: cfg.Price, content: cfg.TraceContent,
	}
	// Only wrong arguments in these lines could cause an error. The meter would then return a no-op instrument.
	meters.duration, _ = meter.Float64Histogram("gen_ai.client.operation.duration", metric.WithUnit("s"),
		metric.WithDescription("GenAI operation duration."), metric.WithExplicitBucketBoundaries(durationBuckets...))
	meters.firstChunk, _ = meter.Float64Histogram("gen_ai.client.operation.time_to_first_chunk", metric.WithUnit("s"),
		metric.WithDescription("Time from the request to the first part of the answer."), metric.WithExplicitBucketBoundaries(firstBuckets...))
	meters.tokens, _ = meter.Int64Histogram("gen_ai.client.token.usage", metric.WithUnit("{token}"),
		metric.WithDescription("Number of input and output tokens used."), metric.WithExplicitBucketBoundaries(tokenBuckets...))
	return meters
}

// serverAttributes returns the attributes server.address and server.port for a base URL, or nil if the URL has no host.
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

// callRecorder records one model call. Only the stream's goroutine uses it.
type callRecorder struct {
	telemetry *instruments
	span      trace.Span
	model     string // the requested model
	start     time.Time
	gotPart   bool       // the answer has begun
	finish    llm.Finish // zero unless the answer is complete
	usage     llm.Usage  // zero until the endpoint sends it
	content   bool       // add the answer to the span; it is collected in the fields below
	text      strings.Builder
	calls     []llm.ToolCall
}

var clientSpan = trace.WithSpanKind(trace.SpanKindClient)

// startCall starts the span of one call, with the attributes that the OpenTelemetry conventions for generative AI
// define for the operation chat. For compatibility, the span keeps the name and the attribute model of answerd's
// predecessor. The call's requests must use the returned context. The caller must call recordEnd.
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

// recordPart collects what recordEnd adds to the span and the metrics from one part of the answer. For the first part,
// it also measures the time to the first chunk.
func (r *callRecorder) recordPart(ctx context.Context, part llm.Part) {
	if !r.gotPart {
		r.gotPart = true
		if r.telemetry.firstChunk.Enabled(ctx) {
			r.telemetry.firstChunk.Record(ctx, time.Since(r.start).Seconds(), r.measurementAttributes())
		}
	}
	switch p := part.(type) {
	case llm.Usage:
		r.usage = p
	case llm.Finish:
		r.finish = p
	case llm.Text:
		if r.content && r.text.Len() < genai.MaxBytes { // genai.Output drops anything longer
			r.text.WriteString(p.Delta)
		}
	case llm.ToolCall:
		if r.content {
			r.calls = append(r.calls, p)
		}
	}
}

// recordEnd ends the span, and measures the duration and the tokens of the call. err is the call's error. nil does not
// count as an error, nor does errStopped, which means that the consumer stopped early.
func (r *callRecorder) recordEnd(ctx context.Context, err error) {
	var errorAttributes []attribute.KeyValue
	if err != nil && !errors.Is(err, errStopped) {
		kind, public := errorType(err)
		errorAttributes = append(errorAttributes, semconv.ErrorTypeKey.String(kind))
		if r.span.IsRecording() {
			// The cause may quote the endpoint, so it is only logged.
			r.span.RecordError(errors.New(public))
			r.span.SetStatus(codes.Error, public)
			r.span.SetAttributes(errorAttributes...)
		}
	}
	// Attributes are created only for a recording span or an enabled instrument, so that disabled telemetry costs
	// almost nothing.
	if r.span.IsRecording() {
		r.span.SetAttributes(r.responseAttributes()...)
	}
	r.span.End()
	t := r.telemetry
	if t.duration.Enabled(ctx) {
		t.duration.Record(ctx, time.Since(r.start).Seconds(), r.measurementAttributes(errorAttributes...))
	}
	if r.usage != (llm.Usage{}) && t.tokens.Enabled(ctx) {
		t.tokens.Record(ctx, r.usage.Input, r.measurementAttributes(semconv.GenAITokenTypeInput))
		t.tokens.Record(ctx, r.usage.Output, r.measurementAttributes(semconv.GenAITokenTypeOutput))
	}
}

// responseAttributes returns the span attributes that are known only from the answer: the model that answered, the
// finish reason, the tokens, the cost and, if r.content is set, the answer itself. It leaves out what the endpoint did
// not send.
func (r *callRecorder) responseAttributes() []attribute.KeyValue {
	var kv []attribute.KeyValue
	if r.finish.Reason != "" {
		kv = append(kv, semconv.GenAIResponseFinishReasons(r.finish.Reason))
	}
	if r.finish.Model != "" {
		kv = append(kv, semconv.GenAIResponseModel(r.finish.Model))
	}
	if r.usage != (llm.Usage{}) {
		kv = append(kv, semconv.GenAIUsageInputTokens(int(r.usage.Input)), semconv.GenAIUsageOutputTokens(int(r.usage.Output)))
		if r.telemetry.price != nil {
			if cost := r.telemetry.price(r.model).CostOf(r.usage.Input, r.usage.Output); cost != nil {
				// The conventions have no attribute for costs. The first one is Langfuse's, the second one
				// OpenInference's.
				kv = append(kv, attribute.Float64("gen_ai.usage.cost", *cost), attribute.Float64("llm.cost.total", *cost))
			}
		}
	}
	if r.content && r.gotPart {
		kv = append(kv, genai.Output(r.text.String(), r.calls, r.finish.Reason))
	}
	return kv
}

// otherValue replaces a model that is not configured, and a status without a name, in the attributes of measurements.
// Each different value would be a separate time series.
const otherValue = "_other"

// modelLabel returns the name of model in metrics: model itself if it is empty or configured, and otherwise otherValue.
func (t *instruments) modelLabel(model string) string {
	if model == "" || slices.Contains(t.models, model) {
		return model
	}
	return otherValue
}

// measurementAttributes returns the attributes of a measurement: the common ones, the models, and at most one extra
// attribute. It includes the requested model only if at least one part of an answer arrived.
func (r *callRecorder) measurementAttributes(extra ...attribute.KeyValue) metric.MeasurementOption {
	key := attributeKey{answered: r.telemetry.modelLabel(r.finish.Model)}
	if r.gotPart {
		key.asked = r.telemetry.modelLabel(r.model)
	}
	if len(extra) > 0 {
		key.extra = extra[0]
	}
	return r.telemetry.cache.cachedAttributes(key, func() attribute.Set {
		kv := make([]attribute.KeyValue, 0, len(r.telemetry.common)+len(extra)+2)
		kv = append(kv, r.telemetry.common...)
		if r.gotPart {
			kv = append(kv, semconv.GenAIRequestModel(key.asked))
		}
		if key.answered != "" {
			kv = append(kv, semconv.GenAIResponseModel(key.answered))
		}
		return attribute.NewSet(append(kv, extra...)...)
	})
}

// attributeKey identifies an attribute set among the measurements of one endpoint.
type attributeKey struct {
	asked, answered string             // models, as returned by modelLabel; "" if not in the set
	extra           attribute.KeyValue // zero if there is no extra attribute
}

// attributeCache caches the attribute sets of measurements. Each answer needs four sets, and only a few different ones
// exist. Sorting their attributes for each answer caused 5 % of an answer's garbage.
type attributeCache struct {
	mu   sync.RWMutex // guards sets
	sets map[attributeKey]metric.MeasurementOption
}

// maxAttributeSets is the largest number of sets in an attributeCache.
const maxAttributeSets = 256

// cachedAttributes returns the cached attributes for key. If they are not cached, it calls newSet and caches the
// result. Two goroutines may call newSet for the same key at the same time, with the same result. A full cache is
// emptied.
func (a *attributeCache) cachedAttributes(key attributeKey, newSet func() attribute.Set) metric.MeasurementOption {
	a.mu.RLock()
	cached := a.sets[key]
	a.mu.RUnlock()
	if cached != nil {
		return cached
	}
	option := metric.WithAttributeSet(newSet())
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sets == nil || len(a.sets) >= maxAttributeSets {
		a.sets = make(map[attributeKey]metric.MeasurementOption)
	}
	a.sets[key] = option
	return option
}

// errorType returns the value of the attribute error.type for a call's error, and a public text. The value is a status
// code, a kind of error or one of a few words, so that metrics have few series. An error that is neither an *llm.Error
// nor a deadline counts as cancelled.
func errorType(err error) (kind, public string) {
	var modelErr *llm.Error
	switch {
	case errors.As(err, &modelErr) && modelErr.Status != 0:
		if http.StatusText(modelErr.Status) == "" { // an endpoint may send any three-digit number
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
