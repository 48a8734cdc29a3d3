package api_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/thread"
	"answerd/internal/api"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
)

// BenchmarkThreads lists 50 threads, reads one and continues one, with ten and with a thousand threads of
// 100 messages. The figures should not depend on how many there are.
func BenchmarkThreads(b *testing.B) {
	for _, threads := range []int{10, 1000} {
		log := memory.New(memory.Options{MaxBytes: 4 << 30})
		h := agenttest.NewFixture(b, llmtest.Turns(llmtest.Says("Yes.")), func(o *agent.Options) { o.Log, o.MaxRuns = log, 1<<16 })
		h.Model.Forget()

		for n := range threads {
			for i := range 50 {
				turn := thread.Turn{Question: fmt.Sprintf("Question %d of %d?", i, n), Status: event.StatusCompleted, Steps: []thread.Step{{Text: strings.Repeat("An answer of some length. ", 10)}}}
				id, run := fmt.Sprintf("thread-%d", n), fmt.Sprintf("run_%d_%d", n, i)
				if _, err := log.BeginTurn(b.Context(), event.Owner{}, id, run, "", thread.Title(turn.Question)); err != nil {
					b.Fatal(err)
				}
				if err := log.EndTurn(b.Context(), event.Owner{}, id, run, turn.Encode()); err != nil {
					b.Fatal(err)
				}
			}
		}

		handler := api.New(api.Options{Agent: h.Agent, Log: log, AllowedHosts: []string{"127.0.0.1"}, Heartbeat: time.Hour})
		server := httptest.NewServer(handler)
		measure := func(name, method, path string, body func(i int) string) {
			b.Run(fmt.Sprintf("%s/%d", name, threads), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					req, err := http.NewRequestWithContext(b.Context(), method, server.URL+path, strings.NewReader(body(i)))
					if err != nil {
						b.Fatal(err)
					}
					req.Header.Set("Content-Type", "application/json")
					resp, err := server.Client().Do(req)
					if err != nil {
						b.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					if resp.Body.Close(); resp.StatusCode != http.StatusOK {
						b.Fatalf("status %s, want 200", resp.Status)
					}
				}
			})
		}

		noBody := func(int) string { return "" }
		measure("list", "GET", "/threads?limit=50", noBody)
		measure("read", "GET", "/threads/thread-5?limit=50", noBody)

		// Another one each time, so that they stay of about the same length.
		measure("continue", "POST", "/answer", func(i int) string { return fmt.Sprintf(`{"question":"And?","thread_id":"thread-%d"}`, i%10) })
		server.Close()
		handler.Close(b.Context())
	}
}
