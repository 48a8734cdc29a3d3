package jsontext

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzAppendString(f *testing.F) {
	for _, s := range []string{"", "plain", "eight by", "nine byte", `a "quote" and a \`, "\x00\x1f \x7f\b\f\n\r\t", "ě ✓ 日本語 😀", "\u2028", "\u2029", "\ufffd", "\xff\xc3(", "long enough to be read eight at a time, \"and more", "<b>&amp;"} {
		f.Add(s)
		f.Add(strings.Repeat("日本語 ", 8) + s) // long enough to be looked through at once
	}
	f.Fuzz(func(t *testing.T, s string) {
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(s); err != nil {
			t.Fatal(err)
		}
		if got := string(AppendString(nil, s)); got+"\n" != want.String() {
			t.Errorf("%q is %s, and to encoding/json %s", s, got, want.String())
		}
		// What is said to be plain is, and the byte behind it is not.
		special := func(r rune) bool { return r < ' ' || r == '"' || r == '\\' }
		ascii := func(r rune) bool { return special(r) || r >= utf8.RuneSelf }
		if got, want := Plain([]byte(s)), upTo(s, special); got != want {
			t.Errorf("%d bytes of %q are plain, not %d", want, s, got)
		}
		if got, want := plain(s, false), upTo(s, ascii); got != want {
			t.Errorf("%d bytes of %q are plain ASCII, not %d", want, s, got)
		}
	})
}

// upTo is where the first rune stands for which end is true, or the end of s.
func upTo(s string, end func(rune) bool) int {
	if i := strings.IndexFunc(s, end); i >= 0 {
		return i
	}
	return len(s)
}

func BenchmarkAppendString(b *testing.B) {
	for name, s := range map[string]string{
		"token":  " token",
		"prose":  strings.Repeat("A line of a result that a tool found somewhere. ", 100),
		"quoted": strings.Repeat("A line of a result that a tool found somewhere, \"quoted\" once.\n", 100),
		"kanji":  strings.Repeat("日本語の文章", 100),
	} {
		b.Run(name, func(b *testing.B) {
			buf := make([]byte, 0, 2*len(s))
			b.SetBytes(int64(len(s)))
			for b.Loop() {
				buf = AppendString(buf[:0], s)
			}
		})
	}
}
