package native_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"answerd/internal/api/native"
	"answerd/internal/event"
)

func TestAnswerIsTheJSONOfItsFields(t *testing.T) {
	for _, a := range []native.Answer{
		{},
		{Answer: "1 < 2 & \"x\"\n\u2028\xff", RunID: "run_1", ThreadID: "thr \"1\"", TraceID: "0af", Metadata: event.Metadata{
			ToolNames: []string{"a", `b"`}, ToolParams: []json.RawMessage{json.RawMessage(`{"a":1}`), json.RawMessage(`{}`)},
			ToolResults: []json.RawMessage{json.RawMessage(`"<text>"`), json.RawMessage("{\n\"error\": null}")}, Model: "m", Steps: 2, FinishReason: "stop",
			Usage: event.Usage{InputTokens: 1, OutputTokens: 2, TotalTokens: 3},
		}},
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
