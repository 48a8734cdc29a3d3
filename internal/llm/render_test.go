package llm

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func FuzzString(f *testing.F) {
	for _, s := range []string{"", "plain", "eight by", "nine byte", `a "quote" and a \`, "\x00\x1f \x7f\b\f\n\r\t", "ě ✓ 😀", "\u2028\u2029", "\xff\xc3", "long enough to be read eight at a time, \"and more", "<b>&amp;"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(s); err != nil {
			t.Fatal(err)
		}
		if got := string(appendString(nil, s)); got+"\n" != want.String() {
			t.Errorf("%q is %s, and to encoding/json %s", s, got, want.String())
		}
	})
}

func BenchmarkLongConversation(b *testing.B) {
	const line = "A line of a result that a tool found somewhere, \"quoted\" once.\n"
	r := Request{Model: "m", Messages: []Message{{Role: User, Text: "Hi"}, {Role: ToolRole, CallID: "1", Text: strings.Repeat(line, 100_000/len(line))}}}
	var cache toolCache
	b.ReportAllocs()
	for b.Loop() {
		if _, err := requestBody(r, &cache); err != nil {
			b.Fatal(err)
		}
	}
}
