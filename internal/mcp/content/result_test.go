package content

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"answerd/internal/mcp/wire"
)

func TestResultTextAndPayload(t *testing.T) {
	for _, test := range []struct{ result, text, payload string }{
		{`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, "a\nb", `"a\nb"`},
		{`{"content":[]}`, "(no content)", `""`},
		{`{}`, "(no content)", `""`},
		{`{"content":[{"type":"text","text":""}]}`, "(no content)", `""`},
		{`{"content":[{"type":"text"}]}`, "(no content)", `""`},
		{`{"content":[{"type":"text","text":null}]}`, "(no content)", `""`},
		{`{"content":[{"type":"text","text":7}]}`, "[unreadable content, 24 bytes]", `[{"type":"text","text":7}]`},
		{` {"content" : [ {"text" : "a\u00e9\n", "type" : "text"} ] } `, "aé\n", `"a\u00e9\n"`},
		{`{"content":null,"structuredContent":1}`, "1", `1`},
		{`{"content":[{"type":"image","mimeType":"image/png","data":"AAAAAAA="},{"type":"text","text":"x"}]}`,
			"[image image/png, 5 bytes]\nx", `[{"type":"image","mimeType":"image/png","data":"AAAAAAA="},{"type":"text","text":"x"}]`},
		{`{"content":[{"type":"audio","mimeType":"audio/wav","data":""}]}`, "[audio audio/wav, 0 bytes]",
			`[{"type":"audio","mimeType":"audio/wav","data":""}]`},
		{`{"content":[{"type":"image","mimeType":"image/png"}]}`, "[unreadable content, 39 bytes]", `[{"type":"image","mimeType":"image/png"}]`},
		{`{"content":[{"type":"audio","data":null}]}`, "[unreadable content, 28 bytes]", `[{"type":"audio","data":null}]`},
		{`{"content":[{"type":"resource","resource":{"uri":"file:///a","mimeType":"text/plain","text":"inside"}}]}`,
			"[resource file:///a, text/plain, 6 bytes]\ninside",
			`[{"type":"resource","resource":{"uri":"file:///a","mimeType":"text/plain","text":"inside"}}]`},
		{`{"content":[{"type":"resource","resource":{"uri":"file:///a","blob":"AAAA"}}]}`, "[resource file:///a, , 3 bytes]",
			`[{"type":"resource","resource":{"uri":"file:///a","blob":"AAAA"}}]`},
		{`{"content":[{"type":"resource_link","uri":"file:///a","name":"a","mimeType":"text/plain","size":7}]}`,
			"[link to resource file:///a, text/plain, 7 bytes]",
			`[{"type":"resource_link","uri":"file:///a","name":"a","mimeType":"text/plain","size":7}]`},
		{`{"content":[{"type":"resource_link","uri":"file:///a","name":"a","size":7.0}]}`, "[link to resource file:///a, 7 bytes]",
			`[{"type":"resource_link","uri":"file:///a","name":"a","size":7.0}]`},
		{`{"content":[{"type":"resource_link","uri":"doc:17","name":"q3","title":"Q3\treport","description":"Sales by region"},{"type":"resource_link","uri":"doc:18","name":"q4"},{"type":"resource_link","uri":"file:///a","name":"a","description":"All"}]}`,
			"[link to resource doc:17 (Q3 report: Sales by region)]\n[link to resource doc:18 (q4)]\n[link to resource file:///a (All)]",
			`[{"type":"resource_link","uri":"doc:17","name":"q3","title":"Q3\treport","description":"Sales by region"},{"type":"resource_link","uri":"doc:18","name":"q4"},{"type":"resource_link","uri":"file:///a","name":"a","description":"All"}]`},
		// An unknown type is not an error.
		{`{"content":[{"type":"video","data":"AAAA"}]}`, "[content of type video, 30 bytes]", `[{"type":"video","data":"AAAA"}]`},
		{`{"content":[{"type":7}]}`, "[unreadable content, 10 bytes]", `[{"type":7}]`},
		{`{"content":[{"type":"text","text":"t"}],"structuredContent":{"n":9007199254740993}}`, "t\nStructured content: {\"n\":9007199254740993}", `{"n":9007199254740993}`},
		{`{"content":[],"structuredContent":{"a":1}}`, `{"a":1}`, `{"a":1}`},
		{`{"content":[{"type":"text","text":"0"}],"structuredContent":0}`, "0", `0`},
		{`{"content":[{"type":"text","text":"f"}],"structuredContent":false}`, "f\nStructured content: false", `false`},
		{`{"content":[{"type":"text","text":"e"}],"structuredContent":[]}`, "e\nStructured content: []", `[]`},
		{`{"content":[{"type":"text","text":"e"}],"structuredContent":""}`, "e\nStructured content: \"\"", `""`},
		{`{"content":[{"type":"text","text":"n"}],"structuredContent":null}`, "n", `"n"`},
		{`{"resultType":"complete","content":[{"type":"text","text":"c"}]}`, "c", `"c"`},
		// A name with escapes is the same name, one in capitals is another (RFC 8259 section 8.3).
		{`{"content":[{"type":"\u0074ext","t\u0065xt":"e"}]}`, "e", `"e"`},
		{`{"content":[{"tYpe":"text","text":"e"}]}`, "[unreadable content, 26 bytes]", `[{"tYpe":"text","text":"e"}]`},
		{`{"content":[{"type":"video","TYPE":"text"}]}`, "[content of type video, 30 bytes]", `[{"type":"video","TYPE":"text"}]`},
	} {
		r, err := Decode([]byte(test.result))
		if err != nil {
			t.Errorf("Decode(%s) = %v, want nil", test.result, err)
			continue
		}
		if got := r.Text(); got != test.text {
			t.Errorf("Text() of %s = %q, want %q", test.result, got, test.text)
		}
		if got := string(r.Payload()); got != test.payload {
			t.Errorf("Payload() of %s = %s, want %s", test.result, got, test.payload)
		}
	}
}

func TestDecodeRefusesWhatIsNotACompleteResult(t *testing.T) {
	for _, raw := range []string{
		`7`, `{"content":7}`, `{"content":["x"]}`, `{"content":[null]}`, `{"isError":"yes"}`,
		`{"resultType":"task","taskId":"1"}`, `{"resultType":"input_required","inputRequests":{}}`,
	} {
		if r, err := Decode([]byte(raw)); err == nil {
			t.Errorf("Decode(%s) = %+v, want an error", raw, r)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"content":[{"type":"text","text":"a"}],"structuredContent":{"a":1},"isError":true}`)
	f.Add(`{"content":[{"type":"resource","resource":{"text":null}}]}`)
	f.Fuzz(func(t *testing.T, raw string) {
		r, err := Decode([]byte(raw))
		if err != nil {
			return
		}
		if r.Payload() == nil || r.Text() == "" {
			t.Errorf("Decode(%s): Text() = %q, Payload() = %s, want neither empty", raw, r.Text(), r.Payload())
		}
		const limit = 300
		b := r.Truncate(TruncateOptions{MaxBytes: limit, MaxBinary: 50, URL: "/w"})
		notes := 400 * (len(b.Content) + 2)
		if n := len(b.Payload) + len(b.Structured) + totalSize(b.Content); n > limit+2*notes {
			t.Errorf("Truncate of %s = %d bytes, want at most %d and the notes: %+v", raw, n, limit, b)
		}
		for _, v := range append(b.Content, b.Payload) {
			if !json.Valid(v) || !utf8.Valid(v) {
				t.Errorf("Truncate of %s has %s, want valid JSON in UTF-8", raw, v)
			}
		}
		if whole := r.Truncate(TruncateOptions{MaxBytes: 1 << 30, MaxBinary: 1 << 30}); whole.Incomplete || string(whole.Payload) != string(r.Payload()) || len(whole.Content) != len(r.Content) {
			t.Errorf("Truncate of %s with large bounds = %+v, want all of it", raw, whole)
		}
	})
}

func TestTruncateTextKeepsWholeRunesWithinTheirSizeInJSON(t *testing.T) {
	for _, test := range []struct {
		text, want string
		limit      int
	}{
		{"abc", "abc", 3},
		{"abc", "ab", 2},
		{"aéb", "a", 2},
		{"aéb", "aé", 3},
		{"a\n\"\\b", "a\n\"\\", 7},
		{"\x00\x01", "\x00", 11},
		{"\u2028x", "", 2},
		{"\u2028x", "\u2028", 3},
		{"a\U0001F600", "a", 4},
		{"", "", 0},
	} {
		got, cut := TruncateText(test.text, test.limit, "")
		got, _, _ = strings.Cut(got, "\n[cut here")
		if got != test.want || cut != (test.want != test.text) {
			t.Errorf("TruncateText(%q, %d) = %q, want %q", test.text, test.limit, got, test.want)
		}
	}
}

func FuzzTruncateText(f *testing.F) {
	f.Add("a\"\u2028\x00é", 7)
	f.Add("\x80\"", 7)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		limit = min(max(limit, 0), 1<<20)
		n := fittingPrefix(text, limit)
		if got := len(wire.Quote(text[:n])) - len(`""`); got > limit {
			t.Errorf("fittingPrefix(%q, %d) = %d, which takes %d bytes, want at most the limit", text, limit, n, got)
		}
		if n < len(text) {
			_, size := utf8.DecodeRuneInString(text[n:])
			if got := len(wire.Quote(text[:n+size])) - len(`""`); got <= limit {
				t.Errorf("fittingPrefix(%q, %d) = %d, want more: one rune more takes %d bytes", text, limit, n, got)
			}
		}
	})
}

func TestMediaNormalizeChecksTypeAndData(t *testing.T) {
	encode := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	png := "\x89PNG\r\n\x1a\n" + strings.Repeat("x", 10_000)
	for _, test := range []struct{ mime, data, want string }{
		{"image/png", encode(png), "image/png"},
		{"IMAGE/PNG; q=1", encode(png), "image/png"},
		{"image/jpg", encode("\xFF\xD8\xFF\xE0"), "image/jpeg"},
		{"image/gif", encode("GIF89a.."), "image/gif"},
		{"image/webp", encode("RIFF....WEBP"), "image/webp"},
		{"audio/wave", encode("RIFF....WAVEfmt "), "audio/wav"},
		{"audio/mp3", encode("\xFF\xFB\x90"), "audio/mpeg"},
		{"image/png", encode(png)[:76] + "\r\n" + encode(png)[76:], "image/png"},
		{"image/png", encode("GIF89a.."), ""},
		{"image/svg+xml", encode("<svg/>"), ""},
		{"image/png\",\"x", encode(png), ""},
		{"", encode(png), ""},
		{"audio/wav", encode("RIFF....WEBP"), ""},
		{"image/png", encode(png) + "=", ""},
		{"image/png", strings.TrimRight(encode(png+"x"), "="), ""},
		{"image/png", encode(png)[:4095] + "=" + encode(png)[4096:], ""},
		{"image/png", encode(png)[:5000] + "\"" + encode(png)[5001:], ""},
		{"image/png", "data:image/png;base64," + encode(png), ""},
	} {
		m, err := (&Media{MIME: test.mime, Data: test.data}).Normalize()
		if (err == nil) != (test.want != "") || err == nil && (m.MIME != test.want || strings.ContainsAny(m.Data, "\r\n")) {
			t.Errorf("Normalize of %s %.40s = %+v, %v, want type %q", test.mime, test.data, m, err, test.want)
		}
	}
}

// BenchmarkLargeResult decodes a result of 100 kB of text and returns it for each kind of reader.
func BenchmarkLargeResult(b *testing.B) {
	text, _ := json.Marshal(strings.Repeat("A line of a report that goes on for long.\n", 2381))
	raw := json.RawMessage(`{"content":[{"type":"text","text":` + string(text) + `}]}`)
	for name, step := range map[string]func(*Result){
		"decode":   func(*Result) {},
		"text":     func(r *Result) { _ = r.Text() },
		"truncate": func(r *Result) { r.Truncate(TruncateOptions{MaxBytes: 256 << 10, MaxBinary: 64 << 10}) },
		"payload":  func(r *Result) { r.Payload() },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				r, err := Decode(raw)
				if err != nil {
					b.Fatal(err)
				}
				step(r)
			}
		})
	}
}
