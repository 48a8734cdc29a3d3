package chat_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/api/chat"
)

// bodyWithMessages returns a body with a list of messages, and more members.
func bodyWithMessages(list string, more ...string) string {
	return `{"messages":[` + list + `]` + strings.Join(more, "") + `}`
}

const (
	hello = `{"role":"user","content":"Hello?"}`
	png   = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

func TestWholeRequestIsUnderstood(t *testing.T) {
	q, err := chat.Decode([]byte(`{
		"model":"gpt-5","stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":7,"temperature":0,"stop":"END","verbosity":"low","metadata":{"k":"v","` + strings.Repeat("語", 64) + `":"` + strings.Repeat("語", 512) + `"},
		"user":"ada","logprobs":false,"store":null,"response_format":{"type":"json_object"},
		"messages":[
			{"role":"system","content":"Rhyme."},
			{"role":"user","content":[{"type":"text","text":"And"},{"type":"image_url","image_url":{"url":"` + png + `","detail":"low"}}],"name":"ada"},
			{"role":"assistant","content":null,"refusal":null,"tool_calls":[
				{"id":"a","type":"function","function":{"name":"colour","arguments":"{}"}},
				{"id":"b","type":"function","function":{"name":"colour","arguments":"{\"n\":1}"}}]},
			{"role":"tool","tool_call_id":"b","content":[{"type":"text","text":"blue"}]},
			{"role":"tool","tool_call_id":"a","content":"red"},
			{"role":"developer","content":[{"type":"text","text":"Be brief."}]},
			` + hello + `],
		"tools":[{"type":"function","function":{"name":"colour","description":"d","parameters":{"type":"object"},"strict":true}},
			{"type":"function","function":{"name":"bare"}}],
		"tool_choice":{"type":"function","function":{"name":"colour"}},
		"answerd":{"max_turns":2}}`))
	if err != nil {
		t.Fatal(err)
	}
	if q.Question != "Hello?" || q.Instructions != "Rhyme.\n\nBe brief." || q.Model != "gpt-5" || q.Request.Model != "gpt-5" || !q.Stream || !q.IncludeUsage || q.MaxTokens != 7 {
		t.Errorf(`request %+v, want Question Hello?, Instructions "Rhyme.\n\nBe brief.", Model gpt-5, Request.Model gpt-5, Stream true, IncludeUsage true, MaxTokens 7`, q)
	}
	if q.Sampling.Temperature == nil || *q.Sampling.Temperature != 0 || len(q.Sampling.Stop) != 1 || q.Sampling.Verbosity != "low" || q.Metadata["k"] != "v" || string(q.Sampling.ResponseFormat) != `{"type":"json_object"}` {
		t.Errorf(`sampling %+v, metadata %v, want Temperature non-nil, Temperature 0, 1 Stop, Verbosity low, the metadata k: v, ResponseFormat {"type":"json_object"}`, q.Sampling, q.Metadata)
	}
	if len(q.ClientTools) != 2 || !q.ClientTools[0].Strict || q.ClientTools[1].Strict || string(q.ClientTools[1].Schema) != `{"type":"object","properties":{}}` || q.ForcedTool != "colour" || q.ToolChoice != agent.ToolRequired {
		t.Errorf(`tools %+v, ForcedTool %q, ToolChoice %q, want 2, the first strict, [1].Schema {"type":"object","properties":{}}, ForcedTool colour, ToolChoice ToolRequired`, q.ClientTools, q.ForcedTool, q.ToolChoice)
	}

	var got []string
	for _, m := range q.History {
		got = append(got, fmt.Sprintf("%s %q %d %d %s", m.Role, m.Content, len(m.Media), len(m.Calls), m.CallID))
	}

	want := `user "And" 1 0 |assistant "" 0 2 |tool "blue" 0 0 b|tool "red" 0 0 a`
	if detail := q.History[0].Media[0].Detail; detail != "low" {
		t.Errorf("got the detail %q of the image, want low", detail)
	}
	if strings.Join(got, "|") != want || q.History[1].Calls[1].Index != 1 || string(q.Options) != `{"max_turns":2}` {
		t.Errorf(`got %s, History[1].Calls[1].Index %d, Options %q, want %s, 1 and {"max_turns":2}`, strings.Join(got, "|"), q.History[1].Calls[1].Index, string(q.Options), want)
	}
}

// JSON has one kind of number.
func TestIntegerCanBeWrittenWithAFraction(t *testing.T) {
	q, err := chat.Decode([]byte(bodyWithMessages(hello, `,"n":1.0,"max_tokens":5.0,"seed":7e0,"top_logprobs":0.0`)))
	if err != nil || q.MaxTokens != 5 || *q.Sampling.Seed != 7 {
		t.Errorf("request %+v, %v, want MaxTokens 5, Sampling.Seed 7, no error", q, err)
	}
	for _, name := range []string{"n", "max_tokens", "max_completion_tokens", "seed", "top_logprobs"} {
		_, err := chat.Decode([]byte(bodyWithMessages(hello, `,"`+name+`":1.5`)))
		if bad, ok := errors.AsType[*chat.Invalid](err); !ok || bad.Param != name {
			t.Errorf("%s: %v, want an Invalid, Param %s", name, err, name)
		}
	}
}

func TestRequestThatCannotBeRunNamesItsParameter(t *testing.T) {
	many := func(n int, item string) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	tool := func(function string) string { return `,"tools":[{"type":"function","function":` + function + `}]` }
	for body, param := range map[string]string{
		``: "", `null`: "messages", `[]`: "", `{`: "", `{"messages":[],}`: "", "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}": "",
		`{}`: "messages", `{"messages":{}}`: "messages", bodyWithMessages(``): "messages", bodyWithMessages(many(1025, hello)): "messages",
		bodyWithMessages(`{"role":"user","content":" "}`):                                                                                  "messages[0].content",
		bodyWithMessages(`{"role":"system","content":"x"},{"role":"user","content":" "}`):                                                  "messages[1].content",
		bodyWithMessages(`{"role":"user"}`):                                                                                                "messages[0].content",
		bodyWithMessages(hello + `,{"role":"assistant","content":"x"}`):                                                                    "messages",
		bodyWithMessages(`{"role":"system","content":"x"}`):                                                                                "messages",
		bodyWithMessages(`{"role":"robot","content":"x"},` + hello):                                                                        "messages[0].role",
		bodyWithMessages(`{"content":"x"},` + hello):                                                                                       "messages[0].role",
		bodyWithMessages(`{"role":"user","content":5}`):                                                                                    "messages[0].content",
		bodyWithMessages(`{"role":"user","content":[5]}`):                                                                                  "messages[0].content",
		bodyWithMessages(`{"role":"user","content":[{"type":"file","file":{}}]}`):                                                          "messages[0].content[0].file.file_data",
		bodyWithMessages(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://169.254.169.254/"}}]}`):                 "messages[0].content[0].image_url.url",
		bodyWithMessages(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}`):                      "messages[0].content[0].image_url.url",
		bodyWithMessages(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://user:secret@x.example/"}}]}`):          "messages[0].content[0].image_url.url",
		bodyWithMessages(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/svg+xml;base64,PHN2Zy8+"}}]}`):      "messages[0].content[0].image_url.url",
		bodyWithMessages(`{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AAAA","format":"exe"}}]}`):                "messages[0].content[0].input_audio",
		bodyWithMessages(`{"role":"user","content":[` + many(33, `{"type":"image_url","image_url":{"url":"https://x.example/a"}}`) + `]}`): "messages[0].content",
		bodyWithMessages(`{"role":"tool","content":"x"}`):                                                                                  "messages[0].tool_call_id",
		bodyWithMessages(`{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"x"}}]},` + hello):                       "messages[0].tool_calls[0]",
		bodyWithMessages(`{"role":"assistant","tool_calls":[{"id":"a"}]},` + hello):                                                        "messages[0].tool_calls[0]",
		bodyWithMessages(hello, `,"stream":"yes"`):                                                                                         "stream",
		bodyWithMessages(hello, `,"model":5`):                                                                                              "model",
		bodyWithMessages(hello, `,"n":2`):                                                                                                  "n",
		bodyWithMessages(hello, `,"stop":{}`):                                                                                              "stop",
		bodyWithMessages(hello, `,"max_tokens":-1`):                                                                                        "max_tokens",
		bodyWithMessages(hello, `,"max_completion_tokens":-1`):                                                                             "max_completion_tokens",
		bodyWithMessages(hello, `,"stop":[`+many(17, `"x"`)+`]`):                                                                           "stop",
		bodyWithMessages(hello, `,"logprobs":true`):                                                                                        "logprobs",
		bodyWithMessages(hello, `,"top_logprobs":2`):                                                                                       "top_logprobs",
		bodyWithMessages(hello, `,"logit_bias":{"50256":-100}`):                                                                            "logit_bias",
		bodyWithMessages(hello, `,"modalities":["text","audio"]`):                                                                          "modalities",
		bodyWithMessages(hello, `,"audio":{"voice":"alloy"}`):                                                                              "audio",
		bodyWithMessages(hello, `,"web_search_options":{}`):                                                                                "web_search_options",
		bodyWithMessages(hello, `,"function_call":"auto"`):                                                                                 "function_call",
		bodyWithMessages(hello, `,"response_format":"json"`):                                                                               "response_format.type",
		bodyWithMessages(hello, `,"response_format":{"type":"xml"}`):                                                                       "response_format.type",
		bodyWithMessages(hello, `,"response_format":{"type":"json_schema"}`):                                                               "response_format.json_schema",
		bodyWithMessages(hello, `,"max_tokens":1e99`):                                                                                      "max_tokens",
		bodyWithMessages(hello, `,"metadata":{"k":1}`):                                                                                     "metadata",
		bodyWithMessages(hello, `,"metadata":{"k":"`+strings.Repeat("語", 1025)+`"}`):                                                       "metadata",
		bodyWithMessages(hello, `,"functions":[]`):                                                                                         "functions",
		bodyWithMessages(hello, `,"tools":[`+many(129, `{"type":"function","function":{"name":"x"}}`)+`]`):                                 "tools",
		bodyWithMessages(hello, `,"tools":[{"type":"web_search"}]`):                                                                        "tools[0].type",
		bodyWithMessages(hello, tool(`{}`)):                                                                                                "tools[0].function.name",
		bodyWithMessages(hello, tool(`{"name":"a b"}`)):                                                                                    "tools[0].function.name",
		bodyWithMessages(hello, tool(`{"name":"`+strings.Repeat("x", 65)+`"}`)):                                                            "tools[0].function.name",
		bodyWithMessages(hello, tool(`{"name":"x","parameters":[]}`)):                                                                      "tools[0].function.parameters",
		bodyWithMessages(hello, `,"tools":[`+many(2, `{"type":"function","function":{"name":"x"}}`)+`]`):                                   "tools[1].function.name",
		bodyWithMessages(hello, `,"tool_choice":"any"`):                                                                                    "tool_choice",
		bodyWithMessages(hello, `,"tool_choice":{"type":"function","function":{"name":""}}`):                                               "tool_choice",
		bodyWithMessages(hello, `,"tool_choice":{"type":"allowed_tools"}`):                                                                 "tool_choice.allowed_tools.mode",
	} {
		_, err := chat.Decode([]byte(body))
		bad, ok := errors.AsType[*chat.Invalid](err)
		if !ok || bad.Param != param || bad.Message == "" {
			t.Errorf("%.120s: %v, want an Invalid, Param %q, Message non-empty", body, err, param)
		}
	}
}

// Clients send null for what is not set.
func TestNullIsAsIfLeftOut(t *testing.T) {
	got, err := chat.Decode([]byte(bodyWithMessages(hello, `,"stop":null,"max_tokens":null,"temperature":null,"tools":null,"tool_choice":null,"stream_options":null,"metadata":null,"response_format":null`)))
	want, _ := chat.Decode([]byte(bodyWithMessages(hello)))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v and no error", got, err, want)
	}
}

func TestTwinWithoutToolsIsTheSameModel(t *testing.T) {
	q, err := chat.Decode([]byte(bodyWithMessages(hello, `,"model":"m:no-tools","tool_choice":"required"`)))
	if err != nil || q.Model != "m:no-tools" || q.Request.Model != "m" || q.ToolChoice != agent.ToolNone {
		t.Errorf("request %+v, %v, want Model m:no-tools, Request.Model m, ToolChoice ToolNone, no error", q, err)
	}
}

// No body causes a panic: each is a question, or an error that the caller can act on.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(bodyWithMessages(hello)))
	f.Add([]byte(bodyWithMessages(`{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"x","arguments":"{"}}]},{"role":"tool","tool_call_id":"a","content":null}`)))
	f.Add([]byte(bodyWithMessages(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"`+png+`"}}]}`, `,"tools":[{"type":"function","function":{"name":"x"}}],"tool_choice":{"type":"function","function":{"name":"x"}},"stop":["a"],"answerd":{}`)))
	f.Fuzz(func(t *testing.T, body []byte) {
		q, err := chat.Decode(body)
		if err != nil {
			if _, ok := errors.AsType[*chat.Invalid](err); !ok {
				t.Fatalf("%T %v, want an Invalid", err, err)
			}
			return
		}
		if strings.TrimSpace(q.Question) == "" && len(q.Media) == 0 && (len(q.History) == 0 || q.History[len(q.History)-1].Role != "tool") {
			t.Errorf("nothing to answer: %+v, want at least 1 History, History[last].Role tool", q)
		}
		for _, tool := range q.ClientTools {
			if !json.Valid(tool.Schema) {
				t.Errorf("schema %s, want JSON", tool.Schema)
			}
		}
	})
}
