package main

import (
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
)

// BenchmarkTokens is what a token costs that a model says and a client reads: 200 streams
// at a time, of 50 tokens a second each.
func BenchmarkTokens(b *testing.B) {
	const streams, tokens = 200, 100
	speaks := func(llmtest.Request) llmtest.Answer {
		return func(w http.ResponseWriter, r *http.Request) {
			for range tokens {
				llmtest.Stream(w, "", map[string]any{"content": "token "})
				select {
				case <-time.After(20 * time.Millisecond):
				case <-r.Context().Done():
					return
				}
			}
			llmtest.Stream(w, "stop")
		}
	}
	for name, eventsURL := range map[string]func(*testing.B) string{
		"memory": func(*testing.B) string { return "" },
		"file":   func(b *testing.B) string { return "file:" + b.TempDir() },
		"nats":   func(b *testing.B) string { return newNATS(b) },
	} {
		b.Run(name, func(b *testing.B) {
			w := newTestWorld(b, speaks)
			p := spawnAnswerd(b, append(w.environ(), "EVENTS_URL="+eventsURL(b), "EVENTS_MAX_BYTES=4GiB"))
			url, c := p.url(b), newClient(b)
			before := readMetrics(b, c, url)
			rounds := 0
			for b.Loop() {
				rounds++
				var wg sync.WaitGroup
				for range streams {
					wg.Go(func() {
						resp := post(b, c, url+"/answer/stream", `{"question":"?"}`)
						_, _ = io.Copy(io.Discard, resp.Body) // a benchmark of the other end
						resp.Body.Close()
					})
				}
				wg.Wait()
			}
			after := readMetrics(b, c, url)
			b.ReportMetric((after["process_cpu_seconds_total"]-before["process_cpu_seconds_total"])*1e6/float64(rounds*streams*tokens), "cpu-µs/token")
		})
	}
}
