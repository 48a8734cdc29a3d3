package event

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
)

// sameJSON compares how b is written by hand with what encoding/json makes of it.
func sameJSON(t *testing.T, b Body) {
	t.Helper()
	fields, err := marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Appendf(nil, `{"type":"%s","run_id":"run_a","seq":1,"ts":2,%s`, b.Type(), fields[1:])
	for escape, r := range map[string]string{`\u2028`: "\u2028", `\ufffd`: "\ufffd"} { // which need none
		want = bytes.ReplaceAll(want, []byte(escape), []byte(r))
	}
	if got := encoded(t, b); !bytes.Equal(got, want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func encoded(t *testing.T, b Body) []byte {
	t.Helper()
	e, err := Encode("run_a", 1, 2, b)
	if err != nil {
		t.Fatal(err)
	}
	return e.JSON
}

// A field that is added to a body and forgotten by hand shows here.
func TestBodiesWrittenByHandAreAsEncodingJSONWritesThem(t *testing.T) {
	raw := []json.RawMessage{json.RawMessage(`{"a":[1,"<&>"]}`), json.RawMessage(`0`)}
	call := Call{"c", "t<>\"", "s"}
	full := []Body{
		ToolResult{call, raw[0], raw[1], raw, raw[0], &Truncated{1 << 20, "/runs/a"}, 7, []FieldError{{"/a", "<b>"}, {"", "c"}}},
		FinalAnswer{"<\n\u2028>\xff", Metadata{[]string{"a", "<\">"}, raw, raw, "m", 2, "stop", Usage{1, 2, 3}, new(2.5e-7)}, "stop"},
	}
	for _, b := range append(full,
		ToolResult{}, ToolResult{Call: call, Content: []json.RawMessage{}, Truncated: &Truncated{}},
		TextDelta{"p\"", "<\x01é\u2028\xff"}, ReasoningDelta{"p", "a\\"}, ToolCallArgs{call, "{\"a\""}, ToolCallArgs{},
		FinalAnswer{}, FinalAnswer{Metadata: Metadata{ToolNames: []string{}, ToolParams: []json.RawMessage{}, ToolResults: []json.RawMessage{nil}}},
		ToolResult{Payload: json.RawMessage("{\r\n \"a\" : [ ]\n}")},
	) {
		sameJSON(t, b)
	}
	broken := encoded(t, ToolResult{Payload: json.RawMessage("{\n\"a\n\":")})
	if !json.Valid(broken) || bytes.ContainsAny(broken, "\r\n") {
		t.Errorf("%s", broken)
	}
}

// What the model wrote as arguments is refused where it is no JSON, and not made into some.
func TestArgumentsThatAreNoJSONAreNoEvent(t *testing.T) {
	m := NewMemory(MemoryOptions{})
	if err := m.Create(t.Context(), Run{ID: "run_a"}); err != nil {
		t.Fatal(err)
	}
	if seq, err := m.Append(t.Context(), "run_a", ToolCall{Args: json.RawMessage(`{"a":`)}); err == nil {
		t.Errorf("it is event %d", seq)
	}
}
