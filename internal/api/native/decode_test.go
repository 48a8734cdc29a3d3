package native_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/api/native"
)

func TestDecodeReadsEveryField(t *testing.T) {
	got, err := native.Decode([]byte(`{
		"question": "What?", "history": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}],
		"model": "m", "tool_choice": "required", "servers": ["crm"], "tools": ["crm_get_*"], "max_turns": 6,
		"budget": {"tool_calls": 8, "input_tokens": 40000, "output_tokens": 10000, "total_tokens": 50000, "seconds": 0.5, "result_bytes": 65536, "cost": 0.05},
		"context": {"context_id": "1111"}, "thread_id": "t:1", "metadata": {"k": "v"}, "background": true}`))
	if err != nil {
		t.Fatal(err)
	}
	want := agent.Request{
		Question: "What?", History: []agent.Message{{Role: "user", Content: "a"}, {Role: "assistant"}},
		Model: "m", ToolChoice: agent.ToolRequired, Servers: []string{"crm"}, Tools: []string{"crm_get_*"}, MaxTurns: 6,
		Budget:  agent.Budget{ToolCalls: 8, InputTokens: 40000, OutputTokens: 10000, TotalTokens: 50000, Seconds: 0.5, ResultBytes: 65536, Cost: 0.05},
		Context: map[string]string{"context_id": "1111"}, ThreadID: "t:1", Metadata: map[string]string{"k": "v"}, Background: true,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// Every case names the fields that the answer must point at.
func TestBodyThatIsNoQuestionIsRefusedByItsFields(t *testing.T) {
	q := `"question":"What?"`
	for _, c := range []struct{ name, body, pointers string }{
		{"nothing", ``, ""},
		{"no JSON", `question=What`, ""},
		{"cut off", `{"question":"Wh`, "/question"},
		{"null", `null`, ""},
		{"a list", `[]`, ""},
		{"two values", `{` + q + `} {}`, ""},
		{"trailing comma", `{` + q + `,}`, ""},
		{"a byte order mark", "\ufeff{" + q + "}", ""},
		{"invalid UTF-8", "{\"question\":\"\xff\"}", ""},
		{"no question", `{}`, "/question"},
		{"a blank question", `{"question":" \n"}`, "/question"},
		{"a question of null", `{"question":null}`, "/question"},
		{"a number for a question", `{"question":1}`, "/question"},
		{"U+0000", `{"question":"a\u0000"}`, "/question"},
		{"half a surrogate pair", `{"question":"\ud800"}`, "/question"},
		{"the other half", `{"question":"\udc00 \\ud83d"}`, "/question"},
		{"the same key twice", `{` + q + `,"question":"b"}`, "/question"},
		{"the same key twice inside", `{` + q + `,"context":{"a":"1","a":"2"}}`, "/context/a"},
		{"another case", `{` + q + `,"Question":"b"}`, "/Question"},
		{"a look-alike", `{` + q + `,"que\u017ftion":"b"}`, "/queſtion"},
		{"an unknown field", `{` + q + `,"stream":true}`, "/stream"},
		{"a key with a slash", `{` + q + `,"a/b~":1}`, "/a~1b~0"},
		{"a history that is no list", `{` + q + `,"history":{}}`, "/history"},
		{"a message that is no object", `{` + q + `,"history":["a"]}`, "/history/0"},
		{"a message without content", `{` + q + `,"history":[{"role":"user"}]}`, "/history/0/content"},
		{"a role of null", `{` + q + `,"history":[{"role":null,"content":"a"}]}`, "/history/0/role"},
		{"content in parts", `{` + q + `,"history":[{"role":"user","content":[]}]}`, "/history/0/content"},
		{"a message with more", `{` + q + `,"history":[{"role":"user","content":"a","name":"b"}]}`, "/history/0/name"},
		{"an unknown tool choice", `{` + q + `,"tool_choice":"always"}`, "/tool_choice"},
		{"no servers but a name", `{` + q + `,"servers":"crm"}`, "/servers"},
		{"an empty name", `{` + q + `,"servers":["crm",""]}`, "/servers/1"},
		{"no turns", `{` + q + `,"max_turns":0}`, "/max_turns"},
		{"turns by halves", `{` + q + `,"max_turns":1.5}`, "/max_turns"},
		{"more turns than are counted", `{` + q + `,"max_turns":2147483648}`, "/max_turns"},
		{"turns as text", `{` + q + `,"max_turns":"6"}`, "/max_turns"},
		{"an unknown budget", `{` + q + `,"budget":{"euro":1}}`, "/budget/euro"},
		{"a negative budget", `{` + q + `,"budget":{"tool_calls":-1}}`, "/budget/tool_calls"},
		{"nothing to do at a limit", `{` + q + `,"budget":{"on_limit":"ignore"}}`, "/budget/on_limit"},
		{"free of charge", `{` + q + `,"budget":{"cost":0}}`, "/budget/cost"},
		{"endless seconds", `{` + q + `,"budget":{"seconds":1e300}}`, "/budget/seconds"},
		{"a context of numbers", `{` + q + `,"context":{"id":1}}`, "/context/id"},
		{"a thread with a line feed", `{` + q + `,"thread_id":"a\nb"}`, "/thread_id"},
		{"an empty thread", `{` + q + `,"thread_id":""}`, "/thread_id"},
		{"background as text", `{` + q + `,"background":"true"}`, "/background"},
		{"everything at once", `{"model":1,"max_turns":-1,"x":1}`, "/max_turns /model /question /x"},
		{"nested without end", `{` + q + `,"context":` + strings.Repeat(`[`, 100000), "/context" + strings.Repeat("/0", 15)},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := native.Decode([]byte(c.body))
			var invalid *native.Invalid
			if !errors.As(err, &invalid) {
				t.Fatalf("error %v, want an Invalid", err)
			}

			var got []string
			for _, e := range invalid.Errors {
				got = append(got, e.Pointer)
				if e.Detail == "" {
					t.Errorf("%s without a word, Detail %q, want non-empty", e.Pointer, e.Detail)
				}
			}
			if strings.Join(got, " ") != c.pointers {
				t.Errorf("points at %q, want %q: %v", got, c.pointers, err)
			}
		})
	}
}

// To JSON Schema, and so to api/openapi.yaml, a number is whole by its value.
func TestWholeNumberMayHaveAFraction(t *testing.T) {
	for _, six := range []string{"6", "6.0", "6e0", "0.6E1"} {
		r, err := native.Decode([]byte(`{"question":"?","max_turns":` + six + `,"budget":{"total_tokens":` + six + `}}`))
		if err != nil || r.MaxTurns != 6 || r.Budget.TotalTokens != 6 {
			t.Errorf("%s: %d, %d, %v, want 6, 6 and no error", six, r.MaxTurns, r.Budget.TotalTokens, err)
		}
	}
	for _, no := range []string{"0x6", "0x1p2", "6_0", "NaN", "Inf", " 6", "6.5"} {
		if _, _, err := native.DecodeQuery(url.Values{"question": {"?"}, "max_turns": {no}}); err == nil {
			t.Errorf("%s is taken, want an error", no)
		}
	}
}

func TestTruncatedBodiesAreRefused(t *testing.T) {
	body := `{"question":"Wh\u00e4t?","history":[{"role":"user","content":"a"}],"budget":{"seconds":1}}`
	if _, err := native.Decode([]byte(body)); err != nil {
		t.Fatal(err)
	}
	for n := range len(body) {
		if _, err := native.Decode([]byte(body[:n])); err == nil {
			t.Errorf("%s was taken, want an error", body[:n])
		}
	}
}

func TestSurrogatePairsAndTheReplacementCharacterAreText(t *testing.T) {
	for _, text := range []string{`\ud83d\ude00`, `\ufffd`, "\ufffd", `\\ud800`} {
		if _, err := native.Decode([]byte(`{"question":"` + text + `"}`)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestQueryIsAQuestion(t *testing.T) {
	got, _, err := native.DecodeQuery(url.Values{
		"question": {"What?"}, "servers": {"a", "b"}, "max_turns": {"3"}, "thread_id": {"t"}, "tool_choice": {"none"},
	})
	want := agent.Request{Question: "What?", Servers: []string{"a", "b"}, MaxTurns: 3, ThreadID: "t", ToolChoice: agent.ToolNone}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v and no error", got, err, want)
	}
	for _, bad := range []url.Values{{}, {"question": {"a", "b"}}, {"question": {"a"}, "history": {"b"}}, {"question": {"a"}, "max_turns": {"x"}}} {
		if _, _, err := native.DecodeQuery(bad); err == nil {
			t.Errorf("%v was taken, want an error", bad)
		}
	}
}

func TestPositionIsParsedAndOtherTextIsRefused(t *testing.T) {
	run, seq, ok := native.ParsePosition("run_a:7")
	if run != "run_a" || seq != 7 || !ok {
		t.Errorf("run %s %d %v, want run_a, 7 and true", run, seq, ok)
	}
	for _, bad := range []string{"", "run_a", "run_a:", ":7", "run_a:-1", "run_a:+1", "run_a:x", "run_a:7:8", "run_a:99999999999999999999"} {
		if _, _, ok := native.ParsePosition(bad); ok {
			t.Errorf("ParsePosition(%q) = true, want false", bad)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, body := range []string{
		`{"question":"What?","history":[{"role":"user","content":"a"}],"budget":{"seconds":1}}`,
		`{"question":"\ud83d\ude00","context":{"a":"b"}}`, `{"question":"\ud800"}`, `[[[[`,
		`{"question":"What?","budget":{"seconds":1.5e3,"on_limit":"ask"},"n":-0,"b":[true,false,null, {}, []]}`,
		" {\t\"question\" :\n\"a \\\"b\\\" \\\\ \\/ \\b\\f\\n\\r\\t c\", \"servers\":[\"1\" ,\"2\"]\r} ",
		`{"question":"a","question":"b"}`, `{"question":"a"}}`, `{"question":"a","servers":[1,]}`, `{"max_turns":01}`, `{"question"}`, `{,}`,
		`{"question":"a\u0000"}`, "{\"question\":\"\x00\"}", "{\"question\":\"a\nb\"}", `{"question":tru`, `nullx`, `1 2`, `-`, ``, ` `,
		`{"question":"a","prompt":{"server":"s","name":"n","arguments":{"k":"v"}},"tools":["t"],"metadata":{"":1},"model":[],"thread_id":"t","background":true}`,
		`{"x":` + strings.Repeat("[", 15) + "1" + strings.Repeat("]", 15) + `}`, `{"x":` + strings.Repeat("[", 17) + strings.Repeat("]", 17) + `}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := native.Decode(body)
		var invalid *native.Invalid
		if err != nil && (!errors.As(err, &invalid) || len(invalid.Errors) == 0 || len(invalid.Errors) > 100) {
			t.Fatalf("error %v, want an Invalid, at least 1 Errors, at most 100 Errors", err)
		}
		if err == nil && (!json.Valid(body) || strings.TrimSpace(r.Question) == "" || strings.ContainsRune(fmt.Sprint(r), 0)) {
			t.Fatalf("%q becomes %+v, want JSON with a question, without NUL", body, r)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	message := `{"role":"user","content":"` + strings.Repeat("x", 4000) + `"},`
	for name, body := range map[string]string{
		"small": `{"question":"What time is it?","metadata":{"a":"b"}}`,
		"64 kB": `{"question":"What time is it?","history":[` + strings.Repeat(message, 15) + `{"role":"user","content":"y"}]}`,
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := native.Decode([]byte(body)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
