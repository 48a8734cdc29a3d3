package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/agent/webhook"
	"answerd/internal/auth"
	"answerd/internal/llm/llmtest"
)

const deliverySecret = "canary-hooks-secret"

// runReceiver gets the ends of runs. While it is down, it answers 503.
type runReceiver struct {
	url string

	mu   sync.Mutex // protects the fields below
	down bool
	got  []deliveredRun
	more chan struct{} // closed and replaced with each attempt
}

// deliveredRun is one attempt to deliver a run.
type deliveredRun struct {
	ID, Path string // of the webhook-id header, and the path
	Raw      string
	RunID    string `json:"run_id"`
	ThreadID string `json:"thread_id"`
	Subject  string
	Agent    string
	Status   string
	Answer   string
	Output   json.RawMessage
	Metadata struct {
		Usage struct {
			TotalTokens int `json:"total_tokens"`
		}
	}
	RequestMetadata map[string]string `json:"request_metadata"`
	Error           struct{ Code, Message string }
}

func newRunReceiver(t *testing.T) *runReceiver {
	t.Helper()
	r := &runReceiver{more: make(chan struct{})}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return
		}
		a := deliveredRun{ID: q.Header.Get("webhook-id"), Path: q.URL.Path, Raw: string(body)}
		if err := json.Unmarshal(body, &a); err != nil || q.Header.Get("X-Answerd-Signature") != webhook.Sign(auth.NewSecret(deliverySecret), body) {
			t.Errorf("attempt %s: %v, want JSON that HOOKS_SECRET signs", body, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got = append(r.got, a)
		close(r.more)
		if r.more = make(chan struct{}); r.down {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(web.Close)
	r.url = web.URL
	return r
}

func (r *runReceiver) setDown(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

// waitForRuns waits until enough reports true for the attempts, and returns them.
func (r *runReceiver) waitForRuns(t *testing.T, enough func([]deliveredRun) bool) []deliveredRun {
	t.Helper()
	over := time.After(time.Minute)
	for {
		r.mu.Lock()
		got, more := append([]deliveredRun(nil), r.got...), r.more
		r.mu.Unlock()
		if enough(got) {
			return got
		}
		select {
		case <-more:
		case <-over:
			t.Fatalf("attempts after a minute = %d: %+v, want more", len(got), got)
		}
	}
}

// RUN_WEBHOOK_URL gets every run that a caller started, and a callback gets its own run as well.
func TestRunsAreDelivered(t *testing.T) {
	t.Parallel()
	r := newRunReceiver(t)

	model := llmtest.New(t, func(q llmtest.Request) llmtest.Answer {
		switch q.Messages[len(q.Messages)-1].Content {
		case "Fail.":
			return llmtest.Fails(400, "no")
		case "JSON.":
			return llmtest.Says(`{"n":1}`)
		}
		return llmtest.Says("Yes.")
	})

	s := startAnswerd(t, newTestEnvironment("ADDR", "127.0.0.1:0", "LLM_BASE_URL", model.URL, "LLM_API_KEY", "canary-api-key", "DEFAULT_MODEL_ID", "scripted",
		"HOOKS_SECRET", deliverySecret, "RUN_WEBHOOK_URL", r.url+"/all?key=canary-url-key", "CALLBACK_ORIGINS", r.url, "DEBUG", "true"))
	c := newClient(t)
	post(t, c, s.url+"/answer", `{"question":"Fail."}`)
	post(t, c, s.url+"/answer", `{"question":"JSON.","output_schema":{"type":"object"},"thread_id":"thr_1","metadata":{"k":"v"},"callback":"`+r.url+`/mine/1"}`)

	got := r.waitForRuns(t, func(got []deliveredRun) bool { return len(got) == 3 })
	for _, a := range got {
		switch {
		case a.Status == "failed":
			if a.Path != "/all" || a.Error.Code != "model_error" || a.Agent != "default" || a.Answer != "" {
				t.Errorf("failed run = %s, want its error", a.Raw)
			}
		case a.Status != "completed" || a.Answer != `{"n":1}` || string(a.Output) != `{"n":1}` || a.ThreadID != "thr_1" || a.RequestMetadata["k"] != "v" || a.Metadata.Usage.TotalTokens != 15:
			t.Errorf("completed run = %s, want its answer, output, thread and metadata", a.Raw)
		}
		if strings.Contains(a.Raw, "canary") {
			t.Errorf("body = %s, want no secret", a.Raw)
		}
	}

	paths := make(map[string]string)
	for _, a := range got {
		if a.Status == "completed" {
			paths[a.Path] = a.ID
		}
	}
	if paths["/all"] == "" || paths["/mine/1"] == "" || paths["/all"] == paths["/mine/1"] {
		t.Errorf("webhook-ids of the completed run by path = %v, want one of each receiver", paths)
	}

	for _, other := range []string{"https://other.example/x", "http://127.0.0.1:1/", r.url + "@other.example/", "file:///etc/passwd", "", "7"} {
		resp := post(t, c, s.url+"/answer", fmt.Sprintf(`{"question":"?","callback":%q}`, other))
		body, err := io.ReadAll(resp.Body)
		if want := resp.StatusCode == http.StatusBadRequest && strings.Contains(string(body), `"/callback"`); err != nil || !want && other != "" {
			t.Errorf("callback %q: %d %s, %v, want 400 with the pointer /callback", other, resp.StatusCode, body, err)
		}
	}

	_, metrics := getBody(t, c, s.url+"/metrics")
	if want := `answerd_deliveries_total{outcome="delivered"} `; !strings.Contains(metrics, want) || !strings.Contains(metrics, "answerd_deliveries_waiting ") {
		t.Errorf("/metrics has no %sor no answerd_deliveries_waiting", want)
	}
	if text := s.log.String() + metrics; strings.Contains(text, "canary") {
		t.Errorf("log and metrics = %s, want no secret", text)
	}
}

// A process that is killed while a receiver is down leaves its deliveries to the next one.
func TestDeliveriesSurviveAKill(t *testing.T) {
	t.Parallel()
	r := newRunReceiver(t)
	r.setDown(true)
	model := llmtest.New(t, func(llmtest.Request) llmtest.Answer { return llmtest.Says("Yes.") })
	dir := filepath.Join(t.TempDir(), "events")
	env := []string{"ADDR=127.0.0.1:0", "LLM_BASE_URL=" + model.URL, "DEFAULT_MODEL_ID=scripted", "EVENTS_URL=file:" + dir, "HOOKS_SECRET=" + deliverySecret, "RUN_WEBHOOK_URL=" + r.url}
	p := spawnAnswerd(t, env)

	url, c := p.url(t), newClient(t)
	const runs = 5
	asked := make(map[string]string)
	for range runs {
		asked[postQuestion(t, c, url, `{"question":"?"}`).RunID] = ""
	}

	for _, a := range r.waitForRuns(t, func(got []deliveredRun) bool { return len(got) >= runs }) {
		asked[a.RunID] = a.ID
	}

	_ = p.cmd.Process.Kill()
	_ = p.wait()
	r.mu.Lock()
	before := len(r.got)
	r.down = false
	r.mu.Unlock()
	spawnAnswerd(t, env).url(t)

	delivered := make(map[string]bool)
	r.waitForRuns(t, func(got []deliveredRun) bool {
		for _, a := range got[before:] {
			if asked[a.RunID] != a.ID {
				t.Errorf("webhook-id of %s = %s, want %s as before", a.RunID, a.ID, asked[a.RunID])
			}
			delivered[a.RunID] = true
		}
		return len(delivered) == runs
	})
}

// Replicas share their deliveries: each run comes once, or again with the same id, also if the replica
// that executed it dies.
func TestReplicasShareDeliveries(t *testing.T) {
	t.Parallel()
	r := newRunReceiver(t)
	r.setDown(true)
	model := llmtest.New(t, func(llmtest.Request) llmtest.Answer { return llmtest.Says("Yes.") })
	env := []string{"ADDR=127.0.0.1:0", "LLM_BASE_URL=" + model.URL, "DEFAULT_MODEL_ID=scripted", "EVENTS_URL=" + newNATS(t), "HOOKS_SECRET=" + deliverySecret, "RUN_WEBHOOK_URL=" + r.url}
	a, b := spawnAnswerd(t, env), spawnAnswerd(t, env)
	c := newClient(t)
	b.url(t)

	url := a.url(t)
	const runs = 5
	for range runs {
		postQuestion(t, c, url, `{"question":"?"}`)
	}

	r.waitForRuns(t, func(got []deliveredRun) bool { return len(got) >= runs })
	_ = a.cmd.Process.Kill()
	_ = a.wait()
	r.mu.Lock()
	before := len(r.got)
	r.down = false
	r.mu.Unlock()

	ids := make(map[string]string)
	r.waitForRuns(t, func(got []deliveredRun) bool {
		for _, x := range got[before:] {
			if known, ok := ids[x.RunID]; ok && known != x.ID {
				t.Errorf("webhook-id of %s = %s and %s, want one", x.RunID, known, x.ID)
			}
			ids[x.RunID] = x.ID
		}
		return len(ids) == runs
	})
}
