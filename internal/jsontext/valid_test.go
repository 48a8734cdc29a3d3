package jsontext

import (
	"encoding/json"
	"strings"
	"testing"
)

func FuzzValid(f *testing.F) {
	for _, s := range []string{
		"", " ", "null", " true\n", "false", "nul", "truex", "{}", "[]", "[ ]", "{ }", "[,]", "[1,]", "[1 2]", "{,}", `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a":1 "b":2}`, `{a:1}`, `{"a":[{},[],""]}x`,
		`{"a":{"b":[1,2,{"c":"d"}]},"e":null}`, "[[[]]]", "[[[]]", "[}", "{]", "]", `{"a" : 1 , "b" : [ 2 , 3 ] }`,
		"0", "-0", "00", "-", "01", "1.", ".1", "1.5", "1e", "1E+9", "1e-", "-1.5e10", "1.e1", "+1", "0e0", "0.0", "--1",
		`"`, `""`, `"a`, `"\"`, `"\\"`, `"\x"`, `"\/\b\f\n\r\t"`, `"\u12`, `"\u12G4"`, `"\u00e9\uD834"`, "\"\x1f\"", "\"\x7f\"", "\"\xff\"", `"eight by"`, `"long enough to be read eight at a time, \"and more"`,
		strings.Repeat("[", 40) + strings.Repeat("]", 40), strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40),
		strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth), strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, want := Valid(b), json.Valid(b); got != want {
			t.Errorf("%.100q is valid: %v, and to encoding/json: %v", b, got, want)
		}
	})
}

func BenchmarkValid(b *testing.B) {
	large := []byte(`{"content":[{"type":"text","text":"` + strings.Repeat(`what is known of it, line by line\n`, 30000) + `"}]}`)
	small := []byte(`{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"it is known"}],"structuredContent":{"rows":[{"id":1,"ok":true},{"id":2,"ok":false}]}}}`)
	for name, data := range map[string][]byte{"text of 1 MB": large, "small": small} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				Valid(data)
			}
		})
		b.Run(name+" by encoding/json", func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				json.Valid(data)
			}
		})
	}
}
