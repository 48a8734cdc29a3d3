package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/admission"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/usage"
	"answerd/internal/api"
)

// A page of an allowed origin can read why it was refused, also where the refusal needs nothing of its request.
func TestCORSHeadersAreInEveryRefusal(t *testing.T) {
	t.Parallel()
	const origin = "https://app.example"
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.CORSOrigins = []string{origin} })
	full := httptest.NewUnstartedServer(s.handler)
	full.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return api.OverLimit(ctx) }
	full.Start()
	defer full.Close()
	for _, c := range []struct {
		url, host string
		status    int
		closed    bool
	}{{s.URL, "evil.example", 421, false}, {full.URL, "127.0.0.1", 503, true}} {
		for method, status := range map[string]int{"POST": c.status, "OPTIONS": 204} {
			req, err := http.NewRequestWithContext(t.Context(), method, c.url+"/answer", strings.NewReader(question))
			if err != nil {
				t.Fatal(err)
			}
			req.Host = c.host
			req.Header = http.Header{"Content-Type": {"application/json"}, "Origin": {origin}, "Access-Control-Request-Method": {"POST"}}
			resp, err := s.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if got := resp.Header.Get("Access-Control-Allow-Origin"); resp.StatusCode != status || got != origin || resp.Close != c.closed {
				t.Errorf("%s to %s: got %s, Access-Control-Allow-Origin %q, closed %t, want %d, %q, %t", method, c.host, resp.Status, got, resp.Close, status, origin, c.closed)
			}
		}
	}
}

// F38
func TestIdempotencyKeyMakesAHundredRequestsOneRun(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	var all sync.WaitGroup
	runs := make([]string, 100)
	for i := range runs {
		all.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/answer", strings.NewReader(question))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Idempotency-Key", "k")
			resp, err := s.Client().Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			var a answer
			if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || resp.StatusCode != 200 {
				t.Errorf("%s: %v, want status 200, no error", resp.Status, err)
			}
			runs[i] = a.RunID
		})
	}

	all.Wait()
	for _, run := range runs {
		if run != runs[0] || run == "" {
			t.Errorf("%s beside %s, want run %s, run non-empty", run, runs[0], runs[0])
		}
	}

	if n := len(s.Model.Requests()); n != 2 {
		t.Errorf("%d model requests, want 2", n)
	}
}

// closeCounter counts the connections that a server has closed.
type closeCounter struct {
	mu     sync.Mutex // protects closed
	closed int
	target int
	done   chan struct{} // closed when the target is reached
}

func (c *closeCounter) countClosed(_ net.Conn, s http.ConnState) {
	if s != http.StateClosed {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed++; c.closed == c.target {
		close(c.done)
	}
}

// F31: a thousand readers that vanish at once leave nothing behind (goroutines are
// TestMain's to count), and the run that they read goes on for the one who stays.
func TestStreamsDroppedAtOnceLeaveNothingBehind(t *testing.T) {
	const readers = 1000
	open := make(chan struct{})
	fixture := agenttest.NewFixture(t, waitingModel(open), nil)
	gone := &closeCounter{target: readers, done: make(chan struct{})}
	server := httptest.NewUnstartedServer(api.New(api.Options{Agent: fixture.Agent, Log: fixture.Log, Heartbeat: time.Hour}))
	server.Config.ConnState = gone.countClosed
	server.Start()
	t.Cleanup(server.Close)
	s := &service{Fixture: fixture, Server: server}
	stays := s.do(t, "POST", "/answer/stream", question)
	seen := readFrames(t, stays, "text_delta")
	run, _, _ := strings.Cut(seen[0].ID, ":")

	files := countOpenFiles(t)
	conns := make([]net.Conn, readers)
	for i := range conns {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c
		if _, err := fmt.Fprintf(c, "GET /runs/%s/events HTTP/1.1\r\nHost: localhost\r\n\r\n", run); err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(c); lines.Scan() && lines.Text() != "event: text_delta"; {
		}
	}
	for _, c := range conns {
		_ = c.(*net.TCPConn).SetLinger(0) // a reset, and not an orderly close
		c.Close()
	}
	<-gone.done
	if now := countOpenFiles(t); now > files+5 {
		t.Errorf("%d files are open, and %d were, want at most %d", now, files, files+5)
	}
	close(open)
	if rest := readFrames(t, stays, ""); len(rest) == 0 || rest[len(rest)-1].Event != "final_answer" {
		t.Errorf("who stayed got %s, want at least 1, Event final_answer", eventNames(rest))
	}
	_, _ = io.Copy(io.Discard, stays.Body)
}

// countOpenFiles returns how many descriptors the process has, and 0 where that cannot be seen.
func countOpenFiles(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Log("descriptors are not counted here:", err)
	}
	return len(list)
}

// checkRetryAfter checks that a refusal asks the caller to come back within a minute.
func checkRetryAfter(t *testing.T, resp *http.Response) {
	t.Helper()
	if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err != nil || n < 1 || n > 60 {
		t.Errorf("Retry-After: %s, want 1 to 60", resp.Header.Get("Retry-After"))
	}
}

// startUntilFirstText starts a run as a stream and reads it up to the first text; there waitingModel waits.
func (s *service) startUntilFirstText(t *testing.T, header ...string) (run string) {
	t.Helper()
	resp := s.do(t, "POST", "/answer/stream", question, header...)
	seen := readFrames(t, resp, "text_delta")
	run, _, _ = strings.Cut(seen[0].ID, ":")
	return run
}

// requireTokens returns an option that makes the service require tokens, and a function that returns a caller's.
func requireTokens(t *testing.T) (set func(*api.Options), bearer func(subject string) string) {
	iam := newMint(t)
	v := iam.newVerifier(t, nil)
	return func(o *api.Options) { o.Verifier = v }, func(subject string) string { return iam.bearerToken(subject) }
}

func TestRunsAreBoundedPerCaller(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	set, bearer := requireTokens(t)
	var log bytes.Buffer
	s := newService(t, waitingModel(open), func(o *agent.Options) { o.MaxRunsPerCaller = 1 }, func(o *api.Options) {
		set(o)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})

	ada, bob := bearer("ada"), bearer("bob")
	s.startUntilFirstText(t, "Authorization", ada)

	for _, path := range []string{"/answer", "/answer/stream", "/tools/add/call"} {
		body := question
		if path == "/tools/add/call" {
			body = `{"args":{"a":1,"b":2}}`
		}
		resp := s.do(t, "POST", path, body, "Authorization", ada)
		wantProblem(t, resp, 429, "rate_limited")
		checkRetryAfter(t, resp)
	}

	if got := strings.Count(log.String(), `msg="request rejected" cause="This caller has too many runs in progress." subject=ada`); got != 1 {
		t.Errorf("%d lines name the subject, want 1:\n%s", got, &log)
	}
	s.startUntilFirstText(t, "Authorization", bob)
	close(open)
}

// Each API format has its own form of the refusal, with the same status.
func TestOpenAIFormatsReportRateLimits(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), func(o *agent.Options) { o.Rate = admission.Rate{N: 1, Per: time.Hour} }, nil)
	body := `{"model":"m","messages":[{"role":"user","content":"?"}]}`
	if resp := s.do(t, "POST", "/v1/chat/completions", body); resp.StatusCode != 200 {
		t.Fatalf("status %q, want 200", resp.Status)
	}
	resp := s.do(t, "POST", "/v1/chat/completions", body)
	checkRetryAfter(t, resp)
	e := decodeResponse[struct {
		Error struct{ Code, Message string }
	}](t, resp, 429)
	if e.Error.Code != "rate_limited" || e.Error.Message == "" {
		t.Errorf("e %+v, want Error.Code rate_limited, Error.Message non-empty", e)
	}
	wantProblem(t, s.do(t, "POST", "/answer", question), 429, "rate_limited")
}

// A request that repeats an Idempotency-Key is not new load. A request that is refused leaves its
// key unused.
func TestIdempotencyKeyRepeatNeedsNoAdmission(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	s := newService(t, waitingModel(open), func(o *agent.Options) { o.MaxRunsPerCaller = 1 }, nil)
	run := s.startUntilFirstText(t, "Idempotency-Key", "k")
	if again := s.startUntilFirstText(t, "Idempotency-Key", "k"); again != run {
		t.Errorf("%s beside %s, want %s", again, run, run)
	}
	wantProblem(t, s.do(t, "POST", "/answer", question, "Idempotency-Key", "other"), 429, "rate_limited")
	close(open)
	if resp := s.do(t, "GET", "/runs/"+run+"/events", ""); resp.StatusCode == http.StatusOK {
		readFrames(t, resp, "")
	}
	// Whoever reads the end may come back at once.
	decodeResponse[answer](t, s.do(t, "POST", "/answer", question, "Idempotency-Key", "other"), 200)
}

func TestAdmissionReportsShortMemory(t *testing.T) {
	s := newService(t, addingModel(), func(o *agent.Options) { o.MemoryShort = func() bool { return true } }, nil)
	resp := s.do(t, "POST", "/answer", question)
	if p := wantProblem(t, resp, 503, "overloaded"); p.Detail != "The service is short of memory at the moment." {
		t.Errorf(`problem %+v, want Detail "The service is short of memory at the moment."`, p)
	}
	checkRetryAfter(t, resp)
	if resp := s.do(t, "GET", "/healthz", ""); resp.StatusCode != 200 {
		t.Errorf("status %q, want 200", resp.Status)
	}
}

// A body that is still being read counts, too.
func TestAdmissionRefusesABodyForWhichNoMemoryIsLeft(t *testing.T) {
	s := newService(t, addingModel(), func(o *agent.Options) { o.Memory = admission.NewMemory(1 << 20) }, nil)
	large := `{"question":"` + strings.Repeat("why ", 200<<10) + `"}`
	resp := s.do(t, "POST", "/answer", large)
	if p := wantProblem(t, resp, 503, "overloaded"); p.Detail != "The service is short of memory at the moment." {
		t.Errorf(`problem %+v, want Detail "The service is short of memory at the moment."`, p)
	}
	checkRetryAfter(t, resp)
	decodeResponse[answer](t, s.do(t, "POST", "/answer", question), 200) // the large body is no longer counted
}

func TestOpenRequestsAreBoundedAndProbesAreNot(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	defer close(open)

	s := newService(t, waitingModel(open), nil, func(o *api.Options) {
		o.MaxStreams = 2
		o.Metrics = http.NotFoundHandler()
	})

	run := s.startUntilFirstText(t)
	again := s.do(t, "GET", "/runs/"+run+"/events", "")
	readFrames(t, again, "text_delta")

	for _, path := range []string{"/runs/" + run + "/events", "/tools", "/runs"} {
		resp := s.do(t, "GET", path, "")
		wantProblem(t, resp, 503, "overloaded")
		checkRetryAfter(t, resp)
	}

	for _, path := range []string{"/healthz", "/readyz"} {
		if resp := s.do(t, "GET", path, ""); resp.StatusCode != 200 {
			t.Errorf("%s: %s, want 200", path, resp.Status)
		}
	}
}

func TestOpenRequestsOfOneCallerAreBounded(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	defer close(open)
	set, bearer := requireTokens(t)
	s := newService(t, waitingModel(open), nil, func(o *api.Options) {
		set(o)
		o.MaxStreamsPerCaller = 1
	})
	ada, bob := bearer("ada"), bearer("bob")
	s.startUntilFirstText(t, "Authorization", ada)
	wantProblem(t, s.do(t, "GET", "/tools", "", "Authorization", ada), 429, "rate_limited")
	s.startUntilFirstText(t, "Authorization", bob)
}

// A caller who has used up a budget learns in every format when its period ends.
func TestEveryFormatReportsASpentBudget(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), func(o *agent.Options) {
		o.CallerBudgets = []usage.Limit{{Name: "total_tokens", Max: 1, Period: 24 * time.Hour}}
	}, nil)
	if resp := s.do(t, "POST", "/answer", question); resp.StatusCode != 200 {
		t.Fatalf("status %q, want 200", resp.Status)
	}
	for path, body := range map[string]string{
		"/answer": question, "/answer/stream": question,
		"/v1/chat/completions": `{"model":"m","messages":[{"role":"user","content":"?"}]}`,
		"/v1/responses":        `{"model":"m","input":"?"}`,
		"/api/chat":            `{"id":"c","messages":[{"id":"1","role":"user","parts":[{"type":"text","text":"?"}]}]}`,
		"/agui":                `{"threadId":"t","runId":"r","state":{},"messages":[{"id":"1","role":"user","content":"?"}],"tools":[],"context":[],"forwardedProps":{}}`,
	} {
		resp := s.do(t, "POST", path, body)
		text, err := io.ReadAll(resp.Body)
		wait, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		if err != nil || resp.StatusCode != 429 || wait < 86000 || wait > 86400 || !strings.Contains(string(text), "(total_tokens=1/24h). The period ends at 20") || !strings.Contains(string(text), "rate_limited") {
			t.Errorf("%s: %s, Retry-After %d: %s; want 429, a day and the end of the period", path, resp.Status, wait, text)
		}
		if strings.HasPrefix(path, "/v1/") && (resp.Header.Get("X-Should-Retry") != "false" || !strings.Contains(string(text), `"error":{`)) {
			t.Errorf("%s: X-Should-Retry %q: %s; want false and OpenAI's shape", path, resp.Header.Get("X-Should-Retry"), text)
		}
	}
}
