package openai

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// recorder keeps what a model records.
type recorder struct {
	spans   *tracetest.SpanRecorder
	tracer  oteltrace.Tracer
	reader  *metric.ManualReader
	metrics *metric.MeterProvider
}

func newRecorder(cfg Config) (*recorder, Config) {
	r := &recorder{spans: tracetest.NewSpanRecorder(), reader: metric.NewManualReader()}
	r.tracer = trace.NewTracerProvider(trace.WithSpanProcessor(r.spans)).Tracer("test")
	r.metrics = metric.NewMeterProvider(metric.WithReader(r.reader))
	cfg.Tracer, cfg.Meter = r.tracer, r.metrics.Meter("test")
	return r, cfg
}

func formatAttributes(kv []attribute.KeyValue) string {
	set := attribute.NewSet(kv...)
	return set.Encoded(attribute.DefaultEncoder())
}

// points lists the metrics' points as "name unit {attributes} count sum".
func (r *recorder) points(t *testing.T) []string {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					got = append(got, fmt.Sprintf("%s %s %s %d", m.Name, m.Unit, p.Attributes.Encoded(attribute.DefaultEncoder()), p.Count))
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					got = append(got, fmt.Sprintf("%s %s %s %d %d", m.Name, m.Unit, p.Attributes.Encoded(attribute.DefaultEncoder()), p.Count, p.Sum))
				}
			}
		}
	}
	slices.Sort(got)
	return got
}

func TestSpanIsAChildOfTheCallers(t *testing.T) {
	r, cfg := newRecorder(Config{MaxRetries: 1, MetricModels: []string{"m", "m-1"}})
	s, m := newEndpoint(t, cfg, replyStatus(503, "", "Retry-After", "0"), sendStream(helloStream))
	ctx, parent := r.tracer.Start(t.Context(), "tool_calling_loop")
	if _, err := llmtest.Collect(ctx, m, testRequest); err != nil {
		t.Fatal(err)
	}
	ended := r.spans.Ended()
	if len(ended) != 1 {
		t.Fatalf("got %d spans, want 1", len(ended))
	}
	span := ended[0]
	if span.Name() != "llm_invoke" || span.Parent().SpanID() != parent.SpanContext().SpanID() || span.SpanKind() != oteltrace.SpanKindClient || span.Status().Code != codes.Unset {
		t.Errorf("got span %s under %v of kind %v with status %v, want llm_invoke, a client span under the caller's", span.Name(), span.Parent(), span.SpanKind(), span.Status())
	}
	u, _ := url.Parse(s.URL)
	where := "server.address=" + u.Hostname() + ",server.port=" + u.Port()
	want := "gen_ai.operation.name=chat,gen_ai.provider.name=openai,gen_ai.request.model=m,gen_ai.request.stream=true,gen_ai.response.finish_reasons=[\"stop\"]," +
		"gen_ai.response.model=m-1,gen_ai.usage.input_tokens=3,gen_ai.usage.output_tokens=2,model=m," + where
	if got := formatAttributes(span.Attributes()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}

	common := "gen_ai.operation.name=chat,gen_ai.provider.name=openai,gen_ai.request.model=m,"
	wantPoints := strings.Join([]string{
		"gen_ai.client.operation.duration s " + common + "gen_ai.response.model=m-1," + where + " 1",
		"gen_ai.client.operation.time_to_first_chunk s " + common + where + " 1",
		"gen_ai.client.token.usage {token} " + common + "gen_ai.response.model=m-1,gen_ai.token.type=input," + where + " 1 3",
		"gen_ai.client.token.usage {token} " + common + "gen_ai.response.model=m-1,gen_ai.token.type=output," + where + " 1 2",
	}, "\n")
	if got := strings.Join(r.points(t), "\n"); got != wantPoints {
		t.Errorf("got\n%s\nwant\n%s", got, wantPoints)
	}
}

func TestSpanOfAFailureHasNothingThatTheEndpointSaid(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx    context.Context
		code   int
		body   string
		want   string
		public string
	}{
		"status":    {t.Context(), 401, "CANARY", "401", publicCredentials},
		"truncated": {t.Context(), 200, eventStream(textChunk("a")), "upstream_truncated", publicTruncated},
		"nonsense":  {t.Context(), 200, "<CANARY>", "model_error", publicNonsense},
		"cancelled": {cancelled, 200, "", "cancelled", "The call was cancelled."},
	} {
		r, cfg := newRecorder(Config{})
		_, m := newEndpoint(t, cfg, replyStatus(c.code, c.body))
		if _, err := llmtest.Collect(c.ctx, m, testRequest); err == nil {
			t.Fatalf("%s: got no error, want one", name)
		}
		span := r.spans.Ended()[0]
		if span.Status().Code != codes.Error || span.Status().Description != c.public || len(span.Events()) != 1 {
			t.Errorf("%s: got status %v and events %v, want %q and one event", name, span.Status(), span.Events(), c.public)
		}
		if !strings.Contains(formatAttributes(span.Attributes()), "error.type="+c.want+",") {
			t.Errorf("%s: got attributes %s, want error.type=%s", name, formatAttributes(span.Attributes()), c.want)
		}
		all := fmt.Sprint(formatAttributes(span.Attributes()), span.Status(), span.Events(), r.points(t))
		if strings.Contains(all, "CANARY") {
			t.Errorf("%s: got what the endpoint said in %s, want none of it", name, all)
		}
		if points := strings.Join(r.points(t), "\n"); !strings.Contains(points, "error.type="+c.want) {
			t.Errorf("%s: got points %s, want error.type=%s", name, points, c.want)
		}
	}
}

// Callers ask for any model and endpoints answer with any status and model: only those of the
// configuration are named, so there are few series.
func TestMetricsNameConfiguredModelsOnly(t *testing.T) {
	r, cfg := newRecorder(Config{MetricModels: []string{"m"}})
	_, m := newEndpoint(t, cfg, replyStatus(404, ""), replyStatus(599, ""), sendStream(helloStream), sendStream(helloStream))
	for _, model := range []string{"random-1", "random-2", "random-3", "m"} {
		_, _ = llmtest.Collect(t.Context(), m, llm.Request{Model: model})
	}

	points := strings.Join(r.points(t), "\n")
	for _, bad := range []string{"random-", "m-1", "error.type=599"} {
		if strings.Contains(points, bad) {
			t.Errorf("got %q in the points, want it replaced by _other:\n%s", bad, points)
		}
	}

	for _, want := range []string{"gen_ai.request.model=_other,gen_ai.response.model=_other", "gen_ai.request.model=m,gen_ai.response.model=_other", "error.type=404", "error.type=_other"} {
		if !strings.Contains(points, want) {
			t.Errorf("got no point with %q:\n%s", want, points)
		}
	}
}

func TestMetricsCountNoErrorWhenTheConsumerStops(t *testing.T) {
	r, cfg := newRecorder(Config{})
	_, m := newEndpoint(t, cfg, sendStream(helloStream))
	for range m.Stream(t.Context(), testRequest) {
		break
	}
	if span := r.spans.Ended()[0]; span.Status().Code != codes.Unset {
		t.Errorf("got status %v, want it unset", span.Status())
	}
}
