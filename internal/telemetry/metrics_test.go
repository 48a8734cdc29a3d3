package telemetry

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// metricsPage is what Prometheus would read.
func (t *Telemetry) metricsPage(tb testing.TB) string {
	tb.Helper()
	w := httptest.NewRecorder()
	t.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		tb.Fatalf("the metrics page has status %d, want 200", w.Code)
	}
	return w.Body.String()
}

// sample is a line of the page.
type sample struct {
	labels string // {status="completed",le="1"}
	value  float64
}

// parseSamples returns the lines of one name, in order.
func (t *Telemetry) parseSamples(tb testing.TB, name string) (all []sample) {
	tb.Helper()
	for line := range strings.Lines(t.metricsPage(tb)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		i := strings.LastIndexByte(rest, ' ')
		value, err := strconv.ParseFloat(strings.TrimSpace(rest[i:]), 64)
		if err != nil {
			tb.Fatalf("line %q: %v", line, err)
		}
		all = append(all, sample{rest[:i], value})
	}
	return all
}

func (t *Telemetry) droppedSpans(tb testing.TB, reason string) float64 {
	tb.Helper()
	for _, s := range t.parseSamples(tb, "answerd_trace_spans_dropped_total") {
		if strings.Contains(s.labels, `reason="`+reason+`"`) {
			return s.value
		}
	}
	tb.Fatalf("no count of spans dropped for %s, want one", reason)
	return 0
}

func TestMetricsPageShowsInstrumentsAndProcess(t *testing.T) {
	tel := newTelemetry(t, Config{})
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

	for _, name := range []string{"go_goroutines", "process_open_fds", "target_info"} {
		if len(tel.parseSamples(t, name)) != 1 {
			t.Errorf("got a page without %s, want it", name)
		}
	}
	if n := len(tel.parseSamples(t, "answerd_run_duration_seconds_count")); n != 1 {
		t.Fatalf("got %d run durations, want 1", n)
	}
	buckets := tel.parseSamples(t, "answerd_run_duration_seconds_bucket") // the last one is +Inf
	first, last := buckets[0].labels, buckets[len(buckets)-2].labels
	if !strings.Contains(first, `le="0.001"`) || !strings.Contains(last, `le="120"`) {
		t.Errorf("durations from %s to %s, want 0.001 to 120 s", first, last)
	}
	if got := buckets[1].value; got != 1 {
		t.Errorf("the second bucket has %v, want the 1.1 ms", got)
	}
	if b := tel.parseSamples(t, "gen_ai_client_token_usage_bucket"); !strings.Contains(b[1].labels, `le="4"`) {
		t.Errorf("the second bucket of tokens is %s, want to 4", b[1].labels)
	}
}

// A label that outsiders choose must not fill the memory.
// brokenWriter is the response to a client that has left.
type brokenWriter struct{ *httptest.ResponseRecorder }

func (brokenWriter) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// A scrape that was cut is no fault of the service.
func TestMetricsPageLogsNoErrorWhenTheClientLeaves(t *testing.T) {
	var log bytes.Buffer
	tel := newTelemetry(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	tel.Metrics().ServeHTTP(brokenWriter{httptest.NewRecorder()}, httptest.NewRequest("GET", "/metrics", nil))
	if log.Len() > 0 {
		t.Errorf("got the log %.300s, want none", &log)
	}
}

func TestMetricsBoundTheirLabelSets(t *testing.T) {
	tel := newTelemetry(t, Config{})
	c, err := tel.Meter("test").Int64Counter("answerd.hostile")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		c.Add(t.Context(), 1, metric.WithAttributes(attribute.Int("who", i)))
	}
	if n := len(tel.parseSamples(t, "answerd_hostile_total")); n > maxLabelSets {
		t.Errorf("got %d label sets, want at most %d", n, maxLabelSets)
	}
}

func TestTelemetryInstancesAreIndependent(t *testing.T) {
	a, b := newTelemetry(t, Config{}), newTelemetry(t, Config{})
	c, err := a.Meter("test").Int64Counter("answerd.mine")
	if err != nil {
		t.Fatal(err)
	}
	c.Add(t.Context(), 1)
	if strings.Contains(b.metricsPage(t), "mine") {
		t.Error("got the metrics of one Telemetry on the page of another, want them apart")
	}
}
