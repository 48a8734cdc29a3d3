package faults

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
)

func TestF33HangingCollectorDelaysNoRun(t *testing.T) {
	r := beginFault(t, "OTLP collector: refuses; accepts and hangs (a proxy passes nothing on)", "runs as fast as ever; exit within the time-outs")
	model := llmtest.New(t, llmtest.Turns(llmtest.Says("Yes.")))
	link := newProxy(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {}))
	link.disturb(stallConnection, forwardAll)

	for _, endpoint := range []string{"http://" + closedPort(t), link.url} {
		s := start(t, "LLM_BASE_URL="+model.URL, "ENABLE_TRACING=true", "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint)
		slowest := time.Duration(0)
		for range 100 {
			slowest = max(slowest, timeOf(func() {
				if a := s.ask(t); a.status != 200 {
					t.Errorf("got %+v, want status 200", a)
				}
			}))
		}

		code := 0
		d := timeOf(func() { code = s.stop(t) })
		if slowest > 10*time.Second || code != 0 || d > 15*time.Second {
			t.Errorf("slowest run took %s, exit code %d after %s, want at most 10 s, 0, 15 s\n%s", slowest, code, d, s.out)
		}
		r.record("slowest run %s, exit after %s", slowest.Round(time.Millisecond), d.Round(100*time.Millisecond))
	}
}

func TestF34MissingDescriptorsOrLogAreRecoveredFrom(t *testing.T) {
	r := beginFault(t, "64 file descriptors and 200 connections; stderr on a full disk", "503 with Retry-After, no crash; works again by itself")
	model := llmtest.New(t, llmtest.Turns(llmtest.Says("Yes.")))
	s := startProcess(t, exec.Command("sh", "-c", "ulimit -n 64; exec "+binary), "LLM_BASE_URL="+model.URL)
	s.waitUntilListening(t)
	if a := s.ask(t); a.status != 200 {
		t.Fatalf("got %+v, want status 200", a)
	}
	s.client.CloseIdleConnections()
	var conns []net.Conn
	for range 200 {
		conn, err := net.DialTimeout("tcp", strings.TrimPrefix(s.url, "http://"), time.Second)
		if err != nil {
			break // the backlog is full, too
		}
		conns = append(conns, conn)
	}
	for _, c := range conns {
		c.Close()
	}
	// Wait as long as Retry-After says, as clients do.
	a, refused := s.ask(t), 0
	for ; a.status == 503 && a.header.Get("Retry-After") != "" && refused < 60; refused++ {
		<-time.After(time.Second)
		a = s.ask(t)
	}
	if a.status != 200 {
		t.Errorf("after %d connections the answer is %+v, want 200\n%s", len(conns), a, s.out)
	}
	r.record("%d connections, %d refusals with Retry-After, then %d", len(conns), refused, a.status)

	if _, err := os.Stat("/dev/full"); err != nil {
		return
	}
	port := closedPort(t)
	s = startProcess(t, exec.Command("sh", "-c", "exec "+binary+" 2>/dev/full"), "LLM_BASE_URL="+model.URL, "ADDR="+port)
	s.url = "http://" + port
	for deadline := time.Now().Add(waitLimit); ; {
		if a, err := s.trySend("POST", "/answer", question); err == nil {
			r.record("log on a full disk: %d", a.status)
			if a.status != 200 {
				t.Errorf("got %+v, want status 200", a)
			}
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("error %v, want none before the deadline", err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func TestF36BadConfigurationIsRefusedByField(t *testing.T) {
	r := beginFault(t, "mcp.json reloaded good, bad; a secret's file missing", "used; refused with the field while the old one runs; exit 2 naming the setting")
	tool := newPeer(t, nil)
	server := func(more string) string { return fmt.Sprintf(`{"mcpServers":{"crm":{"url":%q%s}}}`, tool.url, more) }
	setting, path := mcpConfig(t, server(""))
	model := llmtest.New(t, callingModel())
	s := start(t, "LLM_BASE_URL="+model.URL, setting)
	r.wantCallSuccess(s)
	writeFile(t, path, server(`,"timeout":"soon"`))
	s.signal(t, syscall.SIGHUP)
	s.waitForOutput(t, "refused")
	if s.out.count("timeout") == 0 {
		t.Errorf("the log does not name the field timeout, want it named:\n%s", s.out)
	}
	r.wantCallSuccess(s)
	writeFile(t, path, server(`,"timeout":"7s"`))
	s.signal(t, syscall.SIGHUP)
	s.waitForOutput(t, "read again")
	r.wantCallSuccess(s)
	bad := launch(t, "LLM_BASE_URL="+model.URL, "LLM_API_KEY_FILE="+filepath.Join(t.TempDir(), "nope"))
	if code := bad.waitForExit(t); code != 2 || bad.out.count("LLM_API_KEY_FILE") == 0 {
		t.Errorf("exit code %d, want 2 and LLM_API_KEY_FILE in the output:\n%s", code, bad.out)
	}
	r.record("refused by field; exit 2")
}

// peakMemory returns the largest resident memory of the process in bytes, 0 where /proc is missing.
func (s *service) peakMemory(t testing.TB) float64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	var kib float64
	_, _ = fmt.Sscan(rest, &kib)
	return kib * 1024
}

func TestF37MemoryPressureRefusesNewRuns(t *testing.T) {
	r := beginFault(t, "GOMEMLIMIT 96 MiB, 200 questions of 800 KiB, 20 at a time, to a model that waits until all are asked", "some run, and all of those are answered; the others 503 with Retry-After; no crash, memory bounded; works again by itself")
	var begun atomic.Int64
	open := make(chan struct{})
	model := llmtest.New(t, waitingModel(&begun, open))
	s := start(t, "LLM_BASE_URL="+model.URL, "GOMEMLIMIT=96MiB", "EVENTS_MAX_BYTES=128MiB")
	large := fmt.Sprintf(`{"question":%q}`, strings.Repeat("why ", 200<<10))

	var asked, all sync.WaitGroup
	var answered, shed atomic.Int64
	turns := make(chan struct{}, 20)
	askOnce := func() {
		turns <- struct{}{}
		resp, err := s.send(t.Context(), "POST", "/answer/stream", large)
		<-turns
		asked.Done()
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != "" {
			shed.Add(1)
			return
		}
		got, err := readEvents(resp.Body, nil)
		if err != nil || got.orderError() != "" || got.last().Answer != "Well." {
			t.Errorf("%s: %d events, %s, %v, want order error empty, last().Answer Well., no error", resp.Status, len(got), got.orderError(), err)
			return
		}
		answered.Add(1)
	}

	for range 200 {
		asked.Add(1)
		all.Go(askOnce)
	}

	asked.Wait()
	close(open)
	all.Wait()
	peak := s.peakMemory(t)

	// Of 96 MiB, runs have 18: a run reserves 2.5 MiB, and its request counts twice while it is held.
	if answered.Load() < 3 || shed.Load() < 50 || answered.Load()+shed.Load() != 200 || peak > 256<<20 {
		t.Errorf("%d answered, %d refused, peak %.0f MiB, want at least 3, at least 50, at most 256\n%s", answered.Load(), shed.Load(), peak/(1<<20), s.out)
	}

	a, again := s.ask(t), 0
	for ; a.status == 503 && a.header.Get("Retry-After") != "" && again < 30; again++ {
		<-time.After(time.Second)
		a = s.ask(t)
	}
	if a.status != 200 {
		t.Errorf("the next question got %+v, want 200", a)
	}
	r.record("%d answered, %d shed, at most %.0f MiB resident; then 200 after %d refusals", answered.Load(), shed.Load(), peak/(1<<20), again)
}
