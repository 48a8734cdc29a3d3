package main

import (
	"bufio"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
	"answerd/internal/sse"
)

// The service runs as a process of its own, so that what is counted is its work and
// not that of the model, the MCP server and the load beside it. It counts itself:
// the figures are the differences of its own metrics.

// BenchmarkAnswer is POST /answer with an instant model and one tool call, JWT and
// all, 16 callers at a time.
func BenchmarkAnswer(b *testing.B) {
	benchmarkQuestions(b, "/answer")
}

// BenchmarkStream is the same as a stream.
func BenchmarkStream(b *testing.B) {
	benchmarkQuestions(b, "/answer/stream")
}

// benchmarkQuestions asks with the events in each place where they can be kept.
func benchmarkQuestions(b *testing.B, path string) {
	b.Run("memory", func(b *testing.B) { benchmarkQuestion(b, path, "") })
	b.Run("file", func(b *testing.B) { benchmarkQuestion(b, path, "file:"+b.TempDir()) })
	b.Run("nats", func(b *testing.B) { benchmarkQuestion(b, path, newNATS(b)) })
}

func benchmarkQuestion(b *testing.B, path, eventsURL string) {
	w := newTestWorld(b, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "calculate", Args: `{"expression":"12.5 * 8"}`}), llmtest.Says("It ", "is ", "100.")))
	p := spawnAnswerd(b, append(w.environ(), "EVENTS_URL="+eventsURL, "EVENTS_MAX_BYTES=4GiB"))
	url, c := p.url(b), newClient(b)
	askQuestion := func() {
		resp := post(b, c, url+path, `{"question":"What is 12.5 * 8?"}`)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"answer":"It is 100."`) {
			b.Errorf(`status %s %s %v, want status 200, body containing "answer":"It is 100.", no error`, resp.Status, body, err)
		}
	}
	askQuestion() // the token and the session are made once
	before := readMetrics(b, c, url)
	b.SetParallelism(8)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			askQuestion()
		}
	})
	b.StopTimer()
	after := readMetrics(b, c, url)
	perQuestion := func(name string) float64 { return (after[name] - before[name]) / float64(b.N) }
	b.ReportMetric(perQuestion("process_cpu_seconds_total")*1e6, "cpu-µs/answer")
	b.ReportMetric(perQuestion("go_memstats_mallocs_total"), "service-allocs/answer")
	b.ReportMetric(perQuestion("go_memstats_alloc_bytes_total")/1024, "service-KiB/answer")
	p.signal(b, syscall.SIGTERM)
	if err := p.wait(); err != nil {
		b.Errorf("error %v\n%s, want no error", err, p.log)
	}
}

// BenchmarkOpenStreams is the memory of 1,000 streams in mid-answer.
func BenchmarkOpenStreams(b *testing.B) {
	const streams = 1000
	release := make(chan struct{})
	w := newTestWorld(b, newWaitingScript(release))
	p := spawnAnswerd(b, append(w.environ(), "MAX_CONCURRENT_RUNS=100000", "DISCONNECT_GRACE=0s"))
	url, c := p.url(b), newClient(b)

	// Only the first round meets a process that has not had so many streams before.
	for first := true; b.Loop(); first = false {
		before := readMetrics(b, c, url)
		var open []*http.Response
		for range streams {
			resp := post(b, c, url+"/answer/stream", `{"question":"?"}`)
			r := sse.NewReader(bufio.NewReaderSize(resp.Body, 512), 1<<20)
			for {
				f, err := r.Next()
				if err != nil {
					b.Fatal(err)
				}
				if f.Event == "text_delta" {
					break
				}
			}
			open = append(open, resp)
		}
		after := readMetrics(b, c, url)
		if first {
			b.ReportMetric((after["process_resident_memory_bytes"]-before["process_resident_memory_bytes"])/streams/1024, "rss-KiB/stream")
		}
		for _, resp := range open {
			resp.Body.Close()
		}
	}

	close(release)
	p.signal(b, syscall.SIGTERM)
	p.signal(b, syscall.SIGTERM)
}

// readMetrics returns the series of the service that have no labels.
func readMetrics(b *testing.B, c *http.Client, url string) map[string]float64 {
	b.Helper()
	resp, err := c.Get(url + "/metrics")
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	out := make(map[string]float64)
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			out[name] = v
		}
	}
	if _, ok := out["process_cpu_seconds_total"]; !ok {
		b.Fatalf("the metrics lack the CPU time, want it among the %d", len(out))
	}
	return out
}

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
