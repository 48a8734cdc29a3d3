package mcp

import (
	"encoding/json"
	"testing"
)

// FuzzScan compares what is found in valid JSON with what encoding/json finds.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{}`, `[]`, ` { } `, `{"a":1}`, `{ "a" : [ 1 , {"b":"]}\\"} ] , "b":"\"" }`, `["\\\\","\\\"",true,null,-1.5e+3]`, `[[],[[]],{}]`,
		`{"a":"\u00e9\ud83d\ude00\ud83d\u0041\ude00\/\b\f\n\r\t"}`, `{"":""}`, `{"t\u0065xt":1,"\"":2}`, `["\ud83d\ud83d\ude00","\ud83dx","\uD83D"]`, "[\n1\t,\r2 ]",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		raw := json.RawMessage(s)
		var object map[string]json.RawMessage
		var array []json.RawMessage
		switch {
		case json.Unmarshal(raw, &object) == nil && object != nil:
			raw = raw[skipSpace(raw, 0):]
			found := make(map[string]json.RawMessage)
			for name, value := range members(raw) {
				found[string([]rune(name))] = value
				checkText(t, value)
			}
			if len(found) != len(object) {
				t.Fatalf("%s: %d members, not %d", s, len(found), len(object))
			}
			for name, want := range object {
				if string(found[name]) != string(want) {
					t.Errorf("%s: %q is %s, not %s", s, name, found[name], want)
				}
			}
		case json.Unmarshal(raw, &array) == nil && array != nil:
			found := elements(raw[skipSpace(raw, 0):])
			if len(found) != len(array) {
				t.Fatalf("%s: %d elements, not %d", s, len(found), len(array))
			}
			for i, want := range array {
				checkText(t, found[i])
				if string(found[i]) != string(want) {
					t.Errorf("%s: element %d is %s, not %s", s, i, found[i], want)
				}
			}
		}
	})
}

func checkText(t *testing.T, value json.RawMessage) {
	t.Helper()
	var want string
	got, ok := textOf(value)
	if err := json.Unmarshal(value, &want); (err == nil) != ok {
		t.Errorf("%s: %t, %v", value, ok, err)
	} else if string([]rune(got)) != want { // results are valid UTF-8 when they come here
		t.Errorf("%s: %q, not %q", value, got, want)
	}
}
