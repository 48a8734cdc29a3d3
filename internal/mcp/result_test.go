package mcp

import (
	"strings"
	"testing"
)

// S1.6 and S2.7: what a reader of text and what a program gets.
func TestTextAndPayload(t *testing.T) {
	for _, test := range []struct{ result, text, payload string }{
		{`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, "a\nb", `"a\nb"`},
		{`{"content":[]}`, "(no content)", `""`},
		{`{}`, "(no content)", `""`},
		{`{"content":[{"type":"text","text":""}]}`, "", `""`},
		{`{"content":[{"type":"image","mimeType":"image/png","data":"AAAAAAA="},{"type":"text","text":"x"}]}`,
			"[image image/png, 5 bytes]\nx", `[{"type":"image","mimeType":"image/png","data":"AAAAAAA="},{"type":"text","text":"x"}]`},
		{`{"content":[{"type":"audio","mimeType":"audio/wav","data":""}]}`, "[audio audio/wav, 0 bytes]",
			`[{"type":"audio","mimeType":"audio/wav","data":""}]`},
		{`{"content":[{"type":"resource","resource":{"uri":"file:///a","mimeType":"text/plain","text":"inside"}}]}`,
			"[resource file:///a, text/plain, 6 bytes]\ninside",
			`[{"type":"resource","resource":{"uri":"file:///a","mimeType":"text/plain","text":"inside"}}]`},
		{`{"content":[{"type":"resource","resource":{"uri":"file:///a","blob":"AAAA"}}]}`, "[resource file:///a, , 3 bytes]",
			`[{"type":"resource","resource":{"uri":"file:///a","blob":"AAAA"}}]`},
		{`{"content":[{"type":"resource_link","uri":"file:///a","name":"a","mimeType":"text/plain","size":7}]}`,
			"[link to resource file:///a, text/plain, 7 bytes]",
			`[{"type":"resource_link","uri":"file:///a","name":"a","mimeType":"text/plain","size":7}]`},
		// A type of tomorrow is no error.
		{`{"content":[{"type":"video","data":"AAAA"}]}`, "[content of type video, 30 bytes]", `[{"type":"video","data":"AAAA"}]`},
		{`{"content":[{"type":7}]}`, "[unreadable content, 10 bytes]", `[{"type":7}]`},
		{`{"content":[{"type":"text","text":"t"}],"structuredContent":{"n":9007199254740993}}`, "t", `{"n":9007199254740993}`},
		{`{"content":[],"structuredContent":{"a":1}}`, `{"a":1}`, `{"a":1}`},
		{`{"content":[{"type":"text","text":"0"}],"structuredContent":0}`, "0", `0`},
		{`{"content":[{"type":"text","text":"f"}],"structuredContent":false}`, "f", `false`},
		{`{"content":[{"type":"text","text":"e"}],"structuredContent":[]}`, "e", `[]`},
		{`{"content":[{"type":"text","text":"e"}],"structuredContent":""}`, "e", `""`},
		{`{"content":[{"type":"text","text":"n"}],"structuredContent":null}`, "n", `"n"`},
		{`{"resultType":"complete","content":[{"type":"text","text":"c"}]}`, "c", `"c"`},
	} {
		r, f := decodeResult([]byte(test.result))
		if f != nil {
			t.Errorf("%s: %v", test.result, f)
			continue
		}
		if got := r.Text(); got != test.text {
			t.Errorf("%s: text %q, want %q", test.result, got, test.text)
		}
		if got := string(r.Payload()); got != test.payload {
			t.Errorf("%s: payload %s, want %s", test.result, got, test.payload)
		}
	}
}

func TestResultsThatAreNone(t *testing.T) {
	for _, raw := range []string{
		`7`, `{"content":7}`, `{"content":["x"]}`, `{"content":[null]}`, `{"isError":"yes"}`,
		`{"resultType":"task","taskId":"1"}`, `{"resultType":"input_required","inputRequests":{}}`,
	} {
		if r, f := decodeResult([]byte(raw)); f == nil || f.kind != Protocol {
			t.Errorf("%s: %+v %v", raw, r, f)
		}
	}
}

func FuzzResult(f *testing.F) {
	f.Add(`{"content":[{"type":"text","text":"a"}],"structuredContent":{"a":1},"isError":true}`)
	f.Add(`{"content":[{"type":"resource","resource":{"text":null}}]}`)
	f.Fuzz(func(t *testing.T, raw string) {
		r, fail := decodeResult([]byte(raw))
		if fail != nil {
			return
		}
		if r.Payload() == nil || r.Text() == "" && !strings.Contains(raw, "text") {
			t.Errorf("%s: %q %s", raw, r.Text(), r.Payload())
		}
	})
}
