package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"answerd/internal/auth/authtest"
	"answerd/internal/demo"
	"answerd/internal/llm/llmtest"
)

// TestMain lets the test binary be answerd itself, or a NATS server, for the tests that
// need a process of its own.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(natsDir) != "":
		serveNATS(os.Getenv(natsDir), os.Getenv(natsPort))
		return
	case os.Getenv("TEST_AS_ANSWERD") != "":
		main()
		return
	}
	// The tests that run in parallel wait for processes most of the time.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// testWorld has the services that answerd needs, all of them real and on loopback.
type testWorld struct {
	model  *llmtest.Endpoint
	iam    *demoService
	tools  *demoService
	tokens atomic.Int64 // token requests that the IAM saw
	lines  *syncBuffer  // what the MCP server logged
}

const clientSecret = "canary-client-secret"

func newTestWorld(t testing.TB, script llmtest.Script) *testWorld {
	t.Helper()
	w := &testWorld{model: llmtest.New(t, script), lines: &syncBuffer{}}
	logger := slog.New(slog.NewJSONHandler(w.lines, nil))
	w.iam = startTestService(t, func(url string) (http.Handler, func(), error) {
		h, err := demo.NewIAM(demo.IAMConfig{Issuer: url, ClientID: demoClient, ClientSecret: clientSecret, Key: authtest.RSAKey(), Logger: logger})
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				w.tokens.Add(1)
			}
			h.ServeHTTP(rw, r)
		}), noRelease, err
	})
	w.tools = startTestService(t, buildMCPServer(w.iam.url, true, logger))
	return w
}

func startTestService(t testing.TB, build serviceBuilder) *demoService {
	t.Helper()
	p, err := startDemoService("127.0.0.1:0", build)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stopService)
	return p
}

// environment returns the settings of a production service in this world; more come in pairs.
func (w *testWorld) environment(more ...string) environment {
	return newTestEnvironment(append([]string{
		"ADDR", "127.0.0.1:0", "LLM_BASE_URL", w.model.URL, "LLM_API_KEY", "canary-api-key", "DEFAULT_MODEL_ID", "scripted",
		"MCP_URL", w.tools.url + demo.MCPPath, "ENABLE_JWT_TOKEN", "true", "IAM_BASE_URL", w.iam.url,
		"IAM_CLIENT_ID", demoClient, "IAM_CLIENT_SECRET", clientSecret,
	}, more...)...)
}

// service is a running answerd.
type service struct {
	url  string
	log  *syncBuffer
	stop context.CancelFunc
	done chan error // what run returned
}

// startAnswerd runs answerd as main does, until the test ends.
func startAnswerd(t *testing.T, environ environment) *service {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &service{log: &syncBuffer{}, stop: cancel, done: make(chan error, 1)}
	read, write := io.Pipe()
	go func() {
		err := run(ctx, nil, environ, io.Discard, io.MultiWriter(write, s.log))
		write.Close()
		s.done <- err
		close(s.done)
	}()
	addr := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(read); lines.Scan(); {
			var line struct{ Msg, Addr string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" {
				addr <- line.Addr
			}
		}
		close(addr)
	}()
	a, ok := <-addr
	if !ok {
		t.Fatalf("answerd did not start: %v, want its address", <-s.done)
	}
	s.url = "http://" + a
	t.Cleanup(func() {
		cancel()
		<-s.done
	})
	return s
}

// syncBuffer collects what is written from several goroutines.
type syncBuffer struct {
	mu sync.Mutex // guards b
	b  strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// newClient returns a client of its own for every test, so that no connection outlives the test.
func newClient(t testing.TB) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 128
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func post(t testing.TB, c *http.Client, url, body string, header ...string) *http.Response {
	t.Helper()
	return sendRequest(t, c, http.MethodPost, url, strings.NewReader(body), append(header, "Content-Type", "application/json"))
}

// get sends a GET, with headers in pairs.
func get(t testing.TB, c *http.Client, url string, header ...string) *http.Response {
	t.Helper()
	return sendRequest(t, c, http.MethodGet, url, nil, header)
}

func sendRequest(t testing.TB, c *http.Client, method, url string, body io.Reader, header []string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// getBody returns the status and the body of a GET.
func getBody(t testing.TB, c *http.Client, url string, header ...string) (int, string) {
	t.Helper()
	resp := get(t, c, url, header...)
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}
