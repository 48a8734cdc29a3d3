package wire

import (
	"encoding/json"
	"testing"
)

// FuzzMembers compares what is found in an object with what encoding/json finds.
func FuzzMembers(f *testing.F) {
	for _, s := range []string{
		`{}`, ` { } `, `{"a":1}`, `{ "a" : [ 1 , {"b":"]}\\"} ] , "b":"\"" }`, `{"a":"\u00e9\ud83d\ude00\ud83d\u0041\/\b"}`, `{"":"","t\u0065xt":1,"a":2,"a":3}`, "{\"\x80\":\"\x80\"}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var want map[string]json.RawMessage
		wantErr := json.Unmarshal([]byte(s), &want)
		got := map[string]json.RawMessage{}
		err := Members([]byte(s), func(name string, value json.RawMessage) { got[name] = value })
		if (err == nil) != (wantErr == nil && want != nil) {
			t.Fatalf("Members(%q): got the error %v, want %v", s, err, wantErr)
		}
		for name, value := range want {
			if string(got[name]) != string(value) {
				t.Errorf("%q: got %s for %q, want %s", s, got[name], name, value)
			}
			var text string
			said, ok := Text(got[name])
			if isText := json.Unmarshal(value, &text) == nil; isText != ok || said != text {
				t.Errorf("%q: got %q, %t, want %q", s, said, ok, text)
			}
		}
	})
}

func TestReplaceHalfPairsLeavesWholeOnes(t *testing.T) {
	for raw, want := range map[string]string{
		`"a"`:                         `"a"`,
		`"\ud83c\udf89 \u00e9"`:       "\"\U0001f389 \u00e9\"",
		`"cut \ud83c"`:                "\"cut \ufffd\"",
		`"\uDF89 rest"`:               "\"\ufffd rest\"",
		`"\ud83c\ud83c\udf89"`:        "\"\ufffd\U0001f389\"",
		`"\ud83c\n\\ud83c"`:           "\"\ufffd\\n\\\\ud83c\"",
		`{"\ud83c":["\udf89","x"]}`:   "{\"\ufffd\":[\"\ufffd\",\"x\"]}",
		`[9007199254740993,"\ud83c"]`: "[9007199254740993,\"\ufffd\"]",
	} {
		given := []byte(raw)
		if got := string(ReplaceHalfPairs(given)); got != want || string(given) != raw {
			t.Errorf("ReplaceHalfPairs(%s) = %s, want %s and its input unchanged", raw, got, want)
		}
	}
}
