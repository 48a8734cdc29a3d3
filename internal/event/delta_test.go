package event

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzADeltaIsWrittenAsEncodingJSONWould compares the two ways to encode.
func FuzzADeltaIsWrittenAsEncodingJSONWould(f *testing.F) {
	for _, s := range []string{"", "token ", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "<a href=''>&amp;", "\u2028\u2029\ufffd", "\xff\xc3(", "日本語 😀"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		call := Call{CallID: one, Tool: other, Server: one}
		for _, b := range []Body{TextDelta{one, other}, ReasoningDelta{one, other}, ToolCallArgs{call, other}} {
			var buf bytes.Buffer
			enc := json.NewEncoder(&buf)
			enc.SetEscapeHTML(false)
			if err := enc.Encode(b); err != nil {
				t.Fatal(err)
			}
			want := encode("run_a", 1, 2, Start{}, bytes.TrimSpace(buf.Bytes()))
			want = bytes.Replace(want, []byte(`"start"`), []byte(`"`+b.Type()+`"`), 1)
			if got := encode("run_a", 1, 2, b, nil); !bytes.Equal(got, want) {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		}
	})
}
