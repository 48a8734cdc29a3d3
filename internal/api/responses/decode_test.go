package responses_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/api/responses"
	"answerd/internal/event"
)

func bodyWithInput(value string, more ...string) string {
	return `{"input":` + value + strings.Join(more, "") + `}`
}

const hello = `{"role":"user","content":"Hello?"}`

func TestWholeRequestIsUnderstood(t *testing.T) {
	q, err := responses.Decode([]byte(`{
		"model":"gpt-5","instructions":"Rhyme.","stream":true,"max_output_tokens":7,"max_tool_calls":3,"metadata":{"k":"v","` + strings.Repeat("語", 64) + `":"` + strings.Repeat("語", 512) + `"},
		"reasoning":{"effort":"low"},"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true}},
		"include":["x"],"truncation":"auto","user":"ada","prompt":null,"conversation":null,"parallel_tool_calls":true,
		"input":[
			{"role":"developer","content":"Be brief."},
			{"type":"message","role":"user","content":[{"type":"input_text","text":"And"},{"type":"input_image","image_url":"https://x.example/a.png"}]},
			{"type":"reasoning","id":"rs_1","summary":[]},
			{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look."}]},
			{"type":"function_call","call_id":"a","name":"colour","arguments":"{}"},
			{"type":"function_call","call_id":"b","name":"colour","arguments":"{}"},
			{"type":"function_call_output","call_id":"a","output":"red"},
			{"type":"function_call_output","call_id":"b","output":[{"type":"input_text","text":"blue"}]},
			{"type":"mcp_approval_response","approval_request_id":"mcpr_1_int_1","approve":true},
			` + hello + `],
		"tools":[{"type":"function","name":"colour","parameters":null,"strict":true},{"type":"mcp","server_label":"crm","allowed_tools":{"tool_names":["get"]},"headers":{"Authorization":"s3cret"},
			"require_approval":{"never":{"tool_names":["get"]},"always":null}}],
		"tool_choice":{"type":"mcp","server_label":"crm","name":"get"},
		"answerd":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	if q.Question != "Hello?" || q.Instructions != "Rhyme.\n\nBe brief." || !q.Stream || q.MaxTokens != 7 || q.Budget.ToolCalls != 3 || len(q.Approvals) > 0 {
		t.Errorf(`request %+v, want Question Hello?, Instructions "Rhyme.\n\nBe brief.", Stream true, MaxTokens 7, Budget.ToolCalls 3, 0 Approvals`, q)
	}
	if q.Sampling.ReasoningEffort != "low" || string(q.Sampling.ResponseFormat) != `{"json_schema":{"name":"n","schema":{"type":"object"},"strict":true},"type":"json_schema"}` {
		t.Errorf("sampling %+v, want ReasoningEffort low, ResponseFormat %q", q.Sampling, `{"json_schema":{"name":"n","schema":{"type":"object"},"strict":true},"type":"json_schema"}`)
	}
	if fmt.Sprintf("%v %v %v %s %d", q.Servers, q.Tools, q.ListedServers, q.ForcedTool, len(q.ClientTools)) != "[crm] [get] [crm] get 1" || !q.ClientTools[0].Strict {
		t.Errorf(`servers %v %v %v %s, client tools %+v, want "[crm] [get] [crm] get" and a strict one`, q.Servers, q.Tools, q.ListedServers, q.ForcedTool, q.ClientTools)
	}

	var got []string
	for _, m := range q.History {
		got = append(got, fmt.Sprintf("%s %q %d %d %s", m.Role, m.Content, len(m.Media), len(m.Calls), m.CallID))
	}

	if want := `user "And" 1 0 |assistant "I look." 0 2 |tool "red" 0 0 a|tool "blue" 0 0 b`; strings.Join(got, "|") != want {
		t.Errorf("got %s, want %s", strings.Join(got, "|"), want)
	}
	if kept := string(q.EncodeStored()); strings.Contains(kept, "s3cret") {
		t.Errorf("kept: %s, want no s3cret", kept)
	}
}

// Clients that keep the conversation themselves append the output of each response to the next input. The
// model then gets the calls of servers' tools again, as it does with item_reference.
func TestCallsOfServersToolsInTheInputAreHistory(t *testing.T) {
	q, err := responses.Decode([]byte(bodyWithInput(`[
		{"role":"user","content":"Notes?"},
		{"type":"mcp_list_tools","id":"mcpl_1_crm","server_label":"crm","tools":[]},
		{"type":"mcp_call","id":"mcp_1_call_1","server_label":"crm","name":"get","arguments":"{\"id\":1}","output":"one","error":null,"status":"completed"},
		{"type":"mcp_call","id":"mcp_1_call_2","server_label":"crm","name":"get","arguments":"{}","output":null,"error":{"type":"mcp_tool_execution_error","content":[{"type":"text","text":"no id"}]}},
		{"type":"mcp_call","id":"mcp_1_call_3","server_label":"crm","name":"get","arguments":"{}","error":{"type":"mcp_protocol_error","code":-32603,"message":"down"}},
		{"type":"mcp_call","id":"other","server_label":"crm","name":"get","arguments":"{}","error":"gone"},
		{"type":"mcp_call","id":"mcp_1_call_4","server_label":"crm","name":"get","arguments":"{}","status":"incomplete"},
		{"role":"assistant","content":"One."},` + hello + `]`)))
	if err != nil {
		t.Fatal(err)
	}

	var got []string
	for _, m := range q.History {
		line := m.Role + " " + m.CallID + " " + m.Content
		for _, c := range m.Calls {
			line += c.ID + " " + c.Name + c.Arguments
		}
		got = append(got, line)
	}

	want := `user  Notes?|assistant  call_1 get{"id":1}|tool call_1 one|assistant  call_2 get{}|tool call_2 Error: no id|` +
		`assistant  call_3 get{}|tool call_3 Error: down|assistant  other get{}|tool other Error: gone|assistant  One.`
	if strings.Join(got, "|") != want {
		t.Errorf("got the history\n%s\nwant\n%s", strings.Join(got, "|"), want)
	}

	for _, item := range []string{`{"type":"mcp_call","name":"get","arguments":"{}","output":"x"}`, `{"type":"mcp_call","id":"mcp_1_a","arguments":"{}","output":"x"}`} {
		_, err := responses.Decode([]byte(bodyWithInput(`[` + item + `,` + hello + `]`)))
		if bad, ok := errors.AsType[*responses.Invalid](err); !ok || bad.Param != "input[0]" {
			t.Errorf("%s: got %v, want an Invalid about input[0]", item, err)
		}
	}
}

// JSON has one kind of number; what is repeated is the integer.
func TestIntegerCanBeWrittenWithAFraction(t *testing.T) {
	q, err := responses.Decode([]byte(bodyWithInput(`"?"`, `,"max_output_tokens":5.0,"max_tool_calls":2e0,"top_logprobs":0.0`)))
	if err != nil || q.MaxTokens != 5 || q.Budget.ToolCalls != 2 {
		t.Fatalf("request %+v, %v, want MaxTokens 5, Budget.ToolCalls 2, no error", q, err)
	}
	if echo, err := json.Marshal(q.Echo); err != nil || !strings.Contains(string(echo), `"max_output_tokens":5,"max_tool_calls":2`) {
		t.Errorf(`echo %s, %v, want echo containing "max_output_tokens":5,"max_tool_calls":2, no error`, echo, err)
	}
	for _, name := range []string{"max_output_tokens", "max_tool_calls", "top_logprobs"} {
		_, err := responses.Decode([]byte(bodyWithInput(`"?"`, `,"`+name+`":1.5`)))
		if bad, ok := errors.AsType[*responses.Invalid](err); !ok || bad.Param != name {
			t.Errorf("%s: %v, want an Invalid, Param %s", name, err, name)
		}
	}
}

func TestRequestThatCannotBeRunNamesItsParameter(t *testing.T) {
	many := func(n int, item string) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	text := `"x"`
	for body, param := range map[string]string{
		``: "", `null`: "input", `[]`: "", `{`: "", "{\"input\":\"\xff\"}": "", `{}`: "input", bodyWithInput(`" "`): "input", bodyWithInput(`[]`): "input", bodyWithInput(`5`): "input",
		bodyWithInput(`[` + many(1025, hello) + `]`):                                                                               "input",
		bodyWithInput(text, `,"response_format":{"type":"json_object"}`):                                                           "response_format",
		bodyWithInput(`[{"type":"computer_call"}]`):                                                                                "input[0].type",
		bodyWithInput(`[{"role":"robot","content":"x"}]`):                                                                          "input[0].role",
		bodyWithInput(`[{"role":"user","content":[{"type":"input_file"}]}]`):                                                       "input[0].content[0].file_data",
		bodyWithInput(`[{"role":"user","content":[{"type":"input_image","image_url":"http://x.example/"}]}]`):                      "input[0].content[0].image_url",
		bodyWithInput(`[{"role":"user","content":[` + many(33, `{"type":"input_image","image_url":"https://x.example/"}`) + `]}]`): "input[0].content",
		bodyWithInput(`[{"role":"assistant","content":"x"}]`):                                                                      "input",
		bodyWithInput(`[{"role":"system","content":"x"}]`):                                                                         "input",
		bodyWithInput(`[{"type":"function_call","name":"x"},` + hello + `]`):                                                       "input[0]",
		bodyWithInput(`[{"type":"function_call_output","output":"x"}]`):                                                            "input[0].call_id",
		bodyWithInput(`[{"type":"mcp_approval_response","approve":true}]`):                                                         "input[0].approval_request_id",
		bodyWithInput(`[{"type":"mcp_approval_response","approval_request_id":"msg_1_int_1","approve":true}]`):                     "input[0].approval_request_id",
		bodyWithInput(`[{"type":"mcp_approval_response","approval_request_id":"mcpr_1_a"}]`):                                       "input[0].approve",
		bodyWithInput(`[{"type":"mcp_approval_response","approval_request_id":"mcpr_1_a","approve":null}]`):                        "input[0].approve",
		bodyWithInput(`[{"type":"mcp_approval_response","approval_request_id":"mcpr_1_a","approve":true},{"type":"mcp_approval_response","approval_request_id":"mcpr_2_b","approve":true}]`): "input[1].approval_request_id",
		bodyWithInput(text, `,"conversation":5`):                                                                               "conversation",
		bodyWithInput(text, `,"prompt":{"id":"p"}`):                                                                            "prompt",
		bodyWithInput(text, `,"max_output_tokens":0`):                                                                          "max_output_tokens",
		bodyWithInput(text, `,"max_tool_calls":-1`):                                                                            "max_tool_calls",
		bodyWithInput(text, `,"temperature":"hot"`):                                                                            "temperature",
		bodyWithInput(text, `,"reasoning":5`):                                                                                  "reasoning",
		bodyWithInput(text, `,"text":{"format":{"type":"yaml"}}`):                                                              "text.format.type",
		bodyWithInput(text, `,"metadata":{"":"x"}`):                                                                            "metadata",
		bodyWithInput(text, `,"metadata":{"k":"`+strings.Repeat("語", 1025)+`"}`):                                               "metadata",
		bodyWithInput(text, `,"metadata":[]`):                                                                                  "metadata",
		bodyWithInput(text, `,"background":true,"store":false`):                                                                "background",
		bodyWithInput(text, `,"tools":[5]`):                                                                                    "tools[0]",
		bodyWithInput(text, `,"tools":[`+many(129, `{"type":"function","name":"x"}`)+`]`):                                      "tools",
		bodyWithInput(text, `,"tools":[`+many(2, `{"type":"function","name":"x"}`)+`]`):                                        "tools[1].name",
		bodyWithInput(text, `,"tools":[{"type":"web_search"}]`):                                                                "tools[0].type",
		bodyWithInput(text, `,"tools":[{"type":"function","name":"a b"}]`):                                                     "tools[0].name",
		bodyWithInput(text, `,"tools":[{"type":"function","name":"x","parameters":"{}"}]`):                                     "tools[0].parameters",
		bodyWithInput(text, `,"tools":[{"type":"mcp"}]`):                                                                       "tools[0].server_label",
		bodyWithInput(text, `,"tools":[{"type":"mcp","server_label":"x","server_url":"https://x.example"}]`):                   "tools[0].server_url",
		bodyWithInput(text, `,"tools":[{"type":"mcp","server_label":"x","allowed_tools":5}]`):                                  "tools[0].allowed_tools",
		bodyWithInput(text, `,"tools":[{"type":"mcp","server_label":"x","require_approval":{"always":{"tool_names":["a"]}}}]`): "tools[0].require_approval",
		bodyWithInput(text, `,"tool_choice":"any"`):                                                                            "tool_choice",
		bodyWithInput(text, `,"tool_choice":{"type":"file_search"}`):                                                           "tool_choice",
		bodyWithInput(text, `,"tool_choice":{"type":"mcp","server_label":"x"}`):                                                "tool_choice.name",
		bodyWithInput(text, `,"tools":[{"type":"mcp","server_label":"x"},{"type":"mcp","server_label":"y"}],"tool_choice":{"type":"mcp","server_label":"x"}`): "tool_choice.name",
	} {
		_, err := responses.Decode([]byte(body))
		bad, ok := errors.AsType[*responses.Invalid](err)
		if !ok || bad.Param != param || bad.Message == "" {
			t.Errorf("%.120s: %v, want %s", body, err, param)
		}
	}
}

func TestResponseIDHasRunAndSpan(t *testing.T) {
	for _, span := range []responses.Span{{}, {After: 1}, {After: 9_000_000}, {After: 7, Until: 9}} {
		run, got, ok := responses.ParseID(responses.FormatID("run_abc", span))
		if run != "run_abc" || got != span || !ok {
			t.Errorf("run %s %v %t, want run_abc, %+v and true", run, got, ok, span)
		}
	}
	for _, id := range []string{"run_abc", "chatcmpl-run_abc"} {
		if run, span, ok := responses.ParseID(id); run != "run_abc" || span != (responses.Span{}) || !ok {
			t.Errorf("ParseID(%s) = %s, %v, %t, want run_abc, from its beginning", id, run, span, ok)
		}
	}
	for _, id := range []string{"", "resp_", "run_", "run_abc_1", "chatcmpl-resp", "resp_abc_", "resp_abc_0", "resp_abc_-1", "resp_abc_x", "resp_abc_2_1", "resp_abc_2_2", "resp_abc_0_2", "resp_abc_1_2_3", "resp_abc_99999999999999999999"} {
		if run, span, ok := responses.ParseID(id); ok {
			t.Errorf("ParseID(%s) = %s, %v, want it refused", id, run, span)
		}
	}
}

// The stored part of a request is bounded; its newest messages are kept longest.
func TestStoredStateIsBounded(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	q := responses.Request{Model: "m", Request: agent.Request{Question: "last"}}
	for i := range 8 {
		q.History = append(q.History, agent.Message{Role: "user", Content: fmt.Sprint(i, long)})
	}

	kept, ok := responses.DecodeStored(q.EncodeStored())
	if !ok || len(q.EncodeStored()) > 256<<10 || kept.Question != "last" || len(kept.History) != 2 || kept.History[1].Content[0] != '7' {
		t.Errorf("%t, %d bytes, %d messages, Question %q, want encode stored at most 256<<10, Question last, History 2, History[1].Content[0] '7'", ok, len(q.EncodeStored()), len(kept.History), kept.Question)
	}
	q = responses.Request{Request: agent.Request{Question: "What?", Media: []agent.Media{{MIME: "image/png", Data: strings.Repeat(long, 3)}}}}
	q.Echo.Instructions = long
	if kept, ok = responses.DecodeStored(q.EncodeStored()); !ok || kept.Question != "What?\n[1 images were here.]" || kept.Echo.Instructions != long {
		t.Errorf(`decode stored %t %.50s, Echo.Instructions %q, want true, "What?\n[1 images were here.]" and %q`, ok, kept.Question, kept.Echo.Instructions, long)
	}
	q.Echo.Instructions = strings.Repeat(long, 3)
	if kept, ok = responses.DecodeStored(q.EncodeStored()); !ok || kept.Echo.Instructions != "" || kept.Question == "" {
		t.Errorf("decode stored %t %+.50v, want Echo.Instructions empty, Question non-empty", ok, kept)
	}

	for _, other := range []string{"", "null", "{}", `{"face":"chat"}`, `{"face":"responses"`} {
		if _, ok := responses.DecodeStored([]byte(other)); ok {
			t.Errorf("DecodeStored(%s) = true, want false", other)
		}
	}
}

// If a request refers to many runs, only the last ones, up to a limit, are looked up.
func TestReferencesAreBounded(t *testing.T) {
	var items []string
	for i := range 1000 {
		items = append(items, fmt.Sprintf(`{"type":"item_reference","id":"msg_r%d_text_1"}`, i))
	}

	q, err := responses.Decode([]byte(bodyWithInput(`[` + strings.Join(items, ",") + `,` + hello + `]`)))
	if err != nil {
		t.Fatal(err)
	}

	looked := 0
	err = q.ResolveReferences(16, func(run string) ([]event.Event, error) {
		looked++
		return []event.Event{{Body: event.TextStart{PartID: "text_1"}}, {Body: event.TextDelta{PartID: "text_1", Delta: run}}, {Body: event.TextEnd{PartID: "text_1"}}}, nil
	})
	if err != nil || looked != 32 || len(q.History) != 32 || q.History[31].Content != "run_r999" {
		t.Errorf("%v: %d looked up, %d messages, want looked 32, History 32, History[31].Content run_r999, no error", err, looked, len(q.History))
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(bodyWithInput(`"Hello?"`)))
	f.Add([]byte(bodyWithInput(`[` + hello + `,{"type":"function_call","call_id":"a","name":"x","arguments":"{"},{"type":"function_call_output","call_id":"a","output":null}]`)))
	f.Add([]byte(bodyWithInput(`[{"type":"mcp_approval_response","approval_request_id":"mcpr_1_a","approve":true}]`, `,"previous_response_id":"resp_1"`)))
	f.Add([]byte(bodyWithInput(`[{"type":"item_reference","id":"msg_1_text_1"},`+hello+`]`, `,"tools":[{"type":"mcp","server_label":"x"}],"text":{"format":{"type":"json_object"}},"tool_choice":{"type":"function","name":"x"}`)))
	f.Fuzz(func(t *testing.T, body []byte) {
		q, err := responses.Decode(body)
		if err == nil {
			err = q.ResolveReferences(16, func(string) ([]event.Event, error) { return nil, nil })
		}
		if err != nil {
			if _, ok := errors.AsType[*responses.Invalid](err); !ok {
				t.Fatalf("%T %v, want an Invalid", err, err)
			}
			return
		}
		if n := len(q.History); len(q.Approvals) == 0 && strings.TrimSpace(q.Question) == "" && len(q.Media) == 0 && (n == 0 || q.History[n-1].Role != "tool") {
			t.Errorf("nothing to answer: %+v, n %d, want n non-zero, History[n-1].Role tool", q, n)
		}
		if _, ok := responses.DecodeStored(q.EncodeStored()); !ok || !json.Valid(q.EncodeStored()) {
			t.Errorf("EncodeStored = %s, want JSON that DecodeStored reads", q.EncodeStored())
		}
	})
}

// Members that nothing else bounds are left out of the stored form too.
func TestStoredRequestKeepsItsBound(t *testing.T) {
	long := strings.Repeat("x", 300<<10)
	for name, body := range map[string]string{
		"text":          `"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object","description":"` + long + `"}}}`,
		"reasoning":     `"reasoning":{"effort":"low","summary":"` + long + `"}`,
		"allowed_tools": `"tools":[{"type":"mcp","server_label":"crm","allowed_tools":["` + long + `"]}]`,
		"server_label":  `"tools":[{"type":"mcp","server_label":"` + long + `"}]`,
		"metadata":      `"metadata":{"k":"` + strings.Repeat(`\u0001`, 1024) + `"}`,
	} {
		q, err := responses.Decode([]byte(`{"model":"m","input":"What?",` + body + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(q.EncodeStored()); n > 256<<10 {
			t.Errorf("%s: got %d bytes, want at most %d", name, n, 256<<10)
		}
		if kept, _ := responses.DecodeStored(q.EncodeStored()); kept.Question != "What?" {
			t.Errorf("%s: got the question %q, want it kept", name, kept.Question)
		}
	}
	for _, name := range []string{"model", "previous_response_id"} {
		_, err := responses.Decode([]byte(`{"input":"What?","` + name + `":"` + long + `"}`))
		if bad, ok := errors.AsType[*responses.Invalid](err); !ok || bad.Param != name {
			t.Errorf("%s of %d bytes: got %v, want an error about it", name, len(long), err)
		}
	}
}

func TestFirstOfSeveralErrorsIsAlwaysTheSame(t *testing.T) {
	long := strings.Repeat("x", 600)
	for body, want := range map[string]string{
		`{"input":"?","max_tool_calls":0,"max_output_tokens":0}`:                                                   "max_output_tokens",
		`{"input":"?","user":"` + long + `","safety_identifier":"` + long + `","prompt_cache_key":"` + long + `"}`: "safety_identifier",
	} {
		for range 50 {
			_, err := responses.Decode([]byte(body))
			if bad, ok := errors.AsType[*responses.Invalid](err); !ok || bad.Param != want {
				t.Fatalf("Decode(%.60s) = %v, want an error about %s", body, err, want)
			}
		}
	}
}
