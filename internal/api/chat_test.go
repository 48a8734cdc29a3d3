package api_test

import (
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

func ask(content string, more ...string) string {
	return `{"model":"scripted","messages":[{"role":"user","content":"` + content + `"}]` + strings.Join(more, "") + `}`
}

// S2.11: the blocking and the streaming way of the same face.
func TestAChatCompletionIsTheRunsAnswer(t *testing.T) {
	s := serve(t, adds(), nil, nil)
	resp := s.do(t, "POST", "/v1/chat/completions", ask("What is 1 + 2?"), "Accept", "text/event-stream")
	c := decode[completion](t, resp, 200)
	m := c.Choices[0].Message
	if *m.Content != "It is 3." || c.Choices[0].FinishReason != "stop" || c.Usage.TotalTokens != 30 || len(m.ToolCalls) > 0 {
		t.Errorf("%+v", c)
	}
	if want := "[add {\"a\":1,\"b\":2}]\n[add: {\"sum\":3}]\n"; m.Reasoning != want {
		t.Errorf("reasoning %q", m.Reasoning)
	}
	run := strings.TrimPrefix(c.ID, "chatcmpl-")
	if r, err := s.Log.Run(t.Context(), run); err != nil || r.Last.Body.Type() != "final_answer" {
		t.Errorf("run %s: %v", run, err)
	}
}

func TestAStreamOfChunksSatisfiesStrictClients(t *testing.T) {
	s := serve(t, adds(), nil, nil)
	resp := s.do(t, "POST", "/v1/chat/completions", ask("What is 1 + 2?", `,"stream":true,"stream_options":{"include_usage":true}`), "Accept", "application/json")
	all := frames(t, resp, "")
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
			t.Fatalf("frame %+v", f)
		}
		last := i == len(all)-2
		if (string(chunk["usage"]) == "null") == last || last != (len(choices) == 0) {
			t.Errorf("usage %s in chunk %d", chunk["usage"], i)
		}
		for _, c := range choices {
			if (c.Delta.Role == "assistant") != (i == 0) {
				t.Errorf("role %q in chunk %d", c.Delta.Role, i)
			}
			if c.Delta.Content != "" && c.Delta.Reasoning != "" {
				t.Errorf("both in chunk %d", i)
			}
			text = append(text, c.Delta.Content)
			reasons = append(reasons, c.FinishReason)
		}
	}
	if strings.Join(text, "") != "It is 3." || strings.Join(reasons, "") != "stop" || string(all[len(all)-1].Data) != "[DONE]" {
		t.Errorf("text %q, finish %q, last %s", text, reasons, all[len(all)-1].Data)
	}
}

// The tools of the caller, there and back.
func TestACallOfTheCallersToolGoesOutAndItsResultComesBack(t *testing.T) {
	s := serve(t, llmtest.Turns(llmtest.Calls(llmtest.Call{ID: "c1", Name: "colour", Args: `{"of":"sky"}`}), llmtest.Says("Blue.")), nil, nil)
	tools := `,"tools":[{"type":"function","function":{"name":"colour","parameters":{"type":"object"}}}]`
	c := decode[completion](t, s.do(t, "POST", "/v1/chat/completions", ask("The sky?", tools)), 200)
	calls := c.Choices[0].Message.ToolCalls
	if c.Choices[0].FinishReason != "tool_calls" || len(calls) != 1 || calls[0].ID != "c1" || calls[0].Function.Arguments != `{"of":"sky"}` || c.Choices[0].Message.Content != nil {
		t.Fatalf("%+v", c)
	}
	body := `{"messages":[{"role":"user","content":"The sky?"},
		{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"colour","arguments":"{\"of\":\"sky\"}"}}]},
		{"role":"tool","tool_call_id":"c1","content":"blue"}]` + tools + `}`
	c = decode[completion](t, s.do(t, "POST", "/v1/chat/completions", body), 200)
	if *c.Choices[0].Message.Content != "Blue." {
		t.Errorf("%+v", c)
	}
	r, err := s.Log.Run(t.Context(), strings.TrimPrefix(c.ID, "chatcmpl-"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := s.Log.After(t.Context(), r.ID, 0)
	if err != nil || page.Events[0].Body.(event.Start).Question != "The sky?" {
		t.Errorf("%v: the run is about %s", err, page.Events[0].AppendJSON(nil))
	}
}

func TestOpenAIFacesRefuseInOpenAIsShape(t *testing.T) {
	s := serve(t, adds(), func(o *agent.Options) { o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted"}} },
		func(o *api.Options) { o.MaxBody = 2000 })
	for _, c := range []struct {
		body, header, value string
		status              int
		code, param         string
	}{
		{body: `{`, status: 400, code: "invalid_request"},
		{body: ask("x", `,"n":2`), status: 400, code: "invalid_request", param: "n"},
		{body: ask("x", `,"temperature":"hot"`), status: 400, code: "invalid_request", param: "temperature"},
		{body: ask("x", `,"answerd":{"max_turns":0}`), status: 400, code: "invalid_request", param: "answerd.max_turns"},
		{body: ask("x", `,"answerd":{"nope":0}`), status: 400, code: "invalid_request", param: "answerd.nope"},
		{body: ask("x", `,"answerd":{"servers":["none"]}`), status: 400, code: "invalid_request", param: "answerd.servers.0"},
		{body: ask("x", `,"tool_choice":{"type":"function","function":{"name":"nosuch"}}`), status: 400, code: "invalid_request", param: "tool_choice"},
		{body: strings.Replace(ask("x"), "scripted", "other", 1), status: 404, code: "model_not_found", param: "model"},
		{body: ask(strings.Repeat("x", 2000)), status: 413, code: "too_large"},
		{body: ask("x"), header: "Content-Type", value: "text/plain", status: 415, code: "unsupported_media"},
		{body: ask("x"), header: "Origin", value: "https://elsewhere.example", status: 403, code: "forbidden"},
	} {
		header := []string{}
		if c.header != "" {
			header = []string{c.header, c.value}
		}
		resp := s.do(t, "POST", "/v1/chat/completions", c.body, header...)
		e := decode[openAIError](t, resp, c.status)
		param := ""
		if e.Error.Param != nil {
			param = *e.Error.Param
		}
		if e.Error.Code != c.code || param != c.param || e.Error.Message == "" || e.Error.Type == "" || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%.80s: %+v, param %q", c.body, e, param)
		}
	}
	if len(s.Model.Requests()) > 0 {
		t.Error("a run was started")
	}
}

// OpenAI's clients repeat what failed; what ran tools must not be repeated unasked.
func TestAFailedRunThatRanToolsIsNotToBeRepeated(t *testing.T) {
	bad := llmtest.Fails(http.StatusBadRequest, "no")
	for _, acted := range []bool{false, true} {
		answers := []llmtest.Answer{bad}
		if acted {
			answers = []llmtest.Answer{llmtest.Calls(llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}), bad}
		}
		s := serve(t, llmtest.Turns(answers...), nil, nil)
		resp := s.do(t, "POST", "/v1/chat/completions", ask("x"))
		e := decode[openAIError](t, resp, 502)
		if retry := resp.Header.Get("X-Should-Retry"); (retry == "false") != acted || e.Error.Code != "model_error" {
			t.Errorf("acted %t: %+v, x-should-retry %q", acted, e, retry)
		}
		stream := s.do(t, "POST", "/v1/chat/completions", ask("x", `,"stream":true`))
		b, err := io.ReadAll(stream.Body)
		if err != nil || !strings.Contains(string(b), `data: {"error":{"message":"`) || strings.Contains(string(b), "[DONE]") {
			t.Errorf("stream: %s, %v", b, err)
		}
	}
}

func TestAnIdempotencyKeyHoldsOnEveryFace(t *testing.T) {
	s := serve(t, adds(), nil, nil)
	first := decode[completion](t, s.do(t, "POST", "/v1/chat/completions", ask("x"), "Idempotency-Key", "k"), 200)
	again := decode[completion](t, s.do(t, "POST", "/v1/chat/completions", ask("x"), "Idempotency-Key", "k"), 200)
	if first.ID != again.ID {
		t.Errorf("%s and %s", first.ID, again.ID)
	}
	one := decode[resource](t, s.do(t, "POST", "/v1/responses", respond("x"), "Idempotency-Key", "r"), 200)
	two := decode[resource](t, s.do(t, "POST", "/v1/responses", respond("x"), "Idempotency-Key", "r"), 200)
	if one.ID != two.ID {
		t.Errorf("%s and %s", one.ID, two.ID)
	}
	e := decode[openAIError](t, s.do(t, "POST", "/v1/chat/completions", ask("y"), "Idempotency-Key", "k"), 422)
	if e.Error.Code != "unprocessable" {
		t.Errorf("%+v", e)
	}
}

// Titles and follow-ups, which chat UIs ask for by themselves, call no tools.
func TestEveryModelHasATwinWithoutTools(t *testing.T) {
	s := serve(t, llmtest.Turns(llmtest.Says("A title")), nil, nil)
	list := decode[struct{ Data []struct{ ID string } }](t, s.do(t, "GET", "/v1/models", ""), 200)
	if len(list.Data) != 2 || list.Data[0].ID != "scripted" || list.Data[1].ID != "scripted:no-tools" {
		t.Fatalf("%+v", list)
	}
	decode[completion](t, s.do(t, "POST", "/v1/chat/completions", strings.Replace(ask("x"), "scripted", "scripted:no-tools", 1)), 200)
	if r := s.Model.Requests()[0]; r.Model != "scripted" || len(r.Tools) > 0 {
		t.Errorf("%s with %d tools", r.Model, len(r.Tools))
	}
}

func TestAPageMaySendTheHeadersOfOpenAIsClient(t *testing.T) {
	s := serve(t, adds(), nil, func(o *api.Options) { o.CORSOrigins = []string{"https://ui.example"} })
	resp := s.do(t, "OPTIONS", "/v1/chat/completions", "", "Origin", "https://ui.example",
		"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "x-stainless-os,x-evil,authorization")
	if got := resp.Header.Get("Access-Control-Allow-Headers"); !strings.Contains(got, "x-stainless-os") || strings.Contains(got, "x-evil") {
		t.Errorf("allowed: %s", got)
	}
}
