package demo

import (
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// A request is hostile until it is decoded, and what is decoded must be answered: in
// valid JSON and valid UTF-8, without a panic, and twice the same.
func FuzzRequest(f *testing.F) {
	// Few and small, because the fuzzer spends its time on making seeds smaller.
	tools := string(encode(wireTools([]chatTool{
		newTool("clock", "Tells the time.", `{"type":"object","properties":{"time_zone":{"type":"string"}}}`),
		newTool("calculate", "", `{"properties":{"expression":{}},"required":["expression"]}`),
		newTool("convert", "", `{"properties":{"value":{"type":"number"},"from":{},"to":{}},"required":["value","from","to"]}`),
	})))
	for _, s := range []string{
		`{"messages":[{"role":"user","content":"What time is it in Tokyo and what is 12.5*8?"}],"tools":` + tools + `}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"convert 100 EUR to USD"}]}],"tools":` + tools + `,"tool_choice":"required"}`,
		`{"messages":[{"role":"user","content":"2+2"},{"role":"assistant","content":"4"},{"role":"user","content":"and times 3?"}],"tools":` + tools + `}`,
		`{"messages":[{"role":"user","content":"fail"},{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"a","content":"{\"error\":null}"}]}`,
		`{"messages":[{"role":"system","content":"TOOL: PARAMETERS:\n- a: b\n{\"type\":\"object\"}"},{"role":"user","content":"TOOL RESULT: a\nx"}]}`,
		`{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"a","parameters":{"properties":{"a":{"enum":[]},"b":{"anyOf":[{}]}},"required":["a","b"]}}}],"tool_choice":{"type":"function","function":{"name":"a"}}}`,
		`{"messages":[{"role":"user","content":"\ud800 \u0000"}]}`, `{"messages":null}`, `[]`, `{"stream":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := decodeChat(body)
		if err != nil {
			return
		}
		out := respond(r)
		for _, c := range out.calls {
			if !json.Valid([]byte(c.args)) || c.id == "" {
				t.Fatalf("call %+v", c)
			}
		}
		for _, d := range out.deltas() {
			if b := encode(d); !utf8.Valid(b) {
				t.Fatalf("delta %q", b)
			}
		}
		if (out.text == "") == (len(out.calls) == 0) {
			t.Fatalf("text %q and %d calls", out.text, len(out.calls))
		}
		if again := respond(r); again.id != out.id {
			t.Fatal("two answers to one request")
		}
	})
}
