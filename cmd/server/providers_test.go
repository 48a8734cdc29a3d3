package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// wireMessages holds the messages of a request with all of their members.
type wireMessages []map[string]json.RawMessage

// provider describes the documented behaviour of one provider's Chat Completions endpoint.
type provider struct {
	message string // members of the delta before each call, as JSON without braces; "" for none
	call    string // members of each call beside id, type and function; "" for none
	profile string // members of the profile in MODELS_FILE, without braces; "" for none
	// refuse returns why the endpoint answers 400 to a request; "" if it accepts it.
	refuse func(r *http.Request, body string, calls wireMessages) string
}

// needsMember refuses messages with calls that lack the member, or have another value.
func needsMember(name, value string) func(*http.Request, string, wireMessages) string {
	return func(_ *http.Request, _ string, calls wireMessages) string {
		for _, m := range calls {
			if string(m[name]) != value {
				return "The " + name + " in the thinking mode must be passed back to the API."
			}
		}
		return ""
	}
}

// refusesWord refuses requests that contain a word.
func refusesWord(word, why string) func(*http.Request, string, wireMessages) string {
	return func(_ *http.Request, body string, _ wireMessages) string {
		if strings.Contains(body, word) {
			return why
		}
		return ""
	}
}

var providers = map[string]provider{
	// https://ai.google.dev/gemini-api/docs/thought-signatures, and for the error and the
	// member https://discuss.ai.google.dev/t/109823: 400 for a call without its signature.
	"Gemini 3": {call: `"extra_content":{"google":{"thought_signature":"CrICAdHtim=="}}`, refuse: func(_ *http.Request, _ string, calls wireMessages) string {
		for _, m := range calls {
			if !strings.Contains(string(m["tool_calls"]), `"extra_content":{"google":{"thought_signature":"CrICAdHtim=="}}`) {
				return "Function call is missing a thought_signature in functionCall parts."
			}
		}
		return ""
	}},
	// https://api-docs.deepseek.com/guides/thinking_mode#tool-calls: 400 without it in the
	// turns of a tool loop. An empty one must come back as well.
	"DeepSeek":       {message: `"reasoning_content":"Why?"`, refuse: needsMember("reasoning_content", `"Why?"`)},
	"DeepSeek empty": {message: `"reasoning_content":""`, refuse: needsMember("reasoning_content", `""`)},
	// https://api-docs.deepseek.com/guides/reasoning_model, of the first reasoning model: 400
	// if reasoning_content is in the input.
	"DeepSeek R1": {message: `"reasoning_content":"Why?"`, refuse: refusesWord(`"reasoning_content"`, "reasoning_content is not allowed in the input messages")},
	// https://openrouter.ai/docs/use-cases/reasoning-tokens: reasoning_details come back unmodified.
	"OpenRouter": {message: `"reasoning":"Why?","reasoning_details":[{"type":"reasoning.encrypted","data":"e==","id":"rs_1","format":"v1","index":0}]`,
		refuse: needsMember("reasoning_details", `[{"type":"reasoning.encrypted","data":"e==","id":"rs_1","format":"v1","index":0}]`)},
	// https://learn.microsoft.com/azure/ai-services/openai/reference: the header api-key, the
	// query api-version.
	"Azure": {profile: `"headers":{"api-key":"${AZURE_KEY}"},"query":{"api-version":"2024-10-21"}`, refuse: func(r *http.Request, _ string, _ wireMessages) string {
		if r.Header.Get("api-key") != "canary-azure" || r.URL.Query().Get("api-version") != "2024-10-21" || r.Header.Get("Authorization") != "" {
			return "Access denied due to invalid subscription key or wrong API version."
		}
		return ""
	}},
	// https://github.com/editor-code-assistant/eca/issues/231: unknown members are extra_forbidden.
	"Mistral": {profile: `"max_output_tokens":100`, refuse: refusesWord(`"max_completion_tokens"`, "extra_forbidden: body.max_completion_tokens: Extra inputs are not permitted")},
	// https://github.com/tashfeenahmed/freellmapi/issues/1070: unknown members are unsupported.
	"Groq": {message: `"reasoning":"Why?","channel":"analysis"`, refuse: refusesWord(`"channel"`, "'messages.2' : property 'channel' is unsupported")},
	// https://github.com/vllm-project/vllm/issues/27755: reasoning in place of reasoning_content.
	"vLLM": {message: `"reasoning":"Why?"`, refuse: needsMember("reasoning", `"Why?"`)},
	// https://ollama.com/blog/streaming-tool: each call comes whole.
	"Ollama": {message: `"reasoning":"Why?"`},
	// https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
	"llama.cpp": {message: `"reasoning_content":"Why?"`},
}

// serve answers a request: two rounds of calls, then a text.
func (p provider) serve(w http.ResponseWriter, r *http.Request, refused *atomic.Int64) {
	body, _ := io.ReadAll(r.Body)
	var request struct{ Messages wireMessages }
	if err := json.Unmarshal(body, &request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var calls wireMessages
	for _, m := range request.Messages {
		if m["tool_calls"] != nil {
			calls = append(calls, m)
		}
	}
	if p.refuse != nil {
		if why := p.refuse(r, string(body), calls); why != "" {
			refused.Add(1)
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": why}})
			return
		}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	deltas, finish := []string{`{"content":"Done."}`}, "stop"
	if len(calls) < 2 {
		call := fmt.Sprintf(`"index":0,"id":"Call0000%d","type":"function","function":{"name":"calculate","arguments":"{\"expression\":\"1 + %d\"}"}`, len(calls), len(calls))
		if p.call != "" {
			call += "," + p.call
		}
		deltas, finish = []string{`{` + p.message + `}`, `{"tool_calls":[{` + call + `}]}`}, "tool_calls"
	}
	for _, d := range deltas {
		fmt.Fprintf(w, "data: {\"model\":\"upstream-1\",\"choices\":[{\"index\":0,\"delta\":%s}]}\n\n", d)
	}
	fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":%q}]}\n\ndata: [DONE]\n\n", finish)
}

func TestProviderAnswersAfterTwoRoundsOfCalls(t *testing.T) {
	for name, p := range providers {
		t.Run(name, func(t *testing.T) {
			var refused atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, &refused) }))
			t.Cleanup(server.Close)
			profile := `{"id":"m","base_url":"` + server.URL + `/v1"`
			if p.profile != "" {
				profile += "," + p.profile
			}
			w := newTestWorld(t, newTwoCallScript())
			s := startAnswerd(t, w.environment("MODELS_FILE", modelsFile(t, "["+profile+"}]"), "DEFAULT_MODEL_ID", "m", "AZURE_KEY", "canary-azure"))
			c := newClient(t)
			a := postQuestion(t, c, s.url, `{"question":"Q"}`)
			var metadata struct {
				ToolNames []string `json:"tool_names"`
				Model     string   `json:"model"`
				Upstream  string   `json:"upstream_model"`
			}
			if err := json.Unmarshal(a.Metadata, &metadata); err != nil || a.Answer != "Done." || len(metadata.ToolNames) != 2 || metadata.Model != "m" || metadata.Upstream != "upstream-1" {
				t.Errorf("got %q with %s, want Done. after two calls by upstream-1", a.Answer, a.Metadata)
			}
			_, events := getBody(t, c, s.url+"/runs/"+a.RunID+"/events")
			for _, secret := range []string{"extra_content", "reasoning_content", "reasoning_details", "CrICAdHtim", "canary"} {
				if strings.Contains(events, secret) {
					t.Errorf("got %s in the events, want nothing of it", secret)
				}
			}
			if n := len(w.model.Requests()); n > 0 {
				t.Errorf("got %d requests at LLM_BASE_URL, want none", n)
			}
		})
	}
}

// A model that is down is replaced by its fallback, which gets its own key and no other.
func TestFallbackAnswersWithItsOwnKey(t *testing.T) {
	var keys atomic.Value
	backup := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys.Store(r.Header.Get("Authorization") + r.URL.RawQuery)
		provider{}.serve(w, r, nil)
	}))
	t.Cleanup(backup.Close)
	w := newTestWorld(t, newTwoCallScript())
	file := modelsFile(t, `[{"id":"a","base_url":"http://`+closedAddress(t)+`/v1","api_key":"k1","fallback":["b"]},{"id":"b","base_url":"`+backup.URL+`/v1?x=1","api_key":"${BACKUP_KEY}"}]`)
	s := startAnswerd(t, w.environment("MODELS_FILE", file, "DEFAULT_MODEL_ID", "a", "BACKUP_KEY", "k2", "LLM_MAX_RETRIES", "0"))
	a := postQuestion(t, newClient(t), s.url, `{"question":"Q"}`)
	if got := string(a.Metadata); a.Answer != "Done." || !strings.Contains(got, `"model":"a","upstream_model":"upstream-1"`) {
		t.Errorf("got %q with %s, want Done. of a by upstream-1", a.Answer, got)
	}
	if got, want := keys.Load(), "Bearer k2x=1"; got != want {
		t.Errorf("the fallback got %q, want %q", got, want)
	}
}
