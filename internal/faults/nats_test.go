package faults

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"answerd/internal/llm/llmtest"
)

// startNATS starts a NATS server with JetStream, which ends with the test.
func startNATS(t testing.TB) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(waitLimit) {
		t.Fatalf("the NATS server is not ready after %s, want it ready", waitLimit)
	}
	return s
}

// limitStorage bounds what an account of a NATS server may store, in bytes.
func limitStorage(t testing.TB, s *server.Server, bytes int64) {
	t.Helper()
	err := s.GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": {
		MaxStore: bytes, MaxMemory: -1, MaxStreams: -1, MaxConsumers: -1, MaxAckPending: -1, MemoryMaxStreamBytes: -1, StoreMaxStreamBytes: -1,
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// largeResultReply is a tool whose result has 200,000 bytes. largeCallsModel returns a model that calls it four
// times, and answers the question "wait" when open is closed. It answers "small" without a call.
var largeResultReply = resultReply(`{"content":[{"type":"text","text":"` + strings.Repeat("x", 200_000) + `"}]}`)

func largeCallsModel(open <-chan struct{}) llmtest.Script {
	return func(q llmtest.Request) llmtest.Answer {
		switch {
		case q.Messages[1].Content == "small":
			return llmtest.Says("Done.")
		case q.Messages[len(q.Messages)-1].Role != "tool":
			call := llmtest.Call{Name: "t", Args: "{}"}
			return llmtest.Calls(call, call, call, call)
		}
		waits := q.Messages[1].Content == "wait"
		return func(w http.ResponseWriter, hq *http.Request) {
			if waits {
				select {
				case <-open:
				case <-hq.Context().Done():
					return
				}
			}
			llmtest.Says("Done.")(w, hq)
		}
	}
}

func TestF48FullNATSAccountIsFreedByRetention(t *testing.T) {
	const retention = 15 * time.Second
	r := beginFault(t, "callers fill a NATS account of 20 MiB through two replicas; another run is open meanwhile",
		"new runs get 503 log_unavailable within 1 s; both replicas read every run and delete one; all works again within 10 s after the retention of the first run; the open run ends with its answer")
	nats := startNATS(t)
	tool := newPeer(t, largeResultReply)
	open := make(chan struct{})
	model := llmtest.New(t, largeCallsModel(open))
	model.Forget()
	env := []string{
		"LLM_BASE_URL=" + model.URL, "MCP_URL=" + tool.url, "EVENTS_URL=" + nats.ClientURL(), "EVENTS_MAX_BYTES=256MiB", "EVENTS_RETENTION=" + retention.String(),
		"LLM_FIRST_BYTE_TIMEOUT=10m", // of the open run
	}
	replicas := []*service{start(t, env...), start(t, env...)}
	limitStorage(t, nats, 20<<20)
	waiting := replicas[0].request(t, "POST", "/answer", `{"question":"wait","background":true}`)

	// Clients fill the account until a run is refused.
	type ended struct {
		id      string
		expires time.Time
	}
	var mu sync.Mutex // guards kept
	var kept []ended
	var full atomic.Bool
	var clients sync.WaitGroup
	for i := range 3 {
		clients.Go(func() {
			for s := replicas[i%2]; !full.Load(); {
				began := time.Now()
				a, err := s.trySend("POST", "/answer", question) // a run that the full account stops may take longer than a client waits
				// A run that waits for space longer than the retention may be deleted meanwhile.
				expired := a.field("code") == "gone" && time.Since(began) >= retention
				if err == nil && a.status != 200 && a.field("code") != "log_unavailable" && !expired {
					t.Errorf("POST /answer on the full account = %d %s, want 200 or log_unavailable", a.status, a.body)
				}
				if err == nil && a.status == 200 {
					// The retention counts from the time of the last event, which may have waited for space.
					mu.Lock()
					kept = append(kept, ended{a.field("run_id"), began.Add(retention)})
					mu.Unlock()
				}
			}
		})
	}
	waitUntil(t, "a run is refused", func() bool {
		// A run that is accepted on the full account waits for space, so the client does not wait for it.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		resp, err := replicas[1].send(ctx, "POST", "/answer", `{"question":"small","background":true}`)
		if err == nil {
			resp.Body.Close()
			full.Store(resp.StatusCode == 503)
		}
		return full.Load()
	})
	mu.Lock()
	kept = slices.DeleteFunc(kept, func(e ended) bool { return time.Until(e.expires) < time.Second })
	runs := slices.Clone(kept)
	mu.Unlock()
	if len(runs) < 2 {
		t.Fatalf("%d runs are kept on the full account, want 2 at least", len(runs))
	}
	expected := func(e ended) bool { return time.Until(e.expires) > time.Second } // the machine may be slow
	slowest := time.Duration(0)
	for _, s := range replicas {
		began := time.Now()
		if a := s.ask(t); expected(runs[0]) {
			slowest = max(slowest, time.Since(began))
			r.wantProblem(a, 503, "log_unavailable")
		}
		for _, e := range runs {
			if a := s.request(t, "GET", "/runs/"+e.id+"/events", ""); expected(e) && (a.status != 200 || !strings.Contains(a.body, "event: final_answer")) {
				t.Errorf("GET /runs/%s/events on the full account = %d, want 200 and all events", e.id, a.status)
			}
		}
	}
	if slowest > 2*time.Second { // 1 s, on a busy machine
		t.Errorf("a run was refused after %s, want 1 s at most", slowest)
	}
	last := runs[len(runs)-1]
	if a := replicas[1].request(t, "DELETE", "/runs/"+last.id, ""); expected(last) && a.status != 204 {
		t.Errorf("DELETE /runs/%s on the full account = %d %s, want 204", last.id, a.status, a.body)
	}
	if a := replicas[0].request(t, "GET", "/runs/"+last.id+"/events", ""); a.status != 410 && a.status != 404 {
		t.Errorf("GET /runs/%s/events after its deletion = %d, want 410", last.id, a.status)
	}
	// The answer of the open run waits for space, and its retention counts from when it began to wait.
	waitUntil(t, "the first run is about to expire", func() bool { return time.Until(runs[0].expires) < retention/3 })
	close(open)
	openRun := make(chan reply, 1)
	go func() {
		var a reply
		for t.Context().Err() == nil && (a.status == 0 || a.field("status") == "running") {
			a, _ = replicas[0].trySend("GET", "/runs/"+waiting.field("run_id"), "") // an error leaves the status 0
			<-time.After(100 * time.Millisecond)
		}
		openRun <- a
	}()
	clients.Wait()
	for _, s := range replicas {
		waitUntil(t, "a replica answers again", func() bool { return s.ask(t).status == 200 })
	}
	again := max(0, time.Since(runs[0].expires))
	if again > 20*time.Second { // 10 s, on a busy machine
		t.Errorf("answers %s after the first run's expiry, want at most 10 s", again)
	}
	if a := receiveWithin(t, openRun, "the end of the open run"); a.field("status") != "completed" || a.field("answer") != "Done." {
		t.Errorf("the open run ended with %d %s, want its answer", a.status, a.body)
	}
	r.record("%d runs kept; refused after %s at most; answers %s after the first run's expiry", len(runs), slowest.Round(time.Millisecond), again.Round(100*time.Millisecond))
}

// endlessWordsModel is a model that calls the tool, or says words without end, as the question demands,
// and otherwise answers.
func endlessWordsModel(q llmtest.Request) llmtest.Answer {
	switch {
	case q.Messages[len(q.Messages)-1].Role == "tool":
		return llmtest.Says("Done.")
	case q.Messages[1].Content == "tool":
		return llmtest.Calls(llmtest.Call{Name: "t", Args: "{}"})
	case q.Messages[1].Content != "words":
		return llmtest.Says("Yes.")
	}
	return func(w http.ResponseWriter, hq *http.Request) {
		text := strings.Repeat("word ", 200)
		for hq.Context().Err() == nil {
			llmtest.Stream(w, "", textDelta(text))
		}
	}
}

func TestF48FloodsOnNATSDisturbNoOtherRun(t *testing.T) {
	r := beginFault(t, "on NATS: two tools send progress as fast as it is read, and two models words without end; two replicas; readers on the other replica",
		"each flood is ended by its limit; its readers get all events in order; other runs are answered on both replicas; memory stays bounded")
	nats := startNATS(t)
	tool := newPeer(t, floodReply(10<<10))
	model := llmtest.New(t, endlessWordsModel)
	model.Forget()
	env := []string{"LLM_BASE_URL=" + model.URL, "MCP_URL=" + tool.url, "EVENTS_URL=" + nats.ClientURL(), "EVENTS_MAX_BYTES=256MiB", "MAX_OUTPUT_TOKENS=200000"}
	replicas := []*service{start(t, env...), start(t, env...)}

	// Start the floods, and read each one through the other replica.
	var floods sync.WaitGroup
	ended := make(chan struct{})
	var events atomic.Int64
	for i, question := range []string{"tool", "tool", "words", "words"} {
		floods.Go(func() {
			ctx := t.Context()
			resp, err := replicas[i%2].send(ctx, "POST", "/answer/stream", fmt.Sprintf(`{"question":%q}`, question))
			if err != nil {
				t.Error(err)
				return
			}
			got, err := readEvents(resp.Body, func(e streamEvent) bool { return e.Type == "start" && e.Seq > 1 }) // the first one only
			resp.Body.Close()
			if err != nil || len(got) == 0 {
				t.Errorf("%s: got %+v, %v, want an event", question, got, err)
				return
			}
			// The other replica has the whole run.
			resp, err = replicas[(i+1)%2].send(ctx, "GET", "/runs/"+got.last().RunID+"/events", "")
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			got, err = readEvents(resp.Body, nil)
			events.Add(int64(len(got)))
			if wrong := got.orderError(); err != nil || wrong != "" {
				t.Errorf("%s: %s, %v after %d events, want all of them in order", question, wrong, err, len(got))
			}
			if errs := got.ofType("tool_error"); question == "tool" && (len(errs) != 1 || errs[0].Kind != "too_large") {
				t.Errorf("the flood of progress ended with %+v, want too_large", errs)
			}
		})
	}

	// Meanwhile other runs are answered.
	go func() { floods.Wait(); close(ended) }()
	asked, slowest := 0, time.Duration(0)
	for over := false; !over; {
		select {
		case <-ended:
			over = true
		default:
		}
		for _, s := range replicas {
			asked++
			slowest = max(slowest, timeOf(func() {
				if a := s.ask(t); a.status != 200 || a.field("answer") != "Yes." {
					t.Errorf("another run got %d %s, want 200 and its answer", a.status, a.body)
				}
			}))
		}
	}

	peak := max(replicas[0].peakMemory(t), replicas[1].peakMemory(t))
	if slowest > 10*time.Second || peak > 256<<20 {
		t.Errorf("the slowest of %d other runs took %s, peak memory %.0f MiB, want at most 10 s and 256 MiB", asked, slowest, peak/(1<<20))
	}
	r.record("%d events of floods in order; %d other runs, the slowest took %s; peak memory %.0f MiB", events.Load(), asked, slowest.Round(time.Millisecond), peak/(1<<20))
}
