package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"

	"answerd/internal/sse"
)

// requireSameFrames compares two readings of one run.
func requireSameFrames(t *testing.T, got, want []sse.Frame) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d events, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i].ID != want[i].ID || got[i].Event != want[i].Event || !bytes.Equal(got[i].Data, want[i].Data) {
			t.Errorf("event %d is %s %s, was %s %s", i, got[i].ID, got[i].Data, want[i].ID, want[i].Data)
		}
	}
}

func TestFileLogKeepsRunsAcrossARestart(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	settings := w.environment("EVENTS_URL", "file:"+t.TempDir())
	c := newClient(t)
	first := startAnswerd(t, settings)
	frames := readStream(t, post(t, c, first.url+"/answer/stream", e2eQuestion, "Idempotency-Key", "once"))
	id, _, _ := strings.Cut(frames[0].ID, ":")
	first.stop()
	if err := <-first.done; err != nil {
		t.Fatal(err)
	}

	second := startAnswerd(t, settings)
	requireSameFrames(t, readStream(t, get(t, c, second.url+"/runs/"+id+"/events")), frames)
	half := len(frames) / 2
	requireSameFrames(t, readStream(t, get(t, c, second.url+"/runs/"+id+"/events", "Last-Event-ID", frames[half-1].ID)), frames[half:])
	requireSameFrames(t, readStream(t, post(t, c, second.url+"/answer/stream", e2eQuestion, "Idempotency-Key", "once")), frames)
	if resp := post(t, c, second.url+"/answer/stream", `{"question":"another"}`, "Idempotency-Key", "once"); resp.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("another body: %s, want 422", resp.Status)
	}
	if resp := get(t, c, second.url+"/runs/"+id+"/events", "Last-Event-ID", frames[len(frames)-1].ID); resp.StatusCode != http.StatusNoContent {
		t.Errorf("caught up: %s, want 204", resp.Status)
	}
	if n := len(w.model.Requests()); n != 2 {
		t.Errorf("%d model calls, want 2", n)
	}
	// Two processes on one directory would destroy it.
	if err := run(t.Context(), nil, settings, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "EVENTS_URL: lock the event log's directory: another process uses it") {
		t.Errorf(`a second process: %v, want error containing "EVENTS_URL: lock the event log's directory: another process uses it"`, err)
	}
}

// The agent claims runs from its start. If it stayed behind a failed start, it would execute them while the log
// is closed under it. Other tests start agents too, so this one is not parallel.
func TestServeLeavesNoAgentBehindAFailedStart(t *testing.T) {
	w := newTestWorld(t, newTwoCallScript())
	occupied, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer occupied.Close()

	addr, noKey := occupied.Addr().String(), filepath.Join(t.TempDir(), "no-key.pem")
	for setting, value := range map[string]string{"ADDR": addr, "METRICS_ADDR": addr, "RECEIPT_KEY_FILE": noKey} {
		t.Run(setting, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			settings := w.environment("EVENTS_URL", "file:"+t.TempDir(), "CALLBACK_ORIGINS", "https://hooks.example.com", "HOOKS_SECRET", strings.Repeat("s", 32), setting, value)
			if err := run(t.Context(), nil, settings, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), setting) {
				t.Errorf("got error %v, want one that names %s", err, setting)
			}
			// Idle connections of clients may be left.
			if err := goleak.Find(before); err != nil && strings.Contains(err.Error(), "answerd/internal/agent") {
				t.Errorf("got goroutines of the agent, want none: %v", err)
			}
		})
	}
}

func TestReplicasShareTheirRuns(t *testing.T) {
	t.Parallel()
	o := &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
		Username: "answerd", Password: "canary-events",
	}
	nats := startNATS(t, o)
	o.Port = nats.Addr().(*net.TCPAddr).Port
	w := newTestWorld(t, newTwoCallScript())
	settings := w.environment("EVENTS_URL", strings.Replace(nats.ClientURL(), "nats://", "nats://answerd:canary-events@", 1))
	a, b := startAnswerd(t, settings), startAnswerd(t, settings)
	c := newClient(t)
	frames := readStream(t, post(t, c, a.url+"/answer/stream", e2eQuestion, "Idempotency-Key", "once"))
	id, _, _ := strings.Cut(frames[0].ID, ":")
	requireSameFrames(t, readStream(t, get(t, c, b.url+"/runs/"+id+"/events")), frames)
	requireSameFrames(t, readStream(t, post(t, c, b.url+"/answer/stream", e2eQuestion, "Idempotency-Key", "once")), frames)

	nats.Shutdown()
	nats.WaitForShutdown()
	if state := readiness(t, c, a.url, http.StatusServiceUnavailable); state != "log_unavailable" {
		t.Errorf("ready without the log: %s, want log_unavailable", state)
	}
	resp := get(t, c, b.url+"/runs/run_unknown")
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !strings.Contains(string(body), `"code":"log_unavailable"`) {
		t.Errorf(`a read without the log: %s %s, Retry-After %q, want status 503, Retry-After non-empty, body containing "code":"log_unavailable"`, resp.Status, body, resp.Header.Get("Retry-After"))
	}
	startNATS(t, o)
	if whole := postQuestion(t, c, a.url, e2eQuestion); whole.Answer == "" { // which waits for the log
		t.Errorf("no answer: Answer %q, want non-empty", whole.Answer)
	}
	readiness(t, c, a.url, http.StatusOK)
	for _, s := range []*service{a, b} {
		if strings.Contains(s.log.String(), "canary") {
			t.Errorf("log %q, want it without canary", s.log.String())
		}
	}
}

// answerd check looks at the log, where others share it.
func TestCheckTestsTheEventLog(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	for url, want := range map[string]string{
		"": "events in memory", "file:" + t.TempDir(): "events on this disk", newNATS(t): "event log on NATS: reachable",
		"nats://canary:canary@" + strings.TrimSuffix(strings.TrimPrefix(closedAddress(t), "http://"), "/mcp"): "event log on NATS: failed: connect to the event log: the log is not available: no server accepts connections there",
		"nats://canary:canary@host.invalid": "failed: connect to the event log: the log is not available: the host name is not known",
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			out := &syncBuffer{}
			err := run(t.Context(), []string{"check"}, w.environment("EVENTS_URL", url), out, io.Discard)
			if !strings.Contains(out.String(), want) || (err != nil) != strings.Contains(want, "failed") || strings.Contains(out.String(), "canary") {
				t.Errorf("check: %v, %s, want %q without secrets", err, out, want)
			}
		})
	}
}

func readiness(t *testing.T, c *http.Client, url string, status int) string {
	t.Helper()
	resp := get(t, c, url+"/readyz")
	var ready struct{ Status string }
	if err := json.NewDecoder(resp.Body).Decode(&ready); err != nil || resp.StatusCode != status {
		t.Errorf("readyz: %s, %v, want status %d, no error", resp.Status, err, status)
	}
	return ready.Status
}

func startNATS(t testing.TB, o *server.Options) *server.Server {
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the NATS server was not ready after 10 s, want it ready")
	}
	return s
}

func TestServeRefusesAnUnusableEventDirectory(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := newTestWorld(t, newTwoCallScript())
	for _, command := range []string{"serve", "check"} {
		for _, dir := range []string{file, filepath.Join(file, "below"), "/proc/answerd"} {
			out, stderr := &syncBuffer{}, &syncBuffer{}
			err := run(t.Context(), []string{command}, w.environment("EVENTS_URL", "file:"+dir), out, stderr)
			if code := reportError(err, stderr); code != 2 || !strings.Contains(stderr.String(), "answerd: EVENTS_URL: "+dir+": ") {
				t.Errorf("%s with EVENTS_URL=file:%s = exit code %d, %q, want 2 and the setting", command, dir, code, stderr)
			}
		}
	}
}
