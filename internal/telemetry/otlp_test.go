package telemetry

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"answerd/internal/telemetry/otlptest"
)

// signalCollector is a collector of metrics and logs.
type signalCollector struct {
	*httptest.Server
	mu      sync.Mutex // protects the fields below
	metrics []string
	records []otlptest.Record
	failing bool
}

func newSignalCollector(t *testing.T) *signalCollector {
	t.Helper()
	c := &signalCollector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("reading an export: %v", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.failing {
			http.Error(w, "CANARY", http.StatusBadRequest)
			return
		}
		switch r.URL.Path {
		case "/v1/metrics":
			names, err := otlptest.DecodeMetrics(body)
			if err != nil {
				t.Errorf("decoding metrics: %v", err)
			}
			c.metrics = append(c.metrics, names...)
		case "/v1/logs":
			records, err := otlptest.DecodeLogs(body)
			if err != nil {
				t.Errorf("decoding a log: %v", err)
			}
			c.records = append(c.records, records...)
		default:
			t.Errorf("got an export at %s, want /v1/metrics or /v1/logs", r.URL.Path)
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// newExportingTelemetry returns a Telemetry that exports metrics and the log to c, and its logger, which writes to w.
func newExportingTelemetry(t *testing.T, c *signalCollector, w io.Writer) (*Telemetry, *slog.Logger) {
	t.Helper()
	logger, err := NewLogger(w, "info", false)
	if err != nil {
		t.Fatal(err)
	}
	tel, err := New(t.Context(), Config{ServiceName: "test", Logger: logger, MetricsEndpoint: c.URL + "/v1/metrics", LogsEndpoint: c.URL + "/v1/logs"})
	if err != nil {
		t.Fatal(err)
	}
	return tel, logger
}

func TestMetricsAreExportedBesideThePage(t *testing.T) {
	c := newSignalCollector(t)
	tel, _ := newExportingTelemetry(t, c, io.Discard)
	counter, err := tel.Meter("test").Int64Counter("answerd.test")
	if err != nil {
		t.Fatal(err)
	}

	counter.Add(t.Context(), 1)
	page := httptest.NewRecorder()
	tel.Metrics().ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if !strings.Contains(page.Body.String(), "answerd_test_total 1") {
		t.Errorf("got the page %s, want the counter on it", page.Body)
	}
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(c.metrics, "answerd.test") {
		t.Errorf("got metrics %q, want answerd.test among them", c.metrics)
	}
}

// The collector gets what the log has: the level, the message, the ids and everything else, with secrets
// replaced.
func TestLogIsExportedWithItsIDs(t *testing.T) {
	c := newSignalCollector(t)
	var lines bytes.Buffer
	tel, logger := newExportingTelemetry(t, c, &lines)
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	var ctx context.Context
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	request.Header.Set("Traceparent", "00-"+id+"-00f067aa0ba902b7-01")
	tel.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { ctx = r.Context() }), func(*http.Request) string { return "/" }).ServeHTTP(httptest.NewRecorder(), request)
	logger.With("run_id", "run_1").WithGroup("g").InfoContext(ctx, "run ended", "steps", 2, "rate", 0.5, "ok", true, "api_key", "CANARY")
	logger.Debug("not logged")
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(c.records) != 1 || strings.Count(lines.String(), "\n") != 1 {
		t.Fatalf("got records %+v and lines %s, want one of each", c.records, &lines)
	}
	r := c.records[0]
	if r.TraceID != id || r.Severity != "INFO" || r.Body != "run ended" || r.Attributes["run_id"] != "run_1" || r.Resource["service.name"] != "test" {
		t.Errorf("got %+v, want the trace %s, the run, the level and the message", r, id)
	}
	if g := r.Attributes["g"]; g != `{"api_key":"[redacted]","ok":true,"rate":0.5,"steps":2}` {
		t.Errorf("got the group %s, want its values without the secret", g)
	}
}

// A collector that refuses exports is reported once for each signal, without what it said.
func TestOutageOfACollectorIsLoggedOnce(t *testing.T) {
	c := newSignalCollector(t)
	c.failing = true
	var lines syncLines

	tel, logger := newExportingTelemetry(t, c, &lines)
	for range 3 {
		logger.Info("line")
		if err := tel.logsExport.provider.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := tel.meters.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	_ = tel.Shutdown(t.Context())
	for _, message := range []string{"logs do not reach the collector", "metrics do not reach the collector"} {
		if n := strings.Count(lines.String(), message); n != 1 {
			t.Errorf("got %q %d times, want it once:\n%s", message, n, lines.String())
		}
	}

	if strings.Contains(lines.String(), "CANARY") {
		t.Errorf("got %s, want it without what the collector said", lines.String())
	}
}

// A collector that does not answer does not keep the process from ending.
func TestShutdownDoesNotWaitForASilentCollector(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer silent.Close()
	tel, logger := newExportingTelemetry(t, &signalCollector{Server: silent}, io.Discard)
	logger.Info("line")
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := tel.Shutdown(ctx); err == nil {
		t.Error("got no error, want one that says what was lost")
	}
}

func TestEndpointsOfMetricsAndLogsAreChecked(t *testing.T) {
	logger, err := NewLogger(io.Discard, "info", false)
	if err != nil {
		t.Fatal(err)
	}
	for signal, c := range map[string]Config{"metrics": {MetricsEndpoint: "collector:4318", Logger: logger}, "logs": {LogsEndpoint: "collector:4318", Logger: logger}} {
		if tel, err := New(t.Context(), c); err == nil || !strings.Contains(err.Error(), "OTEL_EXPORTER_OTLP_"+strings.ToUpper(signal)+"_ENDPOINT") {
			t.Errorf("%s: got error %v, want one that names the setting", signal, err)
			if tel != nil {
				_ = tel.Shutdown(t.Context())
			}
		}
	}
}

// syncLines collects lines that are written from several goroutines.
type syncLines struct {
	mu sync.Mutex // protects b
	b  bytes.Buffer
}

func (l *syncLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *syncLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
