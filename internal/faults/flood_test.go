package faults

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
)

// floodReply answers a call with progress notifications of that many bytes, as fast as they are
// read, and never with a result.
func floodReply(size int) replyFunc {
	return func(w http.ResponseWriter, q *http.Request, m message) {
		w.Header().Set("Content-Type", "text/event-stream")
		text := strings.Repeat("x", size)
		out := bufio.NewWriterSize(w, 64<<10)
		for n := 1; q.Context().Err() == nil; n++ {
			fmt.Fprintf(out, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":%q,\"progress\":%d,\"message\":%q}}\n\n",
				fmt.Sprint(m.Params.Meta.Token), n, text)
		}
	}
}

func TestF50FloodOfProgressEndsTheCall(t *testing.T) {
	r := beginFault(t, "a tool sends progress as fast as it is read", "one tool_progress every 100 ms; tool_error too_large after 64 MiB or 100,000 messages; the run goes on")
	tool := newPeer(t, floodReply(10<<10))
	s := startWithTool(t, tool.url, "TIMEOUT=60s")
	var got eventList
	d := timeOf(func() { got = s.stream(t, nil) })
	errs, progress := got.ofType("tool_error"), len(got.ofType("tool_progress"))
	if most := int(d/(100*time.Millisecond)) + 2; len(errs) != 1 || errs[0].Kind != "too_large" || progress < 2 || progress > most || got.last().Answer != "Done." {
		t.Errorf("got %+v and %d progress events after %s, want one too_large and 2 to %d", errs, progress, d, most)
	}
	r.record("%s after %s, %d progress events", errs.last().Kind, d.Round(100*time.Millisecond), progress)
}

// floodModel calls the flooding tool for the question "flood", and answers every other one.
func floodModel(q llmtest.Request) llmtest.Answer {
	switch {
	case q.Messages[len(q.Messages)-1].Role == "tool":
		return llmtest.Says("Done.")
	case q.Messages[1].Content == "flood":
		return llmtest.Calls(llmtest.Call{Name: "t", Args: "{}"})
	}
	return llmtest.Says("Yes.")
}

// keepFlooding keeps that many runs with a flood open until stop is called. It returns when the first
// ones flood.
func (s *service) keepFlooding(t *testing.T, floods int, messages *atomic.Int64) (stop func()) {
	t.Helper()
	var ended atomic.Bool
	var runs sync.WaitGroup
	for range floods {
		runs.Go(func() {
			for !ended.Load() {
				resp, err := s.send(t.Context(), "POST", "/answer/stream", `{"question":"flood"}`)
				if err != nil {
					continue
				}
				_, _ = readEvents(resp.Body, func(streamEvent) bool { return !ended.Load() }) // TestF50 checks the events
				resp.Body.Close()
			}
		})
	}
	waitUntil(t, "the tools flood", func() bool { return messages.Load() > int64(100*floods) })
	return sync.OnceFunc(func() { ended.Store(true); runs.Wait() })
}

// Processes of their own (probeMain) measure, at the same time, the answers of the answerd with the floods and
// those of an idle answerd with a log of the same kind. Both share the processors with the tool that floods, so
// their ratio is what the floods cost in answerd itself.
func TestFloodsOfProgressDelayNoOtherAnswer(t *testing.T) {
	if os.Getenv("ABUSE") == "" {
		t.Skip("skipped: it measures, so nothing else should run; make abuse runs it")
	}
	const (
		floods        = 4
		readPerSecond = 5_000  // messages of one stream, as docs/security.md says
		buffered      = 12_000 // messages of 1 KiB that the buffers of a connection hold
	)

	each := 5 * time.Second
	switch {
	case os.Getenv("LONG") != "":
		each = time.Minute
	case testing.Short():
		each = 2 * time.Second
	}

	t.Log("| log | plain answer before the floods: p50, p99 | with four floods: p50, p99 | of an idle answerd at that time: p50, p99 | ratio of the last two p50 | messages of the floods |")
	for _, where := range []string{"memory", "file:", "NATS"} {
		t.Run(where, func(t *testing.T) {
			var messages atomic.Int64
			flood := floodReply(1 << 10)
			tool := newPeer(t, func(w http.ResponseWriter, q *http.Request, m message) {
				flood(countingWriter{w, &messages}, q, m)
			})
			model := llmtest.New(t, floodModel)
			model.Forget()

			settings := func() []string {
				env := []string{"LLM_BASE_URL=" + model.URL, "MCP_URL=" + tool.url, "TIMEOUT=120s", "DISCONNECT_GRACE=0s"}
				switch where {
				case "file:":
					env = append(env, "EVENTS_URL=file:"+t.TempDir())
				case "NATS":
					env = append(env, "EVENTS_URL="+startNATS(t).ClientURL())
				}
				return env
			}

			s, other := start(t, settings()...), start(t, settings()...)
			if a := s.ask(t); a.field("answer") != "Yes." {
				t.Fatalf("got %+v before the floods, want an answer", a)
			}

			measure := func() (flooded, idle probes) {
				end, endIdle := startProbes(t, s.url), startProbes(t, other.url)
				<-time.After(each)
				return end(), endIdle()
			}

			before, _ := measure()
			began := time.Now()
			stop := s.keepFlooding(t, floods, &messages)
			busy, idle := measure()
			read, took := messages.Load(), time.Since(began)
			stop()

			ratio := float64(percentile(busy.answers, 0.5)) / float64(percentile(idle.answers, 0.5))
			t.Logf("| %s | %s, %s | %s, %s | %s, %s | %.1f | %d |", where, percentile(before.answers, 0.5), percentile(before.answers, 0.99), percentile(busy.answers, 0.5), percentile(busy.answers, 0.99),
				percentile(idle.answers, 0.5), percentile(idle.answers, 0.99), ratio, read)
			if n := busy.failed + len(busy.refusals) + busy.unhealthy; n > 0 || len(busy.answers) == 0 {
				t.Errorf("%d of the other requests got no answer, and %d got one, want 0 and some", n, len(busy.answers))
			}
			if most := floods * (readPerSecond*int64(took/time.Millisecond)/1000 + buffered); read > most {
				t.Errorf("%d messages of the floods were read in %s, want at most %d", read, took, most)
			}
			if ratio > 2 {
				t.Errorf("beside floods an answer takes %.1f times as long as an idle process's, want at most 2 times", ratio)
			}
		})
	}
}

// countingWriter counts the writes of a flood by their size, 1 KiB each.
type countingWriter struct {
	http.ResponseWriter
	messages *atomic.Int64
}

func (w countingWriter) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	w.messages.Add(int64(n >> 10))
	return n, err
}
