package openai

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

var weather = llm.Tool{Name: "get_weather", Description: "Weather in a \"city\"\n<now>",
	Schema: json.RawMessage(`{"type":"object","$defs":{"d":{"enum":["a",null,1.0]}},"properties":{"city":{"anyOf":[{"type":"string"},{"$ref":"#/$defs/d"}]},"x":{"type":["string","null"]}},"required":["city"],"x-vendor":{"keep":[1e3]}}`)}

// sentRequest asks once and returns the request that the endpoint got.
func sentRequest(t *testing.T, r llm.Request) map[string]json.RawMessage {
	t.Helper()
	s, m := newEndpoint(t, Config{APIKey: "k"}, sendStream(helloStream))
	if _, err := llmtest.Collect(t.Context(), m, r); err != nil {
		t.Fatal(err)
	}
	got := s.receivedRequests()[0]
	if got.path != "/v1/chat/completions" || got.header.Get("Content-Type") != "application/json" || got.header.Get("Authorization") != "Bearer k" {
		t.Errorf("got path %s and header %v, want the path of Chat Completions and the key", got.path, got.header)
	}
	var body map[string]json.RawMessage
	if err := json.Unmarshal(got.body, &body); err != nil {
		t.Fatalf("got the body %s, want JSON: %v", got.body, err)
	}
	return body
}

func TestRequestWithoutToolsHasNoToolMembers(t *testing.T) {
	body := sentRequest(t, llm.Request{Model: "m", ToolChoice: llm.Required, Messages: []llm.Message{{Role: llm.System, Text: "S"}, {Role: llm.User, Text: "<Hi & \u2028>"}}})
	want := map[string]string{"model": `"m"`, "stream": `true`, "stream_options": `{"include_usage":true}`,
		"messages": `[{"role":"system","content":"S"},{"role":"user","content":"<Hi & ` + "\u2028" + `>"}]`}
	if len(body) != len(want) {
		t.Errorf("got members %v, want %v", body, want)
	}
	for name, w := range want {
		if got := string(body[name]); got != w {
			t.Errorf("%s: got %s, want %s", name, got, w)
		}
	}
}

func TestRequestHasTheWholeSchema(t *testing.T) {
	for choice, want := range map[llm.ToolChoice]string{"": `"auto"`, llm.Auto: `"auto"`, llm.None: `"none"`, llm.Required: `"required"`} {
		body := sentRequest(t, llm.Request{Model: "m", Tools: []llm.Tool{weather, {Name: "now"}}, ToolChoice: choice, Messages: testRequest.Messages})
		if got := string(body["tool_choice"]); got != want {
			t.Errorf("got tool_choice %s, want %s", got, want)
		}
		description, _ := json.Marshal(weather.Description)
		wantTools := `[{"type":"function","function":{"name":"get_weather","description":` + strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(string(description)) +
			`,"parameters":` + string(weather.Schema) + `}},{"type":"function","function":{"name":"now","parameters":{"type":"object","properties":{}}}}]`
		if got := string(body["tools"]); got != wantTools {
			t.Errorf("tools\ngot  %s\nwant %s", got, wantTools)
		}
	}
}

// A schema that is no JSON would break out of its place in the request.
func TestRequestFailsOnASchemaThatIsNotJSON(t *testing.T) {
	s, m := newEndpoint(t, Config{}, sendStream(helloStream))
	_, err := llmtest.Collect(t.Context(), m, llm.Request{Tools: []llm.Tool{{Name: "x", Schema: json.RawMessage(`{}}}],"model":"evil"`)}}})
	requireError(t, err, llm.ModelError)
	if len(s.receivedRequests()) != 0 {
		t.Error("got a request with an invalid schema, want none")
	}
}

func TestRequestHasCallsAndResultsInTheirWireFormat(t *testing.T) {
	body := sentRequest(t, llm.Request{Model: "m", Messages: []llm.Message{
		{Role: llm.User, Text: "Q"},
		{Role: llm.Assistant, Calls: []llm.ToolCall{{ID: "c1", Name: "get_weather", Arguments: `{"city":"Rome"}`}, {Index: 1, ID: "c2", Name: "no such/tool", Arguments: ""},
			{Index: 2, ID: "c3", Name: "f", Arguments: `{'a': 1}`}, {Index: 3, ID: "c4", Name: strings.Repeat("é", 40), Arguments: `[1]`}, {Index: 4, ID: "c5", Name: ""}}},
		{Role: llm.ToolRole, CallID: "c1", Tool: "get_weather", Text: "sunny"},
		{Role: llm.ToolRole, CallID: "c2", Text: "no such tool", Failed: true},
		{Role: llm.Assistant, Text: "It is sunny.", Calls: []llm.ToolCall{{ID: "c6", Name: "f"}}},
	}})
	call := func(id, name, args string) string {
		quoted, _ := json.Marshal(args)
		return `{"id":"` + id + `","type":"function","function":{"name":"` + name + `","arguments":` + string(quoted) + `}}`
	}
	want := `[{"role":"user","content":"Q"},{"role":"assistant","content":null,"tool_calls":[` + strings.Join([]string{
		call("c1", "get_weather", `{"city":"Rome"}`), call("c2", "no_such_tool", `{}`), call("c3", "f", `{"invalid_arguments":"{'a': 1}"}`),
		call("c4", strings.Repeat("_", 64), `{"invalid_arguments":"[1]"}`), call("c5", "tool", `{}`)}, ",") + `]},` +
		`{"role":"tool","content":"sunny","tool_call_id":"c1"},{"role":"tool","content":"no such tool","tool_call_id":"c2"},` +
		`{"role":"assistant","content":"It is sunny.","tool_calls":[` + call("c6", "f", `{}`) + `]}]`
	if got := string(body["messages"]); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestRequestKeepsEveryText(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a \"quote\" \\ / <b>&": "a \"quote\" \\ / <b>&", "\x00\x1f\x7f\b\f\n\r\t": "\x00\x1f\x7f\b\f\n\r\t",
		"ě 日本語 😀 \u2028\u2029\ufffd": "ě 日本語 😀 \u2028\u2029\ufffd", "a\xffb\xc3(": "a\ufffdb\ufffd(",
	} {
		body := sentRequest(t, llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.User, Text: text}}})
		var got []struct{ Content string }
		if err := json.Unmarshal(body["messages"], &got); err != nil || got[0].Content != want {
			t.Errorf("%q: got %q %v, want %q", text, got, err, want)
		}
	}
}

// Servers write names twice and blanks where they like; the tool is offered all the same.
func TestRequestAcceptsSchemasThatAreLaxJSON(t *testing.T) {
	schema := " {\n \"type\": \"object\", \"properties\": { \"a\": { \"const\": 1.0, \"const\": 1e3 , \"title\": \"\xff\" } } } "
	body := sentRequest(t, llm.Request{Model: "m", Tools: []llm.Tool{{Name: "x", Schema: json.RawMessage(schema)}}, Messages: testRequest.Messages})
	want := `{"type":"object","properties":{"a":{"const":1.0,"const":1e3,"title":"` + "\xff" + `"}}}`
	if got := string(body["tools"]); !strings.Contains(got, want) {
		t.Errorf("got %q, want %q in it", got, want)
	}
}

// The SDK's client reads OPENAI_* itself: its key would go to any endpoint.
func TestRequestHasNothingOfTheEnvironment(t *testing.T) {
	for name, value := range map[string]string{"OPENAI_API_KEY": "sk-CANARY", "OPENAI_ORG_ID": "CANARY", "OPENAI_PROJECT_ID": "CANARY",
		"OPENAI_BASE_URL": "http://127.0.0.1:1/CANARY", "OPENAI_CUSTOM_HEADERS": "X-Canary: CANARY"} {
		t.Setenv(name, value)
	}
	s, m := newEndpoint(t, Config{}, sendStream(helloStream))
	if _, err := llmtest.Collect(t.Context(), m, testRequest); err != nil {
		t.Fatal(err)
	}
	for name, values := range s.receivedRequests()[0].header {
		if strings.Contains(strings.Join(values, " "), "CANARY") || name == "Authorization" {
			t.Errorf("got the header %s: %q, want nothing of the environment", name, values)
		}
	}
}

// Runs that search for their tools must not drive out the block of those that don't.
func TestToolCacheKeepsAFewBlocks(t *testing.T) {
	var cache toolCache
	newToolSet := func(n int) []llm.Tool { return []llm.Tool{{Name: fmt.Sprint("t", n)}} }
	first, err := cache.renderTools(newToolSet(0))
	if err != nil {
		t.Fatal(err)
	}

	for n := range 8 {
		if _, err := cache.renderTools(newToolSet(n)); err != nil {
			t.Fatal(err)
		}
	}

	if again, _ := cache.renderTools(newToolSet(0)); &again[0] != &first[0] {
		t.Error("got the first of eight lists rendered again, want it from the cache")
	}
	_, _ = cache.renderTools(newToolSet(8))
	if again, _ := cache.renderTools(newToolSet(0)); &again[0] == &first[0] {
		t.Error("got the first of nine lists from the cache, want it rendered again")
	}
}

func TestToolCacheRendersOnlyChangedTools(t *testing.T) {
	var cache toolCache
	tools := []llm.Tool{weather, {Name: "now"}}
	first, err := cache.renderTools(tools)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := cache.renderTools(slices.Clone(tools)); &again[0] != &first[0] {
		t.Error("got the same tools rendered again, want them from the cache")
	}

	for name, other := range map[string][]llm.Tool{
		"name": {weather, {Name: "then"}}, "description": {weather, {Name: "now", Description: "x"}},
		"schema": {weather, {Name: "now", Schema: json.RawMessage(`{"type":"object","properties":{"x":{}}}`)}}, "fewer": {weather}, "order": {tools[1], tools[0]},
	} {
		if got, _ := cache.renderTools(other); string(got) == string(first) {
			t.Errorf("got the old block with another %s, want a new one", name)
		}
	}

	if got, _ := cache.renderTools(tools); string(got) != string(first) {
		t.Errorf("got %s for the first tools, want %s", got, first)
	}
}

// Gateways are often behind a name and password in their address. A key of the endpoint's comes first.
func TestRequestSendsTheUserinfoOfTheBaseURL(t *testing.T) {
	for key, want := range map[string]string{"": "Basic dXNlcjpwYXNz", "k": "Bearer k"} {
		s, _ := newEndpoint(t, Config{}, sendStream(helloStream))
		m := New(Config{BaseURL: strings.Replace(s.URL, "://", "://user:pass@", 1) + "/v1", APIKey: key})
		t.Cleanup(m.Close)
		if _, err := llmtest.Collect(t.Context(), m, testRequest); err != nil {
			t.Fatal(err)
		}
		if got := s.receivedRequests()[0].header.Get("Authorization"); got != want {
			t.Errorf("got Authorization %q, want %q", got, want)
		}
	}
}

// Mistral refuses a conversation with an empty answer in it, and so every later question
// (https://github.com/metadist/synaplan/issues/1115).
func TestEmptyAnswersAreLeftOut(t *testing.T) {
	s, m := newEndpoint(t, Config{}, sendStream(helloStream))
	if _, err := llmtest.Collect(t.Context(), m, llm.Request{Model: "m", Messages: []llm.Message{
		{Role: llm.User, Text: "Hi"}, {Role: llm.Assistant}, {Role: llm.Assistant, Text: " \n"}, {Role: llm.User, Text: "Are you there?"},
		{Role: llm.Assistant, Calls: []llm.ToolCall{{ID: "c", Name: "f", Arguments: "{}"}}}, {Role: llm.ToolRole, CallID: "c", Tool: "f", Text: "yes"},
	}}); err != nil {
		t.Fatal(err)
	}
	if body := s.receivedRequests()[0].body; strings.Count(string(body), `"role":"assistant"`) != 1 {
		t.Errorf("got the request %s, want only the answer with a call", body)
	}
}

// Anthropic refuses a text of white space alone, and so every later question: "text content blocks must contain
// non-whitespace text" (https://github.com/LibreChat-AI/agents/pull/124).
func TestTextOfWhiteSpaceAloneIsNotSent(t *testing.T) {
	body := sentRequest(t, llm.Request{Model: "m", Messages: []llm.Message{
		{Role: llm.User, Text: "Hi"},
		{Role: llm.Assistant, Text: "\n\n", Calls: []llm.ToolCall{{ID: "c", Name: "f", Arguments: "{}"}}}, {Role: llm.ToolRole, CallID: "c", Tool: "f", Text: " \n"},
	}})
	want := `[{"role":"user","content":"Hi"},` +
		`{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},` +
		`{"role":"tool","content":"(no content)","tool_call_id":"c"}]`
	if got := string(body["messages"]); got != want {
		t.Errorf("got the messages %s, want %s", got, want)
	}
}
