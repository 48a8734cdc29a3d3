package event

import (
	"bytes"
	"testing"
)

// An event of a log that others write is one that reads the same when it is written again,
// or none.
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
			return // a value that JSON lets through and that is none of ours
		}
		third, err := Decode(again.JSON)
		if err != nil || third.Body.Type() != e.Body.Type() {
			t.Fatalf("%q became %q: %v", line, again.JSON, err)
		}
		last, err := Encode(third.RunID, third.Seq, third.Time, third.Body)
		if err != nil || !bytes.Equal(last.JSON, again.JSON) {
			t.Errorf("%q became %q (%v)", again.JSON, last.JSON, err)
		}
	})
}
