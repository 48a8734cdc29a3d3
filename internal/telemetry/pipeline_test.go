package telemetry

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// newHangingCollector serves a collector that takes every export and never answers. busy is closed
// when the first one is there.
func newHangingCollector(t *testing.T) (endpoint string, busy chan struct{}) {
	busy = make(chan struct{})
	var first atomic.Bool
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if first.CompareAndSwap(false, true) {
			close(busy)
		}
		select {
		case <-r.Context().Done():
		case <-release:
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(release) })
	// Neither time-out may end the hanging while the test looks at it.
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")
	t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "3600000")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
	return s.URL + "/v1/traces", busy
}

// While the collector hangs, requests are answered as usual; at most QueueSize spans wait,
// and every further one is counted.
func TestCollectorThatHangsDelaysNoSpan(t *testing.T) {
	endpoint, busy := newHangingCollector(t)
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
	const places, requests = 32, 200
	tel := newTelemetry(t, Config{Tracing: true, Endpoint: endpoint, QueueSize: places})
	url, client := serveHandler(t, tel.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil))
	for range requests {
		fetchBody(t, client, url+"/answer")
	}
	<-busy
	if got, want := tel.droppedSpans(t, "queue_full"), float64(requests-places); got != want {
		t.Errorf("got %v spans dropped, want %v", got, want)
	}
}

func TestShutdownEndsWithAHangingCollector(t *testing.T) {
	endpoint, busy := newHangingCollector(t)
	tel := newTelemetry(t, Config{Tracing: true, Endpoint: endpoint})
	_, span := tel.Tracer("test").Start(t.Context(), "work")
	span.End()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-busy; cancel() }()
	// goleak sees that the exporting goroutine is gone, too.
	err := tel.Shutdown(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v, want that it was cut short", err)
	}
	if again := tel.Shutdown(t.Context()); !errors.Is(again, err) {
		t.Errorf("second Shutdown: %v, want the first one's error", again)
	}
}

// A collector that refuses is one line in the log, without what it wrote, and
// another line when it takes spans again.
func TestCollectorOutageIsOneLogLine(t *testing.T) {
	var up atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			http.Error(w, "CANARY", http.StatusForbidden)
		}
	}))
	defer s.Close()

	var log bytes.Buffer
	tel := newTelemetry(t, Config{
		Tracing: true, Endpoint: s.URL + "/v1/traces", Headers: OCIHeaders("KEY"), QueueSize: 1,
		Logger: slog.New(slog.NewJSONHandler(&log, nil)),
	})

	export := func() {
		_, span := tel.Tracer("test").Start(t.Context(), "work")
		span.End()
		if err := tel.traces.provider.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	export()
	export()
	if got := tel.droppedSpans(t, "export_failed"); got != 2 {
		t.Errorf("got %v spans counted as lost, want 2", got)
	}
	up.Store(true)
	export()
	export()
	if got := tel.droppedSpans(t, "queue_full"); got != 0 {
		t.Errorf("got %v spans dropped, want none while the queue has space", got)
	}
	if got := strings.Count(log.String(), "\n"); got != 2 {
		t.Errorf("got %d lines, want 2", got)
	}

	for _, want := range []string{"403 Forbidden", "do not reach", "reach the collector again"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}

	for _, secret := range []string{"CANARY", "KEY"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("got %q in the log, want no secret", secret)
		}
	}

	if t.Failed() {
		t.Log(log.String())
	}
}

// A redirect would take the data key to another host.
func TestCollectorRedirectIsNotFollowed(t *testing.T) {
	var stolen atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stolen.Add(1) }))
	defer other.Close()
	s := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer s.Close()
	tel := newTelemetry(t, Config{Tracing: true, Endpoint: s.URL + "/v1/traces", Headers: map[string]string{"x-key": "KEY"}})
	_, span := tel.Tracer("test").Start(t.Context(), "work")
	span.End()
	if err := tel.traces.provider.ForceFlush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := stolen.Load(); n != 0 {
		t.Errorf("got %d requests at the other host, want none", n)
	}
	if got := tel.droppedSpans(t, "export_failed"); got != 1 {
		t.Errorf("got %v spans counted as lost, want 1", got)
	}
}

// Enabled without an endpoint is a start-up error, and so is an endpoint
// that the exporter would quietly change.
func TestEndpointThatIsUnusableIsRefused(t *testing.T) {
	key := OCIHeaders("CANARY")
	for _, c := range []struct {
		endpoint string
		headers  map[string]string
		want     string
	}{
		{"", nil, "ENABLE_TRACING"},
		{"", nil, "OCI_APM_TRACES_URL"},
		{"collector:4318", nil, "http://"},
		{"://", nil, "not a URL"},
		{"http:///v1/traces", nil, "no host"},
		{"https://u:CANARY@collector/v1/traces", nil, "credentials go into headers"},
		{"https://collector/v1/traces?key=CANARY", nil, "no user, query or fragment"},
		{"http://collector:4318/v1/traces", key, "must be https"},
	} {
		tel, err := New(t.Context(), Config{Tracing: true, Endpoint: c.endpoint, Headers: c.headers})
		if err == nil {
			_ = tel.Shutdown(t.Context())
			t.Errorf("got no error for the endpoint %q, want one", c.endpoint)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%q: got %v, want %q in it and no secret", c.endpoint, err, c.want)
		}
	}
	for _, endpoint := range []string{"https://collector/x", "http://127.0.0.1:1/x", "http://[::1]:1", "http://localhost:1"} {
		newTelemetry(t, Config{Tracing: true, Endpoint: endpoint, Headers: key})
	}
	newTelemetry(t, Config{Tracing: true, Endpoint: "http://jaeger:4318/v1/traces"})
}

func TestResourceErrorNamesItsSetting(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "no-equals-sign")
	if _, err := New(t.Context(), Config{}); err == nil || !strings.Contains(err.Error(), "OTEL_RESOURCE_ATTRIBUTES") {
		t.Errorf("New: %v, want an error that names the setting", err)
	}
}
