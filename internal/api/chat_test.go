package api_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/api"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// completion is what a caller of Chat Completions reads.
type completion struct {
	ID, Object, Model string
	Choices           []struct {
		Message struct {
			Content   *string
			Reasoning string `json:"reasoning_content"`
			ToolCalls []struct {
				ID       string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		FinishReason string `json:"finish_reason"`
	}
	Usage struct {
		TotalTokens int `json:"total_tokens"`
	}
}

// openAIError is how the OpenAI faces refuse.
type openAIError struct {
	Error struct {
		Message, Type, Code string
		Param               *string
	}
}

func chatCompletionBody(content string, more ...string) string {
	return `{"model":"scripted","messages":[{"role":"user","content":"` + content + `"}]` + strings.Join(more, "") + `}`
}

// S2.11: the same format with and without streaming.
func TestChatCompletionIsTheRunsAnswer(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	resp := s.do(t, "POST", "/v1/chat/completions", chatCompletionBody("What is 1 + 2?"), "Accept", "text/event-stream")
	c := decodeResponse[completion](t, resp, 200)
	m := c.Choices[0].Message
	if *m.Content != "It is 3." || c.Choices[0].FinishReason != "stop" || c.Usage.TotalTokens != 30 || len(m.ToolCalls) > 0 {
		t.Errorf(`completion %+v, m.Content %q, %d ToolCalls, want Content "It is 3.", Choices[0].FinishReason stop, Usage.TotalTokens 30, ToolCalls 0`, c, *m.Content, len(m.ToolCalls))
	}
	if want := "[add {\"a\":1,\"b\":2}]\n[add: {\"sum\":3}]\n"; m.Reasoning != want {
		t.Errorf("reasoning %q, want %q", m.Reasoning, want)
	}
	run := strings.TrimPrefix(c.ID, "chatcmpl-")
	if r, err := s.Log.Run(t.Context(), run); err != nil || r.Last.Body.Type() != "final_answer" {
		t.Errorf("run %s: %v, want type final_answer, no error", run, err)
	}
}

func TestChatChunksSatisfyStrictClients(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	resp := s.do(t, "POST", "/v1/chat/completions", chatCompletionBody("What is 1 + 2?", `,"stream":true,"stream_options":{"include_usage":true}`), "Accept", "application/json")

	all := readFrames(t, resp, "")
	var text, reasons []string
	for i, f := range all[:len(all)-1] {
		var chunk map[string]json.RawMessage
		if err := json.Unmarshal(f.Data, &chunk); err != nil {
			t.Fatal(err)
		}

		var choices []struct {
			Delta struct {
				Role, Content string
				Reasoning     string `json:"reasoning_content"`
			}
			FinishReason string `json:"finish_reason"`
		}
		if err := json.Unmarshal(chunk["choices"], &choices); err != nil || choices == nil || f.Event != "" || f.ID != "" {
			t.Fatalf("frame %+v, want choices non-nil, Event empty, ID empty, no error", f)
		}
		last := i == len(all)-2
		if (string(chunk["usage"]) == "null") == last || last != (len(choices) == 0) {
			t.Errorf("usage %s and %d choices in chunk %d, want usage without choices in the last one only", chunk["usage"], len(choices), i)
		}

		for _, c := range choices {
			if (c.Delta.Role == "assistant") != (i == 0) {
				t.Errorf("role %q in chunk %d, want assistant in chunk 0 only", c.Delta.Role, i)
			}
			if c.Delta.Content != "" && c.Delta.Reasoning != "" {
				t.Errorf("both in chunk %d, Delta.Reasoning %q, want empty", i, c.Delta.Reasoning)
			}
			text = append(text, c.Delta.Content)
			reasons = append(reasons, c.FinishReason)
		}
	}
	if strings.Join(text, "") != "It is 3." || strings.Join(reasons, "") != "stop" || string(all[len(all)-1].Data) != "[DONE]" {
		t.Errorf(`text %q, finish %q, last %s, want "It is 3.", stop and [DONE]`, text, reasons, all[len(all)-1].Data)
	}
}

// The tools of the caller, there and back.
func TestChatClientToolCallAndResult(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{ID: "c1", Name: "colour", Args: `{"of":"sky"}`}), llmtest.Says("Blue.")), nil, nil)
	tools := `,"tools":[{"type":"function","function":{"name":"colour","parameters":{"type":"object"}}}]`
	c := decodeResponse[completion](t, s.do(t, "POST", "/v1/chat/completions", chatCompletionBody("The sky?", tools)), 200)
	calls := c.Choices[0].Message.ToolCalls
	if c.Choices[0].FinishReason != "tool_calls" || len(calls) != 1 || calls[0].ID != "c1" || calls[0].Function.Arguments != `{"of":"sky"}` || c.Choices[0].Message.Content != nil {
		t.Fatalf(`completion %+v, %d calls, want Choices[0].FinishReason tool_calls, calls 1, ID c1, Function.Arguments {"of":"sky"}, Choices[0].Message.Content nil`, c, len(calls))
	}
	body := `{"messages":[{"role":"user","content":"The sky?"},
		{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"colour","arguments":"{\"of\":\"sky\"}"}}]},
		{"role":"tool","tool_call_id":"c1","content":"blue"}]` + tools + `}`
	c = decodeResponse[completion](t, s.do(t, "POST", "/v1/chat/completions", body), 200)
	if *c.Choices[0].Message.Content != "Blue." {
		t.Errorf("completion %+v, want Choices[0].Message.Content Blue.", c)
	}
	r, err := s.Log.Run(t.Context(), strings.TrimPrefix(c.ID, "chatcmpl-"))
	if err != nil {
		t.Fatal(err)
	}

	page, err := s.Log.After(t.Context(), r.ID, 0)
	if err != nil || page.Events[0].Body.(event.Start).Question != "The sky?" {
		t.Errorf(`the run is about %s, %v, want the question "The sky?"`, page.Events[0].AppendJSON(nil), err)
	}
}

func TestOpenAIFormatsReportErrorsInOpenAIsShape(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), func(o *agent.Options) { o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted"}} },
		func(o *api.Options) { o.MaxBody = 2000 })
	for _, c := range []struct {
		body, header, value string
		status              int
		code, param         string
	}{
		{body: `{`, status: 400, code: "invalid_request"},
		{body: chatCompletionBody("x", `,"n":2`), status: 400, code: "invalid_request", param: "n"},
		{body: chatCompletionBody("x", `,"temperature":"hot"`), status: 400, code: "invalid_request", param: "temperature"},
		{body: chatCompletionBody("x", `,"answerd":{"max_turns":0}`), status: 400, code: "invalid_request", param: "answerd.max_turns"},
		{body: chatCompletionBody("x", `,"answerd":{"nope":0}`), status: 400, code: "invalid_request", param: "answerd.nope"},
		{body: chatCompletionBody("x", `,"answerd":{"servers":["none"]}`), status: 400, code: "invalid_request", param: "answerd.servers.0"},
		{body: chatCompletionBody("x", `,"tool_choice":{"type":"function","function":{"name":"nosuch"}}`), status: 400, code: "invalid_request", param: "tool_choice"},
		{body: strings.Replace(chatCompletionBody("x"), "scripted", "other", 1), status: 404, code: "model_not_found", param: "model"},
		{body: chatCompletionBody(strings.Repeat("x", 2000)), status: 413, code: "too_large"},
		{body: chatCompletionBody("x"), header: "Content-Type", value: "text/plain", status: 415, code: "unsupported_media"},
		{body: chatCompletionBody("x"), header: "Origin", value: "https://elsewhere.example", status: 403, code: "forbidden"},
	} {
		header := []string{}
		if c.header != "" {
			header = []string{c.header, c.value}
		}
		resp := s.do(t, "POST", "/v1/chat/completions", c.body, header...)
		e := decodeResponse[openAIError](t, resp, c.status)
		param := ""
		if e.Error.Param != nil {
			param = *e.Error.Param
		}
		if e.Error.Code != c.code || param != c.param || e.Error.Message == "" || e.Error.Type == "" || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%.80s: %+v, param %q, Content-Type %q, want Error.Code %q, param %q, Error.Message non-empty, Error.Type non-empty, Content-Type application/json", c.body, e, param, resp.Header.Get("Content-Type"), c.code, c.param)
		}
	}
	if len(s.Model.Requests()) > 0 {
		t.Errorf("a run was started: %d requests, want 0", len(s.Model.Requests()))
	}
}

// OpenAI's clients repeat what failed; what ran tools must not be repeated unasked.
func TestChatForbidsRetriesAfterToolCalls(t *testing.T) {
	t.Parallel()
	bad := llmtest.Fails(http.StatusServiceUnavailable, "no") // which a retry may cure
	for _, acted := range []bool{false, true} {
		answers := []llmtest.Answer{bad}
		if acted {
			answers = []llmtest.Answer{llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), bad}
		}
		s := newService(t, llmtest.Turns(answers...), nil, nil)
		resp := s.do(t, "POST", "/v1/chat/completions", chatCompletionBody("x"))
		e := decodeResponse[openAIError](t, resp, 502)
		if retry := resp.Header.Get("X-Should-Retry"); (retry == "false") != acted || e.Error.Code != "model_error" {
			t.Errorf("acted %t: %+v, x-should-retry %q, want model_error, and false where it acted", acted, e, retry)
		}
		stream := s.do(t, "POST", "/v1/chat/completions", chatCompletionBody("x", `,"stream":true`))
		b, err := io.ReadAll(stream.Body)
		if err != nil || !strings.Contains(string(b), `data: {"error":{"message":"`) || strings.Contains(string(b), "[DONE]") {
			t.Errorf(`stream: %s, %v, want b containing data: {"error":{"message":", b without [DONE], no error`, b, err)
		}
	}
}

// OpenAI's clients repeat what is 409, 429 or 5xx twice on their own, unless x-should-retry says no.
func TestOpenAIErrorsSayWhetherARetryHelps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fails  llmtest.Answer
		body   string
		status int
		code   string
		retry  string
	}{
		"the endpoint does not know the model": {llmtest.Fails(404, "The model `m` does not exist"), chatCompletionBody("x"), 404, "model_not_found", "false"},
		"the endpoint has no such path":        {llmtest.Fails(404, "Not Found"), chatCompletionBody("x"), 502, "model_error", "false"},
		"credentials":                          {llmtest.Fails(401, "no"), chatCompletionBody("x"), 502, "model_error", "false"},
		"the endpoint fails":                   {llmtest.Fails(503, "no"), chatCompletionBody("x"), 502, "model_error", ""},
		"a bad body":                           {llmtest.Says("x"), `{"messages":1}`, 400, "invalid_request", "false"},
		"the conversation is too long":         {contextExceeded, chatCompletionBody("x"), 400, "context_length_exceeded", "false"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, func(llmtest.Request) llmtest.Answer { return c.fails }, nil, nil)
			resp := s.do(t, "POST", "/v1/chat/completions", c.body)
			e := decodeResponse[openAIError](t, resp, c.status)
			if e.Error.Code != c.code || resp.Header.Get("X-Should-Retry") != c.retry {
				t.Errorf("code %s, x-should-retry %q; want %s, %q", e.Error.Code, resp.Header.Get("X-Should-Retry"), c.code, c.retry)
			}
		})
	}

	s := newService(t, func(llmtest.Request) llmtest.Answer { return llmtest.Fails(404, "model 'm' not found") }, nil, nil)
	resp := s.do(t, "POST", "/v1/responses", responsesBody("x"))
	if e := decodeResponse[openAIError](t, resp, 404); e.Error.Code != "model_not_found" || resp.Header.Get("X-Should-Retry") != "false" {
		t.Errorf("responses: %+v, x-should-retry %q, want Error.Code model_not_found, X-Should-Retry false", e, resp.Header.Get("X-Should-Retry"))
	}
	wantProblem(t, s.do(t, "POST", "/answer", question), 502, "model_error")

	for _, c := range []struct{ path, body string }{{"/v1/chat/completions", chatCompletionBody("x", `,"stream":true`)}, {"/v1/responses", responsesBody("x", `,"stream":true`)}} {
		b, err := io.ReadAll(s.do(t, "POST", c.path, c.body).Body)
		if err != nil || !strings.Contains(string(b), `"code":"model_not_found"`) {
			t.Errorf(`stream of %s: %s, %v, want b containing "code":"model_not_found", no error`, c.path, b, err)
		}
	}
}

// contextExceeded refuses a conversation as OpenAI's API does when it is too long.
var contextExceeded = llmtest.Fails(400, `{"error":{"message":"too long","code":"context_length_exceeded"}}`)

// Clients shorten the conversation when they see OpenAI's code. They repeat a stream that fails with another code.
func TestOpenAIErrorsNameAConversationThatIsTooLong(t *testing.T) {
	t.Parallel()
	s := newService(t, func(llmtest.Request) llmtest.Answer { return contextExceeded }, nil, nil)
	e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", responsesBody("x")), 400).Error
	if e.Code != "context_length_exceeded" || e.Type != "invalid_request_error" || e.Param == nil || *e.Param != "input" {
		t.Errorf("error of a response: %+v, want context_length_exceeded, invalid_request_error and the parameter input", e)
	}
	for path, c := range map[string]struct{ body, want string }{
		"/v1/chat/completions": {chatCompletionBody("x", `,"stream":true`), `"type":"invalid_request_error","param":"messages","code":"context_length_exceeded"`},
		"/v1/responses":        {responsesBody("x", `,"stream":true`), `"error":{"code":"context_length_exceeded"`},
	} {
		b, err := io.ReadAll(s.do(t, "POST", path, c.body).Body)
		if err != nil || !strings.Contains(string(b), c.want) {
			t.Errorf("stream of %s: %s, error %v, want %s in it and no error", path, b, err, c.want)
		}
	}
	wantProblem(t, s.do(t, "POST", "/answer", question), 413, "too_large")
}

// OpenAI's clients show X-Request-Id as the request_id of a response or an error, whose body has no trace id.
func TestOpenAIFormatsHaveTheTraceIDInAHeader(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.TraceID = func(context.Context) string { return "0a0b" } })
	for _, c := range []struct{ path, body, want string }{
		{"/v1/chat/completions", chatCompletionBody("x", `,"stream":true`), "0a0b"},
		{"/v1/responses", responsesBody("x"), "0a0b"},
		{"/v1/responses", `{`, "0a0b"},
		{"/answer", question, ""}, // its answers and problem documents have trace_id
	} {
		if got := s.do(t, "POST", c.path, c.body).Header.Get("X-Request-Id"); got != c.want {
			t.Errorf("%s: X-Request-Id %q, want %q", c.path, got, c.want)
		}
	}
}

func TestIdempotencyKeyWorksInEveryFormat(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	first := decodeResponse[completion](t, s.do(t, "POST", "/v1/chat/completions", chatCompletionBody("x"), "Idempotency-Key", "k"), 200)
	again := decodeResponse[completion](t, s.do(t, "POST", "/v1/chat/completions", chatCompletionBody("x"), "Idempotency-Key", "k"), 200)
	if first.ID != again.ID {
		t.Errorf("%s and %s, want %s", first.ID, again.ID, again.ID)
	}
	one := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x"), "Idempotency-Key", "r"), 200)
	two := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x"), "Idempotency-Key", "r"), 200)
	if one.ID != two.ID {
		t.Errorf("%s and %s, want %s", one.ID, two.ID, two.ID)
	}
	e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/chat/completions", chatCompletionBody("y"), "Idempotency-Key", "k"), 422)
	if e.Error.Code != "unprocessable" {
		t.Errorf("error %+v, want Error.Code unprocessable", e)
	}
}

// Titles and follow-ups, which chat UIs ask for by themselves, call no tools.
func TestModelsHaveAVariantWithoutTools(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Says("A title")), nil, nil)
	list := decodeResponse[struct{ Data []struct{ ID string } }](t, s.do(t, "GET", "/v1/models", ""), 200)
	if len(list.Data) != 2 || list.Data[0].ID != "scripted" || list.Data[1].ID != "scripted:no-tools" {
		t.Fatalf("list %+v, want 2 Data, Data[0].ID scripted, Data[1].ID scripted:no-tools", list)
	}
	decodeResponse[completion](t, s.do(t, "POST", "/v1/chat/completions", strings.Replace(chatCompletionBody("x"), "scripted", "scripted:no-tools", 1)), 200)
	if r := s.Model.Requests()[0]; r.Model != "scripted" || len(r.Tools) > 0 {
		t.Errorf("%s with %d tools, want Model scripted, Tools 0", r.Model, len(r.Tools))
	}
}

func TestCORSAllowsTheHeadersOfOpenAIsClient(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.CORSOrigins = []string{"https://ui.example"} })
	resp := s.do(t, "OPTIONS", "/v1/chat/completions", "", "Origin", "https://ui.example",
		"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "x-stainless-os,x-evil,authorization")
	if got := resp.Header.Get("Access-Control-Allow-Headers"); !strings.Contains(got, "x-stainless-os") || strings.Contains(got, "x-evil") {
		t.Errorf("allowed: %s, want it to contain x-stainless-os and without x-evil", got)
	}
}

// The requests of chat UIs that cannot be run here, as they are known from their source,
// their documents and their issues: what each asks for by itself, and what comes of it.
func TestChatAnswersWhatChatUIsSend(t *testing.T) {
	t.Parallel()
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
			s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), llmtest.Says("It is 3.")), nil, nil)
			if !c.tools {
				s = newService(t, llmtest.Turns(llmtest.Says("It is 3.")), nil, nil)
			}
			header := append([]string{"Authorization", "Bearer none", "Accept", "*/*"}, c.header...)
			said := readBody(t, s.doContext(boundedContext(t), t, "POST", "/v1/chat/completions", c.body, header...))
			if !strings.Contains(said, "3.") || strings.Contains(said, `"tool_calls":[`) {
				t.Errorf(`said %q, want said containing 3., said without "tool_calls":[`, said)
			}
			first := s.Model.Requests()[0]
			if first.Model != "scripted" || len(first.Tools) > 0 != c.tools {
				t.Errorf("%s with %d tools, want scripted with tools: %t", first.Model, len(first.Tools), c.tools)
			}

			for _, tool := range first.Tools {
				if tool.Function.Name == "add" && tool.Function.Description == "theirs" {
					t.Errorf("the caller's tool stands in the place of the service's: Function.Description %q, want other than theirs", tool.Function.Description)
				}
			}

			if !strings.Contains(c.body, `"stream":true`) {
				decodeJSON[completion](t, said)
				return
			}

			// LobeChat loses the content of a delta that has both.
			for _, line := range strings.Split(said, "\n") {
				if strings.Contains(line, `"reasoning_content":"`) && strings.Contains(line, `"content":"`) {
					t.Errorf(`both in one delta: %q, want no "reasoning_content":" or "content":"`, line)
				}
			}
		})
	}

	// Each verifies a connection, and fetches the models, by this.
	s := newService(t, addingModel(), nil, nil)
	readBody(t, s.do(t, "GET", "/v1/models", "", "Authorization", "Bearer none", "Accept", "application/json"))
}

func decodeJSON[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Errorf("%s: %v", text, err)
	}
	return v
}
