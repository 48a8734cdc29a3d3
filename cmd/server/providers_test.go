package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"answerd/internal/sse"
)

// wireMessages holds the messages of a request with all of their members.
type wireMessages []map[string]json.RawMessage

// provider describes the documented behaviour of one provider's Chat Completions endpoint.
type provider struct {
	deltas  []string // before the calls of a round, each a JSON object
	call    string   // members of the first call of a round beside id, type and function; "" for none
	profile string   // members of the profile in MODELS_FILE, without braces; "" for none
	status  int      // of a refusal; 0 is 400
	error   string   // the body of a refusal; "" has OpenAI's shape
	// refuse returns why the endpoint answers 400 to a request; "" if it accepts it.
	refuse func(r *http.Request, body string, calls wireMessages) string
}

// needsMember refuses messages with calls that lack the member, or have another value.
func needsMember(name, value, why string) func(*http.Request, string, wireMessages) string {
	return func(_ *http.Request, _ string, calls wireMessages) string {
		for _, m := range calls {
			if string(m[name]) != value {
				return why
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

const (
	geminiSignature   = `"extra_content":{"google":{"thought_signature":"CrICAdHtim=="}}`
	openRouterDetails = `[{"type":"reasoning.encrypted","data":"e==","id":"rs_1","format":"v1","index":0}]`
	mistralThinking   = `{"type":"thinking","thinking":[{"type":"text","text":"Why?"}],"signature":"s=="}`
	deepSeekMissing   = "The `reasoning_content` in the thinking mode must be passed back to the API."
)

// needsSignature refuses messages whose first call lacks the signature of Gemini 3, or whose
// other calls have one.
func needsSignature(_ *http.Request, _ string, calls wireMessages) string {
	for _, m := range calls {
		var list []json.RawMessage
		_ = json.Unmarshal(m["tool_calls"], &list)
		for i, c := range list {
			if strings.Contains(string(c), geminiSignature) != (i == 0) {
				return "Function call is missing a thought_signature in functionCall parts."
			}
		}
	}
	return ""
}

// providers have their behaviour from the pages that are named; "read" means an excerpt of the
// page in a public index, not the provider itself.
var providers = map[string]provider{
	// https://ai.google.dev/gemini-api/docs/thought-signatures, read: "When using Gemini 3 models, you
	// must pass back thought signatures during function calling, otherwise you will get a
	// validation error (4xx status code)"; of parallel calls the first has the signature, and each
	// call of a sequence has one. The text of the error: https://docs.apiyi.com/en/faq/gemini-thought-signature-missing.md.
	// The member of the OpenAI-compatible endpoint, extra_content.google.thought_signature of a call,
	// was read in public clients of it only.
	"Gemini 3": {call: geminiSignature, refuse: needsSignature},
	// https://api-docs.deepseek.com/guides/thinking_mode, read: if the model called tools, the
	// reasoning_content "must be passed back" in all later requests, and otherwise it is ignored.
	// deepseek-v4-pro and deepseek-v4-flash think by default. "For turns that do perform tool calls
	// … the API will return a 400 error" is quoted from there by https://github.com/anomalyco/opencode/issues/24722,
	// the error by https://github.com/crewAIInc/crewAI/issues/5878. In June 2026 the API accepted
	// requests without it, too: https://github.com/langchain-ai/langchain/issues/34166.
	"DeepSeek": {deltas: []string{`{"reasoning_content":"Wh"}`, `{"reasoning_content":"y?"}`}, refuse: needsMember("reasoning_content", `"Why?"`, deepSeekMissing)},
	// https://github.com/Oaklight/llm-rosetta/issues/356, read: a call after an empty
	// reasoning_content, without which the next request is 400.
	"DeepSeek empty": {deltas: []string{`{"reasoning_content":""}`}, refuse: needsMember("reasoning_content", `""`, deepSeekMissing)},
	// https://github.com/QwenLM/qwen-code/pull/3729, read: it sends calls without any
	// reasoning_content as well, and then refuses them without an empty one.
	"DeepSeek silent": {refuse: needsMember("reasoning_content", `""`, deepSeekMissing)},
	// https://api-docs.deepseek.com/guides/reasoning_model as of February 2025, read as mirrored by
	// https://deepseek.apidog.io/reasoning-model-deepseek-reasoner-835841m0: "if the reasoning_content
	// field is included in the sequence of input messages, the API will return a 400 error". That
	// model had no tool calls; servers of its weights do. The text of the error is not documented.
	"DeepSeek R1": {deltas: []string{`{"reasoning_content":"Why?"}`}, refuse: refusesWord(`"reasoning_content"`, "reasoning_content is not allowed in the input messages")},
	// https://openrouter.ai/docs/guides/best-practices/reasoning-tokens#preserving-reasoning-blocks, read
	// as https://github.com/RooCodeInc/Roo-Code/pull/9506 follows it: reasoning_details go back with
	// the calls. Which upstreams answer 400 without them is not documented; here it does.
	"OpenRouter": {deltas: []string{`{"reasoning":"Why?","reasoning_details":` + openRouterDetails + `}`},
		refuse: needsMember("reasoning_details", openRouterDetails, "reasoning_details are missing")},
	// https://learn.microsoft.com/azure/ai-services/openai/reference, read: 2024-10-21 is the last
	// dated version of the inference API, given as api-version in the query. The header api-key and
	// the 401: that page as known from use, not read.
	"Azure": {profile: `"headers":{"api-key":"${AZURE_KEY}"},"query":{"api-version":"2024-10-21"}`, status: http.StatusUnauthorized,
		refuse: func(r *http.Request, _ string, _ wireMessages) string {
			if r.Header.Get("api-key") != "canary-azure" || r.URL.Query().Get("api-version") != "2024-10-21" || r.Header.Get("Authorization") != "" {
				return "Access denied due to invalid subscription key or wrong API endpoint."
			}
			return ""
		}},
	// https://github.com/editor-code-assistant/eca/issues/315, read: 422 with this body.
	"Mistral": {profile: `"max_output_tokens":100`, status: http.StatusUnprocessableEntity,
		error:  `{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","max_completion_tokens"],"msg":"Extra inputs are not permitted","input":100}]},"type":"invalid_request_error","param":null,"code":null}`,
		refuse: refusesWord(`"max_completion_tokens"`, "extra_forbidden")},
	// examples/mistral/chat/reasoning_with_streaming.py and reasoning_multi_turn.py of
	// https://github.com/mistralai/client-python: while the model thinks, delta.content is a list
	// with a ThinkChunk, then one list with the last ThinkChunk and the first TextChunk, then
	// strings; the message goes back "with its ThinkChunks intact". The 400 for more than one of
	// them, and the empty strings between them: https://github.com/earendil-works/pi/issues/9674, read.
	"Mistral reasoning": {deltas: []string{
		`{"content":""}`, `{"content":[{"type":"thinking","thinking":[{"type":"text","text":"Wh"}]}]}`, `{"content":""}`,
		`{"content":[{"type":"thinking","thinking":[{"type":"text","text":"y?"}],"signature":"s=="},{"type":"text","text":"I "}]}`, `{"content":"calculate."}`,
	}, refuse: needsMember("content", `[`+mistralThinking+`,{"type":"text","text":"I calculate."}]`, "Expected at most one leading ThinkChunk, got 2")},
	// https://github.com/vercel/ai/issues/7860, read: for gpt-oss, reasoning of a turn with calls is
	// to be passed back.
	"Groq": {deltas: []string{`{"reasoning":"Why?"}`}, refuse: needsMember("reasoning", `"Why?"`, "reasoning is missing")},
	// https://github.com/karthink/gptel/issues/774 and https://github.com/vercel/ai/pull/8057, read:
	// other models of Groq refuse the reasoning, one of them after it sent some. The text is of
	// the former.
	"Groq strict": {deltas: []string{`{"reasoning":"Why?"}`},
		refuse: refusesWord(`"reasoning":`, "'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : property 'reasoning' is unsupported, did you mean 'role'?)]")},
	// https://github.com/vllm-project/vllm/issues/27755 and /issues/38488, read: reasoning in place
	// of reasoning_content, which is dropped from messages. vLLM does not refuse messages without
	// it; here it does, so that the test sees it.
	"vLLM": {deltas: []string{`{"reasoning":"Why?"}`}, refuse: needsMember("reasoning", `"Why?"`, "reasoning is missing")},
	// https://ollama.com/blog/streaming-tool, read: calls while the text is streamed, each whole.
	"Ollama": {deltas: []string{`{"reasoning":"Why?"}`}},
	// https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md, --reasoning-format,
	// read in descriptions of clients: thoughts come in reasoning_content.
	"llama.cpp": {deltas: []string{`{"reasoning_content":"Why?"}`}},
	// No provider: members that nobody has documented, of a message and of a call.
	"unknown members": {deltas: []string{`{"x_state":{"n":1.0,"s":"\u00e9"}}`}, call: `"x_call":[1,2.50]`,
		refuse: func(_ *http.Request, _ string, calls wireMessages) string {
			for _, m := range calls {
				if string(m["x_state"]) != `{"n":1.0,"s":"\u00e9"}` || !strings.Contains(string(m["tool_calls"]), `"x_call":[1,2.50]`) {
					return "x_state and x_call are missing"
				}
			}
			return ""
		}},
}

// endpoint is the endpoint of a provider: it calls tools in rounds, and then says Done.
type endpoint struct {
	provider
	rounds  [][]string      // the calls of each round: JSON objects with name and arguments
	refused atomic.Int64    // requests that it answered with 400
	begin   func(round int) // a request came in; nil does nothing
	release <-chan struct{} // the answer to the second request waits for it; nil does not
}

// newEndpoint returns the endpoint of a provider with two rounds of a call each.
func newEndpoint(p provider) *endpoint {
	e := &endpoint{provider: p}
	for i := range 2 {
		e.rounds = append(e.rounds, []string{fmt.Sprintf(`{"name":"calculate","arguments":"{\"expression\":\"1 + %d\"}"}`, i)})
	}
	return e
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

	if e.refuse != nil {
		if why := e.refuse(r, string(body), calls); why != "" {
			e.refused.Add(1)
			w.WriteHeader(cmp.Or(e.status, http.StatusBadRequest))
			if e.error != "" {
				_, _ = io.WriteString(w, e.error)
				return
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": why, "type": "invalid_request_error"}})
			return
		}
	}

	round := len(calls)
	if e.begin != nil {
		e.begin(round)
	}

	if e.release != nil && round == 1 {
		select {
		case <-e.release:
		case <-r.Context().Done():
			return
		}
	}

	w.Header().Set("Content-Type", "text/event-stream")
	deltas, finish := []string{`{"content":"Done."}`}, "stop"
	if round < len(e.rounds) {
		deltas, finish = slices.Clone(e.deltas), "tool_calls"
		for i, function := range e.rounds[round] {
			call := fmt.Sprintf(`"index":%d,"id":"Call000%d%d","type":"function","function":%s`, i, round, i, function)
			if e.call != "" && i == 0 {
				call += "," + e.call
			}
			deltas = append(deltas, `{"tool_calls":[{`+call+`}]}`)
		}
	}

	for _, d := range deltas {
		fmt.Fprintf(w, "data: {\"model\":\"upstream-1\",\"choices\":[{\"index\":0,\"delta\":%s}]}\n\n", d)
	}
	fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":%q}]}\n\ndata: [DONE]\n\n", finish)
}

func TestProviderAnswersAfterTwoRoundsOfCalls(t *testing.T) {
	t.Parallel()
	for name, p := range providers {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(newEndpoint(p))
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

			if strings.Contains(strings.Join(p.deltas, ""), "Wh") {
				if frames := readStream(t, get(t, c, s.url+"/runs/"+a.RunID+"/events")); reasoningOf(frames) != "Why?Why?" {
					t.Errorf("got reasoning %q, want Why? twice", reasoningOf(frames))
				}
			}

			_, events := getBody(t, c, s.url+"/runs/"+a.RunID+"/events")
			for _, secret := range []string{"extra_content", "reasoning_content", "reasoning_details", "CrICAdHtim", "x_state", "x_call", "s==", "canary"} {
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

// Calls that an earlier run made come without the members of the provider, which are asked for in
// this one: a client of Chat Completions that executes its own tools has never seen them.
func TestProviderAcceptsCallsOfAnEarlierRun(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(*http.Request, string, wireMessages) string{
		"Gemini 3": func(_ *http.Request, _ string, calls wireMessages) string {
			for _, m := range calls {
				if !strings.Contains(string(m["tool_calls"]), `"thought_signature":"skip_thought_signature_validator"`) {
					return "Function call is missing a thought_signature in functionCall parts. Function call `default_api:look`, position 2."
				}
			}
			return ""
		},
		"DeepSeek": needsMember("reasoning_content", `""`, deepSeekMissing),
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(&endpoint{provider: provider{refuse: refuse}, rounds: nil})
			t.Cleanup(server.Close)
			w := newTestWorld(t, newTwoCallScript())
			s := startAnswerd(t, w.environment("LLM_BASE_URL", server.URL+"/v1"))
			resp := post(t, newClient(t), s.url+"/v1/chat/completions", `{"model":"scripted","tools":[{"type":"function","function":{"name":"look","parameters":{"type":"object"}}}],"messages":[
				{"role":"user","content":"Q"},
				{"role":"assistant","content":null,"tool_calls":[{"id":"Call00000","type":"function","function":{"name":"look","arguments":"{}"}}]},
				{"role":"tool","tool_call_id":"Call00000","content":"seen"}]}`)
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"content":"Done."`) {
				t.Errorf("got %s %s, %v, want Done.", resp.Status, body, err)
			}
		})
	}
}

// A model that is down is replaced by its fallback, which gets its own key and no other.
func TestFallbackAnswersWithItsOwnKey(t *testing.T) {
	t.Parallel()
	var keys atomic.Value
	backup := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys.Store(r.Header.Get("Authorization") + r.URL.RawQuery)
		newEndpoint(provider{}).ServeHTTP(w, r)
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

// reasoningOf returns the reasoning in events.
func reasoningOf(frames []sse.Frame) (text string) {
	for _, f := range frames {
		var e struct{ Delta string }
		if f.Event == "reasoning_delta" && json.Unmarshal(f.Data, &e) == nil {
			text += e.Delta
		}
	}
	return text
}

// The errors of local servers, of which each has a next step.
func TestProviderErrorHasANextStep(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		body   string
		code   string
		detail string
	}{
		// https://github.com/ollama/ollama/issues/6027 and
		// https://github.com/tinyhumansai/openhuman/issues/2787, read.
		"Ollama, a model without tools": {400, `{"error":{"message":"registry.ollama.ai/library/gemma3:1b does not support tools","type":"api_error","param":null,"code":null}}`, "model_error", "LLM_TOOL_CALLING=text"},
		// https://github.com/vllm-project/vllm/issues/9986 and https://github.com/vllm-project/vllm/pull/30613, read.
		"vLLM without a parser": {400, `{"object":"error","message":"\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set","type":"BadRequestError","param":null,"code":400}`, "model_error", "LLM_TOOL_CALLING=text"},
		// https://github.com/evalstate/fast-agent/issues/122, read.
		"OpenRouter, a model without tools": {404, `{"error":{"message":"No endpoints found that support tool use. To learn more about provider routing, visit: https://openrouter.ai/docs/provider-routing","code":404}}`, "model_error", "LLM_TOOL_CALLING=text"},
		// https://github.com/google/adk-python/issues/952, read.
		"xAI, a model without tools": {400, `{"code":"Client specified an invalid argument","error":"Invalid request content: The model does not support tool use or function calling but tools or tool_choice have been specified on the request."}`, "model_error", "LLM_TOOL_CALLING=text"},
		// https://github.com/ggml-org/llama.cpp/issues/10920, read: of versions before 2025.
		"llama.cpp, an old one": {500, `{"code":500,"message":"Unsupported param: tools","type":"server_error"}`, "model_error", "LLM_TOOL_CALLING=text"},
		// https://github.com/ggml-org/llama.cpp/pull/15780 and
		// https://github.com/oobabooga/textgen/issues/7257, read.
		"llama.cpp, a long conversation": {400, `{"error":{"code":400,"message":"the request exceeds the available context size. try increasing the context size or enable context shift","type":"exceed_context_size_error","n_prompt_tokens":14429,"n_ctx":8192}}`, "too_large", "context window"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}))
			t.Cleanup(server.Close)
			w := newTestWorld(t, newTwoCallScript())
			s := startAnswerd(t, w.environment("LLM_BASE_URL", server.URL+"/v1"))
			resp := post(t, newClient(t), s.url+"/answer", `{"question":"Q"}`)
			var problem struct{ Code, Detail string }
			if err := json.NewDecoder(resp.Body).Decode(&problem); err != nil || problem.Code != c.code || !strings.Contains(problem.Detail, c.detail) {
				t.Errorf("got %s with %q, %v, want %s with %s", problem.Code, problem.Detail, err, c.code, c.detail)
			}
		})
	}
}
