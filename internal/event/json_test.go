package event

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
)

// checkSameJSON compares the JSON that b appends itself with the JSON of encoding/json.
func checkSameJSON(t *testing.T, b Body) {
	t.Helper()
	fields, err := MarshalJSON(b)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Appendf(nil, `{"type":"%s","run_id":"run_a","seq":1,"ts":2,%s`, b.Type(), fields[1:])
	for escape, r := range map[string]string{`\u2028`: "\u2028", `\ufffd`: "\ufffd"} { // valid in JSON as they are
		want = bytes.ReplaceAll(want, []byte(escape), []byte(r))
	}
	if got := encodeBody(t, b); !bytes.Equal(got, want) {
		t.Errorf("Encode of %s\ngot  %s\nwant %s", b.Type(), got, want)
	}
}

func encodeBody(t *testing.T, b Body) []byte {
	t.Helper()
	e, err := Encode("run_a", 1, 2, b)
	if err != nil {
		t.Fatal(err)
	}
	return e.JSON
}

// This finds a field that was added to a body and forgotten in its appendFields.
func TestAppendFieldsWritesTheJSONOfEncodingJSON(t *testing.T) {
	raw := []json.RawMessage{json.RawMessage(`{"a":[1,"<&>"]}`), json.RawMessage(`0`)}
	call := Call{"c", "t<>\"", "s"}
	full := []Body{
		ToolResult{call, raw[0], raw[1], raw, raw[0], &Truncated{1 << 20, "/runs/a"}, 7, []FieldError{{"/a", "<b>"}, {"", "c"}}, "run_<1>"},
		FinalAnswer{"<\n\u2028>\xff", raw[0], Metadata{[]string{"a", "<\">"}, raw, raw, "m", "u", 2, "stop", Usage{1, 2, 3}, new(2.5e-7), []string{"a<"}}, "stop"},
	}

	for _, b := range append(full,
		ToolResult{}, ToolResult{Call: call, Content: []json.RawMessage{}, Truncated: &Truncated{}},
		TextDelta{"p\"", "<\x01é\u2028\xff"}, ReasoningDelta{"p", "a\\"}, ToolCallArgs{call, "{\"a\""}, ToolCallArgs{},
		FinalAnswer{}, FinalAnswer{Metadata: Metadata{ToolNames: []string{}, ToolParams: []json.RawMessage{}, ToolResults: []json.RawMessage{nil}}},
		ToolResult{Payload: json.RawMessage("{\r\n \"a\" : [ ]\n}")},
	) {
		checkSameJSON(t, b)
	}

	broken := encodeBody(t, ToolResult{Payload: json.RawMessage("{\n\"a\n\":")})
	if !json.Valid(broken) || bytes.ContainsAny(broken, "\r\n") {
		t.Errorf("Encode of a payload that is not JSON = %q, want JSON of one line", broken)
	}
}
