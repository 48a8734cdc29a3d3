package api_test

import (
	"encoding/json"
	"strings"
	"testing"

	"answerd/internal/llm/llmtest"
)

// The requests of chat UIs that cannot be run here, as they are known from their source,
// their documents and their issues: what each asks for by itself, and what comes of it.
func TestWhatChatUIsSendIsAnswered(t *testing.T) {
	const drawn = `{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="}}`
	for _, c := range []struct {
		name, body string
		header     []string
		tools      bool // whether the model is given tools
	}{
		{"Open WebUI, a question", `{"stream":true,"model":"scripted","messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"What is 1 + 2?"}],"stream_options":{"include_usage":true}}`,
			[]string{"X-OpenWebUI-User-Name", "Ada", "X-OpenWebUI-User-Id", "1", "X-OpenWebUI-Chat-Id", "c"}, true},
		{"Open WebUI, its parameters", `{"stream":true,"model":"scripted","messages":[{"role":"user","content":"And?"}],"temperature":0.8,"top_p":0.9,"frequency_penalty":0,"presence_penalty":0,"seed":1,"stop":["END"],"max_tokens":128,"reasoning_effort":"low","logit_bias":{}}`, nil, true},
		{"Open WebUI, a picture", `{"stream":true,"model":"scripted","messages":[{"role":"user","content":[{"type":"text","text":"What is it?"},` + drawn + `]}]}`, nil, true},
		{"Open WebUI, a title", `{"model":"scripted:no-tools","messages":[{"role":"user","content":"### Task:\nGenerate a concise, 3-5 word title."}],"stream":false,"max_completion_tokens":1000}`, nil, false},
		{"Open WebUI, tags and follow-ups", `{"model":"scripted:no-tools","messages":[{"role":"user","content":"### Task:\nGenerate 1-3 broad tags."}],"stream":false}`, nil, false},
		{"LibreChat, a question", `{"model":"scripted","user":"65f0","temperature":1,"top_p":1,"presence_penalty":0,"frequency_penalty":0,"stream":true,"messages":[{"role":"user","content":"What is 1 + 2?"}]}`, nil, true},
		{"LibreChat, its agents", `{"model":"scripted","user":"65f0","stream":true,"stream_options":{"include_usage":true},"parallel_tool_calls":true,"messages":[{"role":"developer","content":"Be kind."},{"role":"user","content":[{"type":"text","text":"And?"}]}],"tools":[{"type":"function","function":{"name":"add","description":"theirs","parameters":{"type":"object","properties":{}}}}]}`, nil, true},
		{"LibreChat, a title", `{"model":"scripted:no-tools","temperature":0.2,"presence_penalty":0,"frequency_penalty":0,"max_tokens":16,"stream":false,"messages":[{"role":"system","content":"Write a concise title."}, {"role":"user","content":"||>User:\n\"What is 1 + 2?\""}]}`, nil, false},
		{"LobeChat, a question", `{"model":"scripted","stream":true,"stream_options":{"include_usage":true},"temperature":1,"top_p":1,"presence_penalty":0,"frequency_penalty":0,"user":"u","messages":[{"role":"user","content":"And?"}]}`, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Says("It is 3.")), nil, nil)
			if !c.tools {
				s = serve(t, llmtest.Turns(llmtest.Says("It is 3.")), nil, nil)
			}
			header := append([]string{"Authorization", "Bearer none", "Accept", "*/*"}, c.header...)
			said := read(t, s.doContext(bounded(t), t, "POST", "/v1/chat/completions", c.body, header...))
			if !strings.Contains(said, "3.") || strings.Contains(said, `"tool_calls":[`) {
				t.Error(said)
			}
			first := s.Model.Requests()[0]
			if first.Model != "scripted" || len(first.Tools) > 0 != c.tools {
				t.Errorf("%s with %d tools", first.Model, len(first.Tools))
			}
			for _, tool := range first.Tools {
				if tool.Function.Name == "add" && tool.Function.Description == "theirs" {
					t.Error("the caller's tool stands in the place of the service's")
				}
			}
			if !strings.Contains(c.body, `"stream":true`) {
				decodeText[completion](t, said)
				return
			}
			// LobeChat loses the content of a delta that has both.
			for _, line := range strings.Split(said, "\n") {
				if strings.Contains(line, `"reasoning_content":"`) && strings.Contains(line, `"content":"`) {
					t.Error("both in one delta: " + line)
				}
			}
		})
	}
	// Each verifies a connection, and fetches the models, by this.
	s := serve(t, adds(), nil, nil)
	read(t, s.do(t, "GET", "/v1/models", "", "Authorization", "Bearer none", "Accept", "application/json"))
}

func decodeText[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Errorf("%s: %v", text, err)
	}
	return v
}
