package event

import (
	"bytes"
	"testing"
)

// An event that Decode accepts reads the same after it was encoded again.
func FuzzDecode(f *testing.F) {
	for _, body := range []Body{Start{Question: "?", Model: "m"}, TextDelta{PartID: "p", Delta: "a"}, ToolResult{Call: Call{CallID: "c", Tool: "t", Server: "s"}, Payload: []byte(`{"a":1}`)}, FinalAnswer{Answer: "a", FinishReason: "stop"}, Cancelled{Reason: "r"}} {
		e, err := Encode("run_a", 1, 2, body)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(e.JSON)
	}
	for _, s := range []string{`{}`, `{"type":"start"}`, `{"type":"made_up"}`, `{"type":"start","seq":"1"}`, `{"type":"tool_call","args":[]}`, `null`, "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := Decode(line)
		if err != nil {
			return
		}
		again, err := Encode(e.RunID, e.Seq, e.Time, e.Body)
		if err != nil {
			return // valid JSON, but not a value that answerd writes
		}
		third, err := Decode(again.JSON)
		if err != nil || third.Body.Type() != e.Body.Type() {
			t.Fatalf("Decode(%q) and Encode gave %q, which decodes as %v, %v, want %T", line, again.JSON, third.Body, err, e.Body)
		}
		last, err := Encode(third.RunID, third.Seq, third.Time, third.Body)
		if err != nil || !bytes.Equal(last.JSON, again.JSON) {
			t.Errorf("Encode(Decode(%q)) = %q, %v, want the same", again.JSON, last.JSON, err)
		}
	})
}
