package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent/agenttest"
	"answerd/internal/api"
	"answerd/internal/llm/llmtest"
)

func TestRateLimitParses(t *testing.T) {
	for text, want := range map[string]rateLimit{"10/s": {10, time.Second}, "60/m": {60, time.Minute}, "1000/h": {1000, time.Hour}} {
		var r rateLimit
		if err := r.UnmarshalText([]byte(text)); err != nil || r != want {
			t.Errorf("%s: %v %v, want %+v and no error", text, r, err, want)
		}
	}
	for _, text := range []string{"", "10", "/s", "0/s", "-1/s", "10/d", "1.5/s", "10/s/s", "9999999/s", " 1/s"} {
		_, err := loadConfig(newTestEnvironment("RATE_LIMIT", text, "LLM_BASE_URL", "http://127.0.0.1:1"))
		if text == "" {
			continue // not set
		}
		if want := "RATE_LIMIT: not a rate like 10/s: want 1 to 1000000 per s, m or h"; err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want error %q", text, err, want)
		}
	}
}

// rawConn is one connection, and what a request on it is answered.
type rawConn struct {
	net.Conn
	r *bufio.Reader
}

func dialRaw(t *testing.T, url string) rawConn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return rawConn{c, bufio.NewReader(c)}
}

func (c rawConn) get(path string) (status int, closes bool, _ error) {
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path); err != nil {
		return 0, false, err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return 0, false, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.Close, err
}

// Beyond its limit of connections the service answers health probes and refuses other requests. It
// serves again when a connection is closed.
func TestConnectionsAreBoundedAndProbesAreAnswered(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, llmtest.Turns(llmtest.Says("Yes.")))

	s := startAnswerd(t, w.environment("MAX_CONNECTIONS", "3"))
	var held []rawConn
	for range 3 {
		c := dialRaw(t, s.url)
		if status, closes, err := c.get("/tools"); status != 200 || closes || err != nil {
			t.Fatalf("status %d, %v, %v, want 200, false and no error", status, closes, err)
		}
		held = append(held, c)
	}

	for path, want := range map[string]int{"/tools": 503, "/": 503, "/healthz": 200, "/metrics": 200, "/nothing": 503} {
		if status, closes, err := dialRaw(t, s.url).get(path); status != want || !closes || err != nil {
			t.Errorf("%s: %d %v %v, want %d, true and no error", path, status, closes, err, want)
		}
	}

	// The others are served as before.
	for _, c := range held {
		if status, _, err := c.get("/tools"); status != 200 || err != nil {
			t.Errorf("status %d, %v, want 200 and no error", status, err)
		}
	}

	for _, c := range held {
		c.Close()
	}
	getUntilOK(t, newClient(t), s.url)
}

// getUntilOK asks a question, as often as it is told to come back, for a minute.
func getUntilOK(t *testing.T, c *http.Client, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		resp := post(t, c, url+"/answer", `{"question":"?"}`)
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK && err == nil {
			return
		}
		seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		if resp.StatusCode != http.StatusServiceUnavailable || err != nil || seconds < 1 || seconds > 60 {
			t.Fatalf("%s, Retry-After %s: %s, want 503 and 1 to 60", resp.Status, resp.Header.Get("Retry-After"), b)
		}
		select {
		case <-time.After(time.Duration(seconds) * time.Second):
		case <-ctx.Done():
			t.Fatalf("refused for a minute, want it admitted: %s", b)
		}
	}
}

// spawnWithFiles starts answerd as a process that may open so many files.
func spawnWithFiles(t *testing.T, files int, env []string) *process {
	t.Helper()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no shell to set a limit with")
	}
	return spawnCommand(t, exec.Command(shell, "-c", fmt.Sprintf(`ulimit -n %d && exec "$0"`, files), os.Args[0]), env)
}

// F34: more connections than the process may open are refused and not suffered, and a run
// that goes on meanwhile is not disturbed.
func TestConnectionsThatWouldUseUpAllFilesAreRefused(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	w := newTestWorld(t, newWaitingScript(release))
	p := spawnWithFiles(t, 256, w.environ())
	url, c := p.url(t), newClient(t)
	stream := post(t, c, url+"/answer/stream", `{"question":"?"}`)

	var conns []rawConn
	taken, refused := 0, 0
	for range 400 {
		conn := dialRaw(t, url)
		conns = append(conns, conn)
		switch status, _, err := conn.get("/tools"); {
		case err != nil:
			t.Fatal(err)
		case status == 200:
			taken++
		case status == 503:
			refused++
		}
	}

	t.Logf("%d connections taken, %d refused", taken, refused)
	if taken < 50 || refused < 250 || taken+refused != 400 {
		t.Errorf("%d connections taken, %d refused, want at least 50 and 250, 400 in all", taken, refused)
	}
	close(release)
	if seen := readStream(t, stream); len(seen) == 0 || seen[len(seen)-1].Event != "final_answer" {
		t.Errorf("the stream ended with %d events, want seen non-zero, Event final_answer", len(seen))
	}

	for _, conn := range conns {
		conn.Close()
	}
	getUntilOK(t, c, url)
}

// F34: there are no more file descriptors, because the limits were set wrong. The process does not
// crash, and serves again when descriptors are free.
func TestFilesThatAreUsedUpAreSurvived(t *testing.T) {
	w := newTestWorld(t, llmtest.Turns(llmtest.Says("Yes.")))
	p := spawnWithFiles(t, 64, append(w.environ(), "MAX_CONNECTIONS=1000"))
	url, c := p.url(t), newClient(t)
	getUntilOK(t, c, url)
	c.CloseIdleConnections()

	var conns []rawConn
	for range 100 { // the kernel takes those that answerd cannot
		conns = append(conns, dialRaw(t, url))
	}

	last := conns[len(conns)-1]
	p.waitForLine(t, "too many open files")

	for _, conn := range conns[:90] {
		conn.Close()
	}

	if status, _, err := last.get("/healthz"); status != 200 || err != nil {
		t.Errorf("the last in the line: %d %v, want 200 and no error", status, err)
	}
	getUntilOK(t, c, url)
}

// F37: near GOMEMLIMIT new runs are refused, those that go on do, and when they have
// ended all is as before.
func TestMemoryThatRunsShortIsNotUsedUp(t *testing.T) {
	release := make(chan struct{})
	w := newTestWorld(t, newWaitingScript(release))
	p := spawnAnswerd(t, append(w.environ(), "GOMEMLIMIT=96MiB", "MAX_CONCURRENT_RUNS=1000", "EVENTS_MAX_BYTES=64MiB", "WRITE_TIMEOUT=5m")) // the streams are read in the end

	url, c := p.url(t), newClient(t)
	question := fmt.Sprintf(`{"question":%q}`, strings.Repeat("why ", 220_000))
	var streams []*http.Response
	for len(streams) < 300 {
		resp := post(t, c, url+"/answer/stream", question)
		if resp.StatusCode == http.StatusServiceUnavailable {
			b, err := io.ReadAll(resp.Body)
			if err != nil || !strings.Contains(string(b), "short of memory") || resp.Header.Get("Retry-After") == "" {
				t.Errorf(`read all %s %v, want b containing "short of memory", Retry-After non-empty, no error`, b, err)
			}
			break
		}
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("status %q, want 200", resp.Status)
		}
		streams = append(streams, resp)
	}

	t.Logf("memory was short with %d runs", len(streams))
	if n := len(streams); n < 3 || n == 300 {
		t.Errorf("got %d runs, want at least 3 and fewer than 300", n)
	}
	close(release)

	for _, resp := range streams {
		if seen := readStream(t, resp); len(seen) == 0 || seen[len(seen)-1].Event != "final_answer" {
			t.Errorf("a run did not end well: %d seen, want seen non-zero, Event final_answer", len(seen))
		}
	}
	getUntilOK(t, c, url)
}

// pipeListener is a listener of connections in memory, on which time can be false.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	over  chan struct{}
}

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) Close() error   { p.once.Do(func() { close(p.over) }); return nil }
func (p *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// F30: a client that sends slowly has 5 s for the headers and 15 s for the whole request, and
// delays no other client.
func TestSlowRequestsAreCutOff(t *testing.T) {
	fixture := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), nil)
	synctest.Test(t, func(t *testing.T) {
		p := &pipeListener{conns: make(chan net.Conn), over: make(chan struct{})}
		server := newServer(api.New(api.Options{Agent: fixture.Agent, Log: fixture.Log}))
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(p) })

		// sendSlowly writes a byte a second, and returns the status of the response and when it ended.
		sendSlowly := func(at string, rest string) (status int, after time.Duration) {
			ours, theirs := net.Pipe()
			defer ours.Close()
			p.conns <- theirs
			began := time.Now()
			var writing sync.WaitGroup
			writing.Go(func() {
				if _, err := io.WriteString(ours, at); err != nil {
					return
				}
				for ; rest != ""; rest = rest[1:] {
					<-time.After(time.Second)
					if _, err := io.WriteString(ours, rest[:1]); err != nil {
						return
					}
				}
			})
			defer writing.Wait()
			defer ours.Close()
			resp, err := http.ReadResponse(bufio.NewReader(ours), nil)
			if err != nil {
				return 0, time.Since(began)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			return resp.StatusCode, time.Since(began)
		}

		head := "POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
		many := strings.Repeat("a", 1000)
		for _, c := range []struct {
			name, at, rest string
			status         int
			limit          time.Duration
		}{
			{"nothing", "", "", 0, api.ReadHeaderTimeout},
			{"a slow request line", "", "GET /" + many, 400, api.ReadHeaderTimeout},
			{"slow headers", head + "X: ", many, 0, api.ReadHeaderTimeout},
			{"no body", head + "Content-Length: 1000\r\n\r\n", "", 408, api.ReadTimeout},
			{"a slow body", head + "Content-Length: 1000\r\n\r\n", many, 408, api.ReadTimeout},
			{"slow chunks", head + "Transfer-Encoding: chunked\r\n\r\n", strings.Repeat("1\r\na\r\n", 100), 408, api.ReadTimeout},
		} {
			status, after := sendSlowly(c.at, c.rest)
			if status != c.status || after < c.limit || after > c.limit+time.Second {
				t.Errorf("%s: status %d after %s, want status %d, after at least %v, after at most %v", c.name, status, after, c.status, c.limit, c.limit+time.Second)
			}
		}

		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
}

// What a caller has used at one replica counts at the other one, also after both have been
// restarted.
func TestReplicasShareTheBudgetOfACaller(t *testing.T) {
	t.Parallel()
	model := llmtest.New(t, llmtest.Turns(llmtest.Says("Yes.")))
	env := []string{"ADDR=127.0.0.1:0", "LLM_BASE_URL=" + model.URL, "DEFAULT_MODEL_ID=scripted", "EVENTS_URL=" + newNATS(t), "BUDGET_PER_CALLER=total_tokens=20/24h"}
	c := newClient(t)
	ask := func(p *process, want int) {
		t.Helper()
		resp := post(t, c, p.url(t)+"/answer", `{"question":"?"}`)
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != want {
			t.Errorf("got %d %s, %v, want %d", resp.StatusCode, body, err, want)
		}
	}
	ask(spawnAnswerd(t, env), http.StatusOK) // 15 tokens
	ask(spawnAnswerd(t, env), http.StatusOK)
	ask(spawnAnswerd(t, env), http.StatusTooManyRequests)
}
