package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
)

// textDelta returns the delta of a chunk of a model's stream.
func textDelta(text string) any { return map[string]any{"content": text} }

// wantProblem checks a problem document.
func (r *faultRow) wantProblem(got reply, status int, code string) {
	r.t.Helper()
	if got.status != status || got.field("code") != code {
		r.t.Errorf(`status %d %s, want status %d, got.field("code") %s`, got.status, got.body, status, code)
	}
	r.record("%d %s", got.status, got.field("code"))
}

func TestF01ModelConnectionRefusedIs502AfterTwoRetries(t *testing.T) {
	r := beginFault(t, "model refuses connections", "at most 2 retries, 502 model_error; works when it is back")
	model := llmtest.New(t, llmtest.Turns(llmtest.Says("Back.")))
	link := newProxy(t, model.URL)
	link.stop()
	s := start(t, "LLM_BASE_URL="+link.url)
	r.wantProblem(s.ask(t), 502, "model_error")
	if n := s.out.count("trying again"); n != 2 {
		t.Errorf("%d retries:\n%s, want 2", n, s.out)
	}
	link.start()
	if a := s.ask(t); a.field("answer") != "Back." {
		t.Errorf("got %+v, want the answer Back.", a)
	}
	r.record("2 retries, then back")
}

func TestF02ModelWithoutFirstByteIs504(t *testing.T) {
	r := beginFault(t, "model accepts and is silent", "504 model_timeout at the first-byte timeout, 1 request")
	var asked atomic.Int64
	url := serveHTTP(t, func(_ http.ResponseWriter, q *http.Request) {
		asked.Add(1)
		_, _ = io.Copy(io.Discard, q.Body)
		<-q.Context().Done()
	})
	s := start(t, "LLM_BASE_URL="+url, "LLM_FIRST_BYTE_TIMEOUT=300ms")
	r.wantProblem(s.ask(t), 504, "model_timeout")
	if asked.Load() != 1 {
		t.Errorf("%d requests, want 1", asked.Load())
	}
}

// wantRunError checks how a run ended.
func (r *faultRow) wantRunError(got eventList, code string) {
	r.t.Helper()
	if end := got.last(); end.Type != "run_error" || end.Code != code {
		r.t.Errorf("the run ended with %+v, want run_error %s", end, code)
	}
	r.record("run_error %s", got.last().Code)
}

func TestF03ModelStreamThatStallsIsNotRetried(t *testing.T) {
	r := beginFault(t, "model stalls after the first delta (a proxy passes nothing on)", "run_error model_timeout at the idle timeout, 1 request")
	more := make(chan struct{})
	model := llmtest.New(t, func(llmtest.Request) llmtest.Answer {
		return func(w http.ResponseWriter, q *http.Request) {
			llmtest.Stream(w, "", textDelta("Well"))
			select {
			case <-more:
				llmtest.Stream(w, "stop", textDelta(", yes."))
			case <-q.Context().Done():
			}
		}
	})

	link := newProxy(t, model.URL)
	s := start(t, "LLM_BASE_URL="+link.url, "LLM_IDLE_TIMEOUT=500ms")
	got := s.stream(t, func(h streamEvent) bool {
		if h.Type == "text_delta" {
			link.disturb(stallConnection, forwardAll)
			close(more)
		}
		return true
	})

	r.wantRunError(got, "model_timeout")
	if n := len(model.Requests()); n != 1 || got.orderError() != "" {
		t.Errorf("%d requests, %s, want 1 and empty", n, got.orderError())
	}
}

func TestF04ModelStreamCutIsNeverAnAnswer(t *testing.T) {
	r := beginFault(t, "model stream cut (after 4000 bytes; reset)", "upstream_truncated, 502 on /answer; no final_answer")
	long := make([]string, 200)
	for i := range long {
		long[i] = "word "
	}

	model := llmtest.New(t, llmtest.Turns(llmtest.Says(long...)))
	for name, how := range map[string]disturbance{"limit": cutAfter(4000), "reset": resetConnection} {
		link := newProxy(t, model.URL)
		s := start(t, "LLM_BASE_URL="+link.url, "LLM_MAX_RETRIES=0")
		link.disturb(how, forwardAll)
		if name == "reset" {
			if a := s.ask(t); a.status != 502 {
				t.Errorf("got %+v, want status 502", a)
			}
			continue
		}
		r.wantProblem(s.ask(t), 502, "upstream_truncated")
		r.wantRunError(s.stream(t, nil), "upstream_truncated")
	}
}

func TestF05ModelStreamWithoutFinishReasonIsTruncated(t *testing.T) {
	r := beginFault(t, "clean end without finish_reason", "upstream_truncated")
	model := llmtest.New(t, llmtest.Turns(func(w http.ResponseWriter, _ *http.Request) {
		llmtest.Stream(w, "", textDelta("Well"))
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	s := start(t, "LLM_BASE_URL="+model.URL)
	r.wantRunError(s.stream(t, nil), "upstream_truncated")
}

func TestF06ModelGarbageIsATypedError(t *testing.T) {
	r := beginFault(t, "error object, garbage, 2 MiB chunk, endless line in mid-stream", "run_error model_error each; memory bounded")
	var kind atomic.Value
	model := llmtest.New(t, llmtest.Turns(func(w http.ResponseWriter, q *http.Request) {
		llmtest.Stream(w, "", textDelta("Well"))
		switch kind.Load() {
		case "error object":
			fmt.Fprint(w, `data: {"error":{"message":"oops","type":"server_error"}}`+"\n\n")
		case "garbage":
			fmt.Fprint(w, "data: nonsense\n\n")
			llmtest.Stream(w, "stop", textDelta("."))
		case "2 MiB chunk":
			fmt.Fprintf(w, `data: {"choices":[{"delta":{"content":"%s"}}]}`+"\n\n", strings.Repeat("x", 2<<20))
		default:
			fmt.Fprint(w, "data: ")
			for piece := []byte(strings.Repeat("x", 64<<10)); q.Context().Err() == nil; {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		}
	}))

	s := start(t, "LLM_BASE_URL="+model.URL)
	before := s.metric(t, "process_resident_memory_bytes")

	for _, k := range []string{"error object", "garbage", "2 MiB chunk", "endless line"} {
		kind.Store(k)
		r.wantRunError(s.stream(t, nil), "model_error")
	}

	if grown := s.metric(t, "process_resident_memory_bytes") - before; grown > 48<<20 {
		t.Errorf("%.0f MiB more, want at most 48", grown/(1<<20))
	}
}

func TestF07ModelRetriesKeepToTheirBudget(t *testing.T) {
	r := beginFault(t, "429 with Retry-After 1, 3600, garbage; 500; 503", "1 s is waited for, more is not; at most 3 requests")
	for _, c := range []struct {
		status     int
		retryAfter string
		requests   int
	}{{429, "1", 3}, {429, "3600", 1}, {429, "soon", 3}, {500, "", 3}, {503, "", 3}} {
		var asked atomic.Int64
		model := llmtest.New(t, llmtest.Turns(func(w http.ResponseWriter, q *http.Request) {
			asked.Add(1)
			if c.retryAfter != "" {
				w.Header().Set("Retry-After", c.retryAfter)
			}
			llmtest.Fails(c.status, "busy")(w, q)
		}))

		s := start(t, "LLM_BASE_URL="+model.URL)
		var a reply
		d := timeOf(func() { a = s.ask(t) })
		want := 502
		if c.status == 429 {
			want = 503 // model_rate_limited
		}
		if a.status != want || int(asked.Load()) > c.requests || c.retryAfter == "1" && d < 2*time.Second {
			t.Errorf("%+v: %d requests in %s, status %d, want %d, and at least 2 s with Retry-After", c, asked.Load(), d, a.status, want)
		}
		r.record("%d %s: %d requests", c.status, c.retryAfter, asked.Load())
	}
}

func TestF08ModelCredentialsRejectedAreNotRetriedNorShown(t *testing.T) {
	r := beginFault(t, "401 and 403 of the model, which repeats the key", "1 request, 502, the key nowhere")
	for _, status := range []int{401, 403} {
		model := llmtest.New(t, llmtest.Turns(llmtest.Fails(status, "Incorrect API key: canary-key")))
		s := start(t, "LLM_BASE_URL="+model.URL, "LLM_API_KEY=canary-key", "LOG_LEVEL=debug")
		a := s.ask(t)
		if len(model.Requests()) != 1 || strings.Contains(a.body+s.out.String(), "canary") {
			t.Errorf("%d requests, %s\n%s, want 1, and neither with canary", len(model.Requests()), a.body, s.out)
		}
		r.wantProblem(a, 502, "model_error")
	}
}

func TestF09InvalidCallsBecomeErrorsForTheModel(t *testing.T) {
	r := beginFault(t, "bad arguments, unknown tool, 200 calls, equal ids, calls with finish stop", "tool_error each, no network call for them; the run goes on")
	tool := newPeer(t, nil)

	many := make([]llmtest.Call, 200)
	for i := range many {
		many[i] = llmtest.Call{Name: "t", Args: "{}"}
	}

	for _, c := range []struct {
		name  string
		turn  llmtest.Answer
		kinds string
		made  int64
	}{
		{"bad arguments", llmtest.Calls(llmtest.Call{Name: "t", Args: `{"a":`}), "invalid_arguments", 0},
		{"unknown tool", llmtest.Calls(llmtest.Call{Name: "nope", Args: `{}`}), "unknown_tool", 0},
		{"equal ids", llmtest.Calls(llmtest.Call{ID: "c", Name: "t", Args: `{}`}, llmtest.Call{ID: "c", Name: "t", Args: `{}`}), "", 2},
		{"200 calls", llmtest.Calls(many...), "", 32},
		{"finish stop", func(w http.ResponseWriter, _ *http.Request) {
			llmtest.Stream(w, "stop", map[string]any{"tool_calls": []any{map[string]any{"index": 0, "id": "c", "function": map[string]any{"name": "t", "arguments": "{}"}}}})
		}, "", 1},
	} {
		model := llmtest.New(t, llmtest.Turns(c.turn, llmtest.Says("Done.")))
		s := start(t, "LLM_BASE_URL="+model.URL, "MCP_URL="+tool.url)
		before := tool.calls.Load()
		got := s.stream(t, nil)
		made := tool.calls.Load() - before
		errs := got.ofType("tool_error")

		bad := c.kinds != "" && (len(errs) != 1 || errs[0].Kind != c.kinds)
		if c.name == "200 calls" {
			// More calls than an answer may have may also be the end of the run.
			bad = made > c.made || !got.last().terminal()
		} else if got.last().Answer != "Done." || made != c.made {
			bad = true
		}

		if bad {
			t.Errorf("%s: %d calls made, errors %+v, end %+v, want what the case says", c.name, made, errs, got.last())
		}
		r.record("%s: %d made", c.name, made)
	}
}

func TestF10ModelLoopOnToolsEndsAtMaxTurns(t *testing.T) {
	r := beginFault(t, "model calls tools for ever", "one final_answer with max_turns")
	tool := newPeer(t, nil)
	model := llmtest.New(t, func(q llmtest.Request) llmtest.Answer {
		if string(q.ToolChoice) == `"none"` || len(q.Tools) == 0 {
			return llmtest.Says("So far.")
		}
		return llmtest.Calls(llmtest.Call{ID: fmt.Sprintf("c%d", len(q.Messages)), Name: "t", Args: `{}`})
	})
	s := start(t, "LLM_BASE_URL="+model.URL, "MCP_URL="+tool.url, "MAX_TURNS=3")
	got := s.stream(t, nil)
	if end := got.last(); end.FinishReason != "max_turns" || end.Answer != "So far." || tool.calls.Load() != 3 {
		t.Errorf(`%+v after %d calls, want FinishReason max_turns, Answer "So far.", calls 3`, end, tool.calls.Load())
	}
	r.record("%s %s", got.last().Type, got.last().FinishReason)
}

func TestF11AnswerIsTheSameHoweverBytesAreSplit(t *testing.T) {
	r := beginFault(t, "pieces of 1 to 7 bytes on model and MCP", "the same events")
	text := "αβγ 日本語 🙂 \"quoted\" \\ done"
	quoted, _ := json.Marshal(text)
	tool := newPeer(t, rawReply(200, "text/event-stream", `data: {"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":`+string(quoted)+`}]}}`+"\n\n"))
	model := llmtest.New(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "t", Args: `{"a":"ü"}`}), llmtest.Says("Grüße ", "🙂", ".")))

	eventShape := func(s *service) string {
		var out strings.Builder
		for _, h := range s.stream(t, nil) {
			fmt.Fprintf(&out, "%s %s %v %s\n", h.Type, h.Delta, h.Payload, h.Answer)
		}
		return out.String()
	}

	whole := eventShape(start(t, "LLM_BASE_URL="+model.URL, "MCP_URL="+tool.url))
	ways := []*proxy{newProxy(t, model.URL), newProxy(t, tool.url)}
	for _, w := range ways {
		w.disturb(sliceBytes, sliceBytes)
	}

	if sliced := eventShape(start(t, "LLM_BASE_URL="+ways[0].url, "MCP_URL="+ways[1].url)); sliced != whole || !strings.Contains(whole, text) {
		t.Errorf("got in one piece:\n%s\nwant the same in small pieces:\n%s", whole, sliced)
	}
	r.record("%d events alike", strings.Count(whole, "\n"))
}
