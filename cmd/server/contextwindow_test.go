package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"answerd/internal/llm/llmtest"
)

// longQuestion returns a question after sixteen messages of 1 kB, some 5,000 tokens.
func longQuestion() string {
	var history []string
	for i := range 16 {
		role := []string{"user", "assistant"}[i%2]
		history = append(history, fmt.Sprintf(`{"role":%q,"content":%q}`, role, strings.Repeat(fmt.Sprintf("word%d ", i), 160)))
	}
	return `{"question":"What is 12.5 * 8, and how far are 10 miles?","history":[` + strings.Join(history, ",") + `]}`
}

// scriptWithWindow returns a model that follows script within a window of so many tokens of 4 bytes. It refuses longer prompts with
// the text, a format of the sizes of window and prompt, and counts these in refused.
func scriptWithWindow(script llmtest.Script, window int, text string, refused *atomic.Int64) llmtest.Script {
	return func(r llmtest.Request) llmtest.Answer {
		tokens := len(r.Body) / 4
		if tokens > window {
			refused.Add(1)
			return func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusBadRequest)
				fmt.Fprintf(w, text, window, tokens)
			}
		}
		answer := script(r)
		return func(w http.ResponseWriter, r *http.Request) { answer(promptCounter{w, tokens}, r) }
	}
}

// promptCounter replaces the usage of llmtest, which is always the same, by the size of the prompt.
type promptCounter struct {
	http.ResponseWriter
	tokens int
}

func (w promptCounter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w promptCounter) Write(b []byte) (int, error) {
	_, err := w.ResponseWriter.Write([]byte(strings.Replace(string(b), `"prompt_tokens":10,`, fmt.Sprintf(`"prompt_tokens":%d,`, w.tokens), 1)))
	return len(b), err
}

// The first question is refused once and learns the size of the window from the error. The second
// one is trimmed before it is sent. Both are answered after two rounds, with the history as far as
// it fits. The texts are those of internal/llm/openai/testdata/contexterrors.txt.
func TestProviderContextWindowIsLearnedFromItsError(t *testing.T) {
	t.Parallel()
	const window = 3000 // tokens of 4 bytes
	for name, refusal := range map[string]string{
		"llama.cpp":  `{"error":{"code":400,"message":"request (%[2]d tokens) exceeds the available context size (%[1]d tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":%[2]d,"n_ctx":%[1]d}}`,
		"vLLM":       `{"error":{"message":"This model's maximum context length is %d tokens. However, your request has %d input tokens. Please reduce the length of the input messages. None","type":"BadRequestError","param":null,"code":400}}`,
		"OpenAI":     `{"error":{"message":"This model's maximum context length is %d tokens. However, your messages resulted in %d tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`,
		"Mistral":    `{"object":"error","message":"Prompt contains %[2]d tokens and 0 draft tokens, too large for model with %[1]d maximum context length","type":"invalid_request_invalid_args","code":"3051"}`,
		"Gemini":     `[{"error":{"code":400,"message":"The input token count (%[2]d) exceeds the maximum number of tokens allowed (%[1]d).","status":"INVALID_ARGUMENT"}}]`,
		"Anthropic":  `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: %[2]d tokens > %[1]d maximum"}}`,
		"OpenRouter": `{"error":{"message":"This endpoint's maximum context length is %d tokens. However, you requested about %[2]d tokens (%[2]d of text input). Please reduce the length of either one.","code":400}}`,
		"LM Studio":  `{"error":"The number of tokens to keep from the initial prompt is greater than the context length (n_keep: %[2]d>= n_ctx: %[1]d). Try to load the model with a larger context length, or provide a shorter input."}`,
	} {
		t.Run(name, func(t *testing.T) {
			var refused atomic.Int64
			w := newTestWorld(t, scriptWithWindow(newTwoCallScript(), window, refusal, &refused))

			s := startAnswerd(t, w.environment())
			c := newClient(t)
			for i := range 2 {
				if a := postQuestion(t, c, s.url, longQuestion()); a.Answer != "100 and 16 km." {
					t.Errorf(`question %d: got %q with %s, want "100 and 16 km."`, i+1, a.Answer, a.Metadata)
				}
				if n := refused.Load(); n != 1 {
					t.Errorf("question %d: got %d refused requests, want 1", i+1, n)
				}
			}

			requests := w.model.Requests()
			if last := requests[len(requests)-1]; len(last.Messages) < 6 {
				t.Errorf("got %d messages in the last request, want some of the history", len(last.Messages))
			}
			if n := strings.Count(s.log.String(), `"msg":"the endpoint named the model's context window"`); n != 1 || !strings.Contains(s.log.String(), `"tokens":3000`) {
				t.Errorf("got %d lines with the window in the log, want one with 3000 tokens", n)
			}
		})
	}
}

// A window in which the definitions of the tools take more than a third: the model searches them.
func TestProviderWithASmallWindowSearchesTools(t *testing.T) {
	t.Parallel()
	found := false

	var refused atomic.Int64
	w := newTestWorld(t, scriptWithWindow(llmtest.Turns(
		llmtest.Calls(llmtest.Call{Name: "search_tools", Args: `{"query":"calculate an arithmetic expression"}`}),
		llmtest.Calls(llmtest.Call{ID: "c2", Name: "calculate", Args: `{"expression":"12.5 * 8"}`}),
		llmtest.Says("100."),
	), 1200, `{"error":{"code":400,"message":"request (%[2]d tokens) exceeds the available context size (%[1]d tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":%[2]d,"n_ctx":%[1]d}}`, &refused))
	s := startAnswerd(t, w.environment())
	a := postQuestion(t, newClient(t), s.url, `{"question":"What is 12.5 * 8?"}`)
	var metadata struct {
		ToolNames []string `json:"tool_names"`
	}
	if err := json.Unmarshal(a.Metadata, &metadata); err != nil || a.Answer != "100." || strings.Join(metadata.ToolNames, " ") != "search_tools calculate" {
		t.Errorf("got %q with %s, want 100. after search_tools and calculate", a.Answer, a.Metadata)
	}

	for _, r := range w.model.Requests()[1:] {
		for _, tool := range r.Tools {
			found = found || tool.Function.Name == "calculate"
		}
	}
	if !found || refused.Load() != 1 {
		t.Errorf("got an offer of calculate after the search: %t, and %d refused requests, want one and 1", found, refused.Load())
	}
}

// The endpoint closes each connection when a second request comes in on it. That is neither a
// failure nor a retry.
func TestProviderThatClosesIdleConnectionsCausesNoWarning(t *testing.T) {
	t.Parallel()
	var closed atomic.Int64
	var used sync.Map // addresses of connections
	script := newTwoCallScript()
	w := newTestWorld(t, func(r llmtest.Request) llmtest.Answer {
		answer := script(r)
		return func(w http.ResponseWriter, r *http.Request) {
			if _, again := used.LoadOrStore(r.RemoteAddr, true); !again {
				answer(w, r)
				return
			}
			closed.Add(1)
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				conn.Close()
			}
		}
	})

	s := startAnswerd(t, w.environment("LLM_MAX_RETRIES", "0"))
	for range 3 {
		if a := postQuestion(t, newClient(t), s.url, e2eQuestion); a.Answer != "100 and 16 km." {
			t.Errorf(`got %q, want "100 and 16 km."`, a.Answer)
		}
	}

	if n := closed.Load(); n != 5 { // of six requests, all but the first
		t.Errorf("got %d closed connections, want 5", n)
	}

	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, "model") && (strings.Contains(line, `"level":"WARN"`) || strings.Contains(line, `"level":"ERROR"`)) {
			t.Errorf("got %s, want no warning about the model", line)
		}
	}
}
