package telemetry

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"answerd/internal/telemetry/otlptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collector is an OTLP/HTTP receiver on loopback that keeps what it is sent.
type collector struct {
	*httptest.Server
	mu      sync.Mutex // protects the fields below
	spans   []otlptest.Span
	headers http.Header // of the last export
}

func newCollector(t testing.TB) *collector {
	t.Helper()
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("reading an export: %v", err)
		}
		spans, err := otlptest.Decode(body)
		if err != nil {
			t.Errorf("decoding an export: %v", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.headers = r.Header.Clone()
		c.spans = append(c.spans, spans...)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) endpoint() string { return c.URL + "/v1/traces" }

// onlySpan is the one span of that name that came in.
func (c *collector) onlySpan(t *testing.T, name string) otlptest.Span {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []otlptest.Span
	for _, s := range c.spans {
		if s.Name == name {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		t.Fatalf("got %d spans %q among %d, want 1", len(found), name, len(c.spans))
	}
	return found[0]
}

// newTelemetry makes a Telemetry that is shut down with the test.
func newTelemetry(t testing.TB, c Config) *Telemetry {
	t.Helper()
	tel, err := New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	// t.Context has ended by then, so nothing that hangs holds the test up.
	t.Cleanup(func() { _ = tel.Shutdown(t.Context()) })
	return tel
}

// serveHandler runs h and gives its URL and a client, both gone with the test.
func serveHandler(t testing.TB, h http.Handler) (string, *http.Client) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL, s.Client()
}

// fetchBody asks for url with headers ("k", "v", …) and returns the whole body.
func fetchBody(t testing.TB, client *http.Client, url string, headers ...string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
