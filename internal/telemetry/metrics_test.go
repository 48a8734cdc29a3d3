package telemetry

import (
	"net/http/httptest"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// page is what Prometheus would read.
func (t *Telemetry) page(tb testing.TB) map[string]*dto.MetricFamily {
	tb.Helper()
	w := httptest.NewRecorder()
	t.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(w.Body)
	if err != nil || w.Code != 200 {
		tb.Fatalf("the metrics page, status %d: %v", w.Code, err)
	}
	return families
}

func (t *Telemetry) dropped(tb testing.TB, reason string) float64 {
	tb.Helper()
	for _, m := range t.page(tb)["answerd_trace_spans_dropped_total"].GetMetric() {
		for _, l := range m.Label {
			if l.GetName() == "reason" && l.GetValue() == reason {
				return m.Counter.GetValue()
			}
		}
	}
	tb.Fatalf("no count of spans dropped for %s", reason)
	return 0
}

func TestMetricsPageShowsInstrumentsAndProcess(t *testing.T) {
	tel := start(t, Config{})
	m := tel.Meter("test")
	seconds, err := m.Float64Histogram("answerd.run.duration", metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(1, 2)) // ours win
	if err != nil {
		t.Fatal(err)
	}
	used, err := m.Int64Histogram("gen_ai.client.token.usage", metric.WithUnit("{token}"))
	if err != nil {
		t.Fatal(err)
	}
	seconds.Record(t.Context(), 0.0011, metric.WithAttributes(attribute.String("status", "completed")))
	used.Record(t.Context(), 12)

	page := tel.page(t)
	for _, name := range []string{"go_goroutines", "process_open_fds", "target_info"} {
		if page[name] == nil {
			t.Errorf("the page lacks %s", name)
		}
	}
	run := page["answerd_run_duration_seconds"].GetMetric()
	if len(run) != 1 {
		t.Fatalf("%d run durations, want 1", len(run))
	}
	buckets := run[0].Histogram.Bucket // the last one is +Inf
	if first, last := buckets[0].GetUpperBound(), buckets[len(buckets)-2].GetUpperBound(); first != 0.001 || last != 120 {
		t.Errorf("durations from %v to %v s, want 0.001 to 120", first, last)
	}
	if got := buckets[1].GetCumulativeCount(); got != 1 {
		t.Errorf("1.1 ms is not in the second bucket")
	}
	if b := page["gen_ai_client_token_usage"].GetMetric()[0].Histogram.Bucket; b[1].GetUpperBound() != 4 {
		t.Errorf("tokens have a bucket to %v, want 4", b[1].GetUpperBound())
	}
}

// A label that outsiders choose must not fill the memory.
func TestLabelSetsAreBounded(t *testing.T) {
	tel := start(t, Config{})
	c, err := tel.Meter("test").Int64Counter("answerd.hostile")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		c.Add(t.Context(), 1, metric.WithAttributes(attribute.Int("who", i)))
	}
	if n := len(tel.page(t)["answerd_hostile_total"].GetMetric()); n > 2000 {
		t.Errorf("%d label sets, want 2000 at most", n)
	}
}

func TestTelemetriesLiveSideBySide(t *testing.T) {
	a, b := start(t, Config{}), start(t, Config{})
	c, err := a.Meter("test").Int64Counter("answerd.mine")
	if err != nil {
		t.Fatal(err)
	}
	c.Add(t.Context(), 1)
	for name := range b.page(t) {
		if strings.Contains(name, "mine") {
			t.Error("one's metrics are on the other's page")
		}
	}
}
