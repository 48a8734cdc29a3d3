package native_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"answerd/internal/api/native"
	"answerd/internal/event"
)

func TestAnAnswerIsWrittenAsEncodingJSONWould(t *testing.T) {
	for _, a := range []native.Answer{
		{},
		{Answer: "1 < 2 & \"x\"\n\u2028\xff", RunID: "run_1", ThreadID: "thr \"1\"", TraceID: "0af", Metadata: event.Metadata{
			ToolNames: []string{"a", `b"`}, ToolParams: []json.RawMessage{json.RawMessage(`{"a":1}`), json.RawMessage(`{}`)},
			ToolResults: []json.RawMessage{json.RawMessage(`"<text>"`), json.RawMessage("{\n\"error\": null}")}, Model: "m", Steps: 2, FinishReason: "stop",
			Usage: event.Usage{InputTokens: 1, OutputTokens: 2, TotalTokens: 3},
		}},
		{Metadata: event.Metadata{ToolNames: []string{}, ToolParams: []json.RawMessage{}, ToolResults: []json.RawMessage{}}},
	} {
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(a); err != nil {
			t.Fatal(err)
		}
		if got := string(a.JSON()); got != want.String() {
			t.Errorf("%s, and not %s", got, want.String())
		}
	}
}
