package genai

import (
	"encoding/json"
	"strings"
	"testing"

	"answerd/internal/llm"
)

func TestInputHasInstructionsAndMessages(t *testing.T) {
	got := Input([]llm.Message{
		{Role: llm.System, Text: "Be brief."},
		{Role: llm.User, Text: "What is in it?", Media: []llm.Media{{Name: "plan.png", MIME: "image/png", Data: "c2VjcmV0"}}},
		{Role: llm.Assistant, Calls: []llm.ToolCall{{ID: "c1", Name: "add", Arguments: `{"a":1}`}, {ID: "c2", Name: "add", Arguments: `{"a"`}}},
		{Role: llm.ToolRole, CallID: "c1", Tool: "add", Text: "2"},
	})
	want := []string{
		`gen_ai.system_instructions [{"type":"text","content":"Be brief."}]`,
		`gen_ai.input.messages [{"role":"user","parts":[{"type":"text","content":"What is in it?"},{"type":"file","name":"plan.png","mime_type":"image/png","modality":"image"}]},` +
			`{"role":"assistant","parts":[{"type":"tool_call","id":"c1","name":"add","arguments":{"a":1}},{"type":"tool_call","id":"c2","name":"add","arguments":"{\"a\""}]},` +
			`{"role":"tool","parts":[{"type":"tool_call_response","id":"c1","response":"2"}]}]`,
	}
	if len(got) != len(want) {
		t.Fatalf("got %d attributes, want %d", len(got), len(want))
	}
	for i, kv := range got {
		if text := string(kv.Key) + " " + kv.Value.AsString(); text != want[i] {
			t.Errorf("got  %s\nwant %s", text, want[i])
		}
	}
}

func TestOutputHasTheFinishReason(t *testing.T) {
	want := `[{"role":"assistant","parts":[{"type":"text","content":"Two."},{"type":"tool_call","id":"c1","name":"add","arguments":{}}],"finish_reason":"tool_calls"}]`
	if got := Output("Two.", []llm.ToolCall{{ID: "c1", Name: "add", Arguments: "{}"}}, "tool_calls").Value.AsString(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Attributes are bounded and stay JSON, and the newest message is always there.
func TestAttributesAreBounded(t *testing.T) {
	long := strings.Repeat("ü\n", 200<<10)
	var many []llm.Message
	for range 1000 {
		many = append(many, llm.Message{Role: llm.User, Text: long[:3000]})
	}

	many = append(many, llm.Message{Role: llm.User, Text: "the newest"})
	for name, messages := range map[string][]llm.Message{
		"a long text":        {{Role: llm.System, Text: long}, {Role: llm.User, Text: long + "the newest"}, {Role: llm.User, Text: "the newest"}},
		"many messages":      many,
		"a long call":        {{Role: llm.Assistant, Calls: []llm.ToolCall{{Name: "the newest", Arguments: `{"a":"` + long[:300] + `"}`}}}},
		"long arguments":     {{Role: llm.Assistant, Calls: []llm.ToolCall{{Name: "the newest", Arguments: `"` + strings.Repeat("x", 1<<20) + `"`}}}},
		"control characters": {{Role: llm.User, Text: strings.Repeat("\x01", 1<<20) + "x"}, {Role: llm.User, Text: "the newest"}},
	} {
		for _, kv := range Input(messages) {
			text := kv.Value.AsString()
			if len(text) > MaxBytes || !json.Valid([]byte(text)) {
				t.Errorf("%s: %s has %d bytes, valid JSON = %v, want at most %d and true", name, kv.Key, len(text), json.Valid([]byte(text)), MaxBytes)
			}
			if kv.Key == "gen_ai.input.messages" && !strings.Contains(text, "the newest") {
				t.Errorf("%s: got %.200s, want the newest message in it", name, text)
			}
		}
	}

	if got := Result(long).Value.AsString(); len(got) > MaxBytes || !strings.HasSuffix(got, "…") {
		t.Errorf("got a result of %d bytes, want at most %d with a mark at the end", len(got), MaxBytes)
	}
	if got := Output("", make([]llm.ToolCall, 10000), "stop").Value.AsString(); got != "[]" {
		t.Errorf("got %.100s, want an empty list for an answer that cannot be shortened", got)
	}
}
