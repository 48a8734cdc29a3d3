package faults

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
)

// countFromEnv returns the number in an environment variable, or few if there is none.
func countFromEnv(t testing.TB, name string, few int) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil || n <= 0 {
		return few
	}
	return n
}

// waitingModel returns a model that writes a word, and ends its answer when open is closed. The
// question "never" gets no end.
func waitingModel(begun *atomic.Int64, open <-chan struct{}) llmtest.Script {
	return func(q llmtest.Request) llmtest.Answer {
		never := q.Messages[len(q.Messages)-1].Content == "never"
		return func(w http.ResponseWriter, hq *http.Request) {
			llmtest.Stream(w, "", textDelta("Well"))
			begun.Add(1)
			if !never {
				select {
				case <-open:
					fmt.Fprint(w, `data: {"choices":[{"delta":{"content":"."},"finish_reason":"stop"}]}`+"\n\n")
					return
				case <-hq.Context().Done():
				}
			}
			<-hq.Context().Done()
		}
	}
}

// waitForCount waits until a counter has come to n.
func waitForCount(t testing.TB, c *atomic.Int64, n int64, what string) {
	t.Helper()
	for deadline := time.Now().Add(waitLimit); c.Load() < n; {
		if time.Now().After(deadline) {
			t.Fatalf("%d %s, want %d", c.Load(), what, n)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// wantAddressFree checks that the address of a process that has ended can be used again.
func (s *service) wantAddressFree(t testing.TB) {
	t.Helper()
	l, err := net.Listen("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Errorf("listen on the address of the ended process: %v", err)
		return
	}
	l.Close()
}

func TestF35SignalsEndTheServiceInOrder(t *testing.T) {
	r := beginFault(t, "SIGTERM with runs open; a second; during start-up; without runs", "unready and accepting, refusing, ended, exit 0; second: cancelled at once; all exit 0")
	var begun atomic.Int64
	open := make(chan struct{})
	model := llmtest.New(t, waitingModel(&begun, open))

	s := start(t, "LLM_BASE_URL="+model.URL, "SHUTDOWN_DELAY=1500ms")
	ends := make(chan eventList, 2)
	stream := func() { ends <- s.stream(t, nil) }
	go stream()
	waitForCount(t, &begun, 1, "runs")
	s.signal(t, syscall.SIGTERM)
	s.waitForOutput(t, `"draining"`)
	if a := s.request(t, "GET", "/readyz", ""); a.status != 503 || a.field("status") != "draining" {
		t.Errorf("GET /readyz = %+v, want 503", a)
	}
	go stream() // still accepted
	waitForCount(t, &begun, 2, "runs")
	s.waitForOutput(t, "new runs are refused")
	a := s.request(t, "POST", "/answer", question)
	r.wantProblem(a, 503, "draining")
	if a.header.Get("Retry-After") == "" || s.request(t, "GET", "/healthz", "").status != 200 {
		t.Errorf("got %+v, want Retry-After, and 200 of /healthz", a)
	}
	close(open)
	for range 2 {
		if end := receiveWithin(t, ends, "the end of a run").last(); end.Answer != "Well." {
			t.Errorf("the run ended with %+v, want the answer Well.", end)
		}
	}
	if code := s.waitForExit(t); code != 0 {
		t.Errorf("exit %d:\n%s, want 0", code, s.out)
	}
	s.wantAddressFree(t)
	text := s.out.String()
	order := []int{strings.Index(text, `"draining"`), strings.Index(text, "new runs are refused"), strings.Index(text, "runs have ended")}
	if !(order[0] >= 0 && order[0] < order[1] && order[1] < order[2]) {
		t.Errorf("positions %v, want all there in this order:\n%s", order, text)
	}
	r.record("2 of 2 ended, exit 0")

	s = start(t, "LLM_BASE_URL="+model.URL)
	resp, err := s.send(t.Context(), "POST", "/answer/stream", `{"question":"never"}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	s.signal(t, syscall.SIGTERM)
	s.waitForOutput(t, `"draining"`)
	s.signal(t, syscall.SIGTERM)
	got, err := readEvents(resp.Body, nil)
	if end := got.last(); err != nil || end.Code != "server_shutdown" || !end.Retryable {
		t.Errorf("error %v, %+v, want Code server_shutdown, Retryable true, no error", err, end)
	}
	if code := s.waitForExit(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	r.record("second: server_shutdown, exit 0")

	// The third does not even wait for a collector that hangs.
	link := newProxy(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {}))
	link.disturb(stallConnection, forwardAll)
	s = start(t, "LLM_BASE_URL="+model.URL, "ENABLE_TRACING=true", "OTEL_EXPORTER_OTLP_ENDPOINT="+link.url)
	s.ask(t)
	d := timeOf(func() {
		tick := time.NewTicker(50 * time.Millisecond) // signals at the same moment are one
		defer tick.Stop()
		for n := 0; ; n++ {
			s.signal(t, syscall.SIGTERM)
			select {
			case <-s.exited:
				return
			case <-tick.C:
			}
			if n == 1200 {
				t.Fatalf("the process has not ended, want it to:\n%s", s.out)
			}
		}
	})
	if d > 15*time.Second || s.cmd.ProcessState.ExitCode() != 0 {
		t.Errorf("third: after %s, %s, want d at most 15 s, exit code 0", d, s.cmd.ProcessState)
	}
	r.record("third: exit 0 after %s", d.Round(100*time.Millisecond))

	for _, early := range []string{"at once", "a little later"} {
		s = launch(t, "LLM_BASE_URL="+model.URL)
		if early != "at once" {
			<-time.After(20 * time.Millisecond) // somewhere in its start-up
		}
		s.signal(t, syscall.SIGTERM)
		if code := s.waitForExit(t); code != 0 && code != -1 { // before it can catch one, it is killed by it
			t.Errorf("%s: exit %d:\n%s, want 0 or -1", early, code, s.out)
		}
	}
	s = start(t, "LLM_BASE_URL="+model.URL)
	d = timeOf(func() { s.stop(t) })
	s.wantAddressFree(t)
	if d > 15*time.Second {
		t.Errorf("without runs it took %s, want at most 15 s", d)
	}
}

// Runs that can end within the time do, the others end with their terminal event, and no stream is
// cut.
func TestDrainWithManyRunsCutsNoStream(t *testing.T) {
	skipUnlessLong(t)
	n := countFromEnv(t, "DRAIN_RUNS", 200)
	var begun atomic.Int64
	open := make(chan struct{})
	model := llmtest.New(t, waitingModel(&begun, open))

	s := start(t, "LLM_BASE_URL="+model.URL, "DRAIN_TIMEOUT=5s", fmt.Sprintf("MAX_CONCURRENT_RUNS=%d", n))
	var all sync.WaitGroup
	var finished, shutDown, broken atomic.Int64
	for i := range n {
		all.Go(func() {
			body := question
			if i%4 == 0 {
				body = `{"question":"never"}`
			}
			resp, err := s.send(t.Context(), "POST", "/answer/stream", body)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			got, err := readEvents(resp.Body, nil)
			switch end := got.last(); {
			case err != nil || got.orderError() != "":
				broken.Add(1)
			case end.Type == "final_answer":
				finished.Add(1)
			case end.Code == "server_shutdown" && end.Retryable:
				shutDown.Add(1)
			}
		})
	}

	waitForCount(t, &begun, int64(n), "runs")
	s.signal(t, syscall.SIGTERM)
	began := time.Now()
	s.waitForOutput(t, "new runs are refused")
	close(open)
	code := s.waitForExit(t)
	all.Wait()
	d := time.Since(began)
	never := int64((n + 3) / 4)
	if finished.Load() != int64(n)-never || shutDown.Load() != never || broken.Load() != 0 || code != 0 || d > 15*time.Second {
		t.Errorf("of %d: %d finished, %d shut down, %d cut; exit %d after %s, want finished %d, shutDown %d, broken 0, code 0, d at most 15 s", n, finished.Load(), shutDown.Load(), broken.Load(), code, d, int64(n)-never, never)
	}
	t.Logf("%d runs: %d finished, %d shut down, 0 cut, exit after %s", n, finished.Load(), shutDown.Load(), d.Round(100*time.Millisecond))
}

// balancedPair has two services, between which it balances as a load balancer does: it asks them in turn,
// leaves out who is not ready, and tries again when a response says so.
type balancedPair struct {
	addr   [2]string
	ready  [2]atomic.Bool
	next   atomic.Int64
	client *http.Client
}

// probeReadiness asks both for their readiness every 100 ms until over is closed.
func (p *balancedPair) probeReadiness(over <-chan struct{}) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		for i := range p.addr {
			resp, err := p.client.Get("http://" + p.addr[i] + "/readyz")
			if err == nil {
				resp.Body.Close()
			}
			p.ready[i].Store(err == nil && resp.StatusCode == http.StatusOK)
		}
		select {
		case <-tick.C:
		case <-over:
			return
		}
	}
}

// errRefused is a 503 that says when to come back.
var errRefused = errors.New("refused")

// ask is one question, to the one whose turn it is.
func (p *balancedPair) ask() error {
	i := int(p.next.Add(1)) % 2
	if !p.ready[i].Load() {
		i = 1 - i
	}
	resp, err := p.client.Post("http://"+p.addr[i]+"/answer", "application/json", strings.NewReader(question))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != "":
		return errRefused
	case resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"answer":"Yes."`):
		return fmt.Errorf("%s: %s", resp.Status, body)
	}
	return nil
}

// Facts 4.5: a rolling restart of a pair under load fails no request that is tried
// again when a response says so.
func TestRollingRestartFailsNoRequest(t *testing.T) {
	skipUnlessLong(t)
	restarts := countFromEnv(t, "RESTARTS", 3)

	model := llmtest.New(t, llmtest.Turns(func(w http.ResponseWriter, q *http.Request) {
		<-time.After(30 * time.Millisecond) // it thinks
		llmtest.Says("Yes.")(w, q)
	}))

	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	p := &balancedPair{addr: [2]string{closedPort(t), closedPort(t)}, client: &http.Client{Transport: transport, Timeout: waitLimit}}
	t.Cleanup(transport.CloseIdleConnections)

	run := func(i int) *service {
		s := start(t, "LLM_BASE_URL="+model.URL, "ADDR="+p.addr[i], "SHUTDOWN_DELAY=500ms")
		p.ready[i].Store(true)
		return s
	}

	both := [2]*service{run(0), run(1)}
	over := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { p.probeReadiness(over) })

	var asked, refused, failed atomic.Int64
	for i := range 10 { // 200 questions a second, and always some under way
		all.Go(func() {
			<-time.After(time.Duration(i) * 5 * time.Millisecond)
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-over:
					return
				case <-tick.C:
				}
				asked.Add(1)
				err := p.ask()
				if errors.Is(err, errRefused) {
					refused.Add(1)
					err = p.ask()
				}
				if err != nil {
					failed.Add(1)
					t.Errorf("a request failed: %v", err)
				}
			}
		})
	}

	for n := range restarts {
		waitForCount(t, &asked, asked.Load()+60, "requests")
		i := n % 2
		if code := both[i].stop(t); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
		both[i] = run(i)
	}

	waitForCount(t, &asked, asked.Load()+60, "requests")
	close(over)
	all.Wait()
	t.Logf("%d restarts under %d requests: %d refused with Retry-After, %d failed", restarts, asked.Load(), refused.Load(), failed.Load())
}
