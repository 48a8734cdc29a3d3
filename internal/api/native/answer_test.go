package native_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"answerd/internal/api/native"
	"answerd/internal/event"
)

// The second answer names every field by its place, so that a new one is not forgotten here, nor in Answer.JSON.
func TestAnswerIsTheJSONOfItsFields(t *testing.T) {
	for _, a := range []native.Answer{
		{},
		{"1 < 2 & \"x\"\n\u2028\xff", event.Metadata{
			ToolNames: []string{"a", `b"`}, ToolParams: []json.RawMessage{json.RawMessage(`{"a":1}`), json.RawMessage(`{}`)},
			ToolResults: []json.RawMessage{json.RawMessage(`"<text>"`), json.RawMessage("{\n\"error\": null}")}, Model: "m", Steps: 2, FinishReason: "stop",
			Usage: event.Usage{InputTokens: 1, OutputTokens: 2, TotalTokens: 3},
		}, json.RawMessage(`{"a":1}`), "run_1", "thr \"1\"", "0af", map[string]string{"k": "<v>"}},
		{Metadata: event.Metadata{ToolNames: []string{}, ToolParams: []json.RawMessage{}, ToolResults: []json.RawMessage{}}},
	} {
		raw, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		var got, want any
		if err := json.Unmarshal(a.JSON(), &got); err != nil {
			t.Fatalf("%s: %v", a.JSON(), err)
		}
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %s\nwant %s", a.JSON(), raw)
		}
	}
}
