package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/api"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
	"answerd/internal/sse"
)

func TestMain(m *testing.M) {
	// The tests that run in parallel wait for readers and time limits most of the time.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// service is the API over a whole agent, on a socket.
type service struct {
	*agenttest.Fixture
	*httptest.Server
	handler *api.Handler
}

func newService(t *testing.T, script llmtest.Script, set func(*agent.Options), options func(*api.Options), configure ...func(*config.Server)) *service {
	t.Helper()
	s := &service{Fixture: agenttest.NewFixture(t, script, set, configure...)}
	o := api.Options{Agent: s.Agent, Log: s.Log, AllowedHosts: []string{"127.0.0.1"}, Heartbeat: time.Hour}
	if options != nil {
		options(&o)
	}
	s.handler = api.New(o)
	s.Server = httptest.NewServer(s.handler)
	t.Cleanup(func() {
		// Runs end first, as in production: a follower leaves when its run has ended.
		over, stop := context.WithCancel(context.Background())
		stop()
		s.Drain(over)
		s.handler.Close(over)
		s.Server.Close()
	})
	return s
}

// do sends a request with a JSON body, unless body is "". Headers come in pairs.
func (s *service) do(t *testing.T, method, path, body string, header ...string) *http.Response {
	t.Helper()
	return s.doContext(t.Context(), t, method, path, body, header...)
}

func (s *service) doContext(ctx context.Context, t *testing.T, method, path, body string, header ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// decodeResponse reads a JSON response of that status.
func decodeResponse[T any](t *testing.T, resp *http.Response, status int) T {
	t.Helper()
	var v T
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != status {
		t.Fatalf("status %d, want %d: %s", resp.StatusCode, status, b)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return v
}

// problem is what a refused caller reads.
type problem struct {
	Type, Title, Detail, Instance, Code string
	Status                              int
	Errors                              []struct{ Pointer, Detail string }
}

// wantProblem checks that resp is a problem of that code and status.
func wantProblem(t *testing.T, resp *http.Response, status int, code string) problem {
	t.Helper()
	if got := resp.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("content type %s, want application/problem+json", got)
	}
	p := decodeResponse[problem](t, resp, status)
	if p.Code != code || p.Status != status || p.Detail == "" || p.Title == "" || p.Instance == "" {
		t.Errorf("problem %+v, want Code %q, Status %d, Detail non-empty, Title non-empty, Instance non-empty", p, code, status)
	}
	return p
}

// fillQueue fills the queue of a service whose places are taken: a hundred questions wait until the test
// ends. Who comes later is refused at once, instead of after ten seconds.
func (s *service) fillQueue(t *testing.T) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	const questions = 101
	answers := make(chan *http.Response, questions)

	var asking sync.WaitGroup
	t.Cleanup(func() {
		leave()
		asking.Wait()
	})

	for range questions {
		asking.Go(func() {
			req, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/answer", strings.NewReader(question))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := s.Client().Do(req)
			if err != nil {
				return // the test has ended
			}
			resp.Body.Close()
			answers <- resp
		})
	}

	select {
	case resp := <-answers:
		if resp.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("the first of %d questions was answered with %s, want 503", questions, resp.Status)
		}
	case <-boundedContext(t).Done():
		t.Fatalf("none of %d questions was answered, want one refused", questions)
	}
}

// readFrames reads a stream to its end, or to the first event named until.
func readFrames(t *testing.T, resp *http.Response, until string) []sse.Frame {
	t.Helper()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("no stream: %d %s, Content-Type %q, want 200 and text/event-stream", resp.StatusCode, b, resp.Header.Get("Content-Type"))
	}
	var out []sse.Frame
	r := sse.NewReader(bufio.NewReader(resp.Body), 1<<20)
	for {
		f, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Data = append([]byte(nil), f.Data...)
		out = append(out, f)
		if until != "" && f.Event == until {
			return out
		}
	}
}

func eventNames(frames []sse.Frame) string {
	var out []string
	for _, f := range frames {
		out = append(out, f.Event)
	}
	return strings.Join(out, " ")
}

const question = `{"question":"What is 1 + 2?"}`

// addingModel returns a model that calls add once and then answers.
func addingModel() llmtest.Script {
	return llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Says("It is ", "3."))
}

// waitingModel returns a model that begins to answer, waits, and ends when open is closed.
func waitingModel(open <-chan struct{}) llmtest.Script {
	return llmtest.Turns(func(w http.ResponseWriter, r *http.Request) {
		llmtest.Stream(w, "", map[string]any{"content": "Wait"})
		select {
		case <-open:
			_, _ = io.WriteString(w, `data: {"choices":[{"delta":{"content":"."},"finish_reason":"stop"}]}`+"\n\n")
		case <-r.Context().Done():
		}
	})
}

// pipeListener is a listener without sockets, so that the time of its connections is the
// bubble's.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) Close() error {
	close(p.done)
	return nil
}

func (p *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// serveOverPipes serves h without sockets until the test ends, and returns a function that connects to it.
func serveOverPipes(t *testing.T, h http.Handler) (dial func() net.Conn) {
	t.Helper()
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: h, Protocols: &protocols}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Close()
		<-served
	})
	return func() net.Conn {
		client, conn := net.Pipe()
		l.conns <- conn
		return client
	}
}
