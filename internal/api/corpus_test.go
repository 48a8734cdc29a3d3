package api_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"unicode/utf16"

	"answerd/internal/api"
)

// whole is a question with every field, from which bad ones are made.
const whole = `{"question":"Wh\u00e4t?","history":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"model":"m",` +
	`"tool_choice":"auto","servers":["default"],"tools":["a*"],"max_turns":2,"budget":{"tool_calls":8,"total_tokens":500,"seconds":1.5},` +
	`"context":{"id":"1"},"thread_id":"t","metadata":{"k":"v"},"background":false}`

// corpus is the bad bodies of a question, made anew at every run from the few lines
// below; the names say what is wrong.
func corpus() map[string]string {
	out := make(map[string]string)
	for n := range len(whole) {
		out[fmt.Sprintf("cut after %d bytes", n)] = whole[:n]
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(whole), &fields); err != nil {
		panic(err)
	}
	in := strings.TrimSuffix(whole, "}")
	for name, value := range fields {
		out["two of "+name] = in + `,"` + name + `":` + string(value) + "}"
		// Whoever compares names in any case, as encoding/json does, sees two.
		for _, folded := range []string{strings.ToUpper(name), strings.ToUpper(name[:1]) + name[1:], strings.ReplaceAll(name, "s", "\u017f"), strings.ReplaceAll(name, "k", "\u212a"), name + `\u0000`, " " + name, name + "\u200b"} {
			if folded != name {
				out[fmt.Sprintf("%s as %q", name, folded)] = in + `,"` + folded + `":` + string(value) + "}"
			}
		}
		for _, wrong := range []string{`null`, `true`, `false`, `0`, `-1`, `1.5`, `1e400`, `"x\u0000"`, `"\ud800"`, "\"\xff\"", `[null]`, `[[]]`, `[{}]`, `{"a":null}`, `{"a":{}}`, `{"":""}`} {
			if name == "background" && (wrong == "true" || wrong == "false") {
				continue
			}
			out[name+" is "+wrong] = strings.Replace(whole, `"`+name+`":`+string(value), `"`+name+`":`+wrong, 1)
		}
	}
	for name, body := range map[string]string{
		"a byte order mark": "\ufeff" + whole, "UTF-16": string(utf16Bytes(whole)), "two values": whole + whole, "a comma behind": whole + ",",
		"NUL behind": whole + "\x00", "a comment": "/**/" + whole, "single quotes": strings.ReplaceAll(whole, `"`, "'"), "NaN": strings.Replace(whole, "1.5", "NaN", 1),
		"hex": strings.Replace(whole, "500", "0x1f4", 1), "a leading zero": strings.Replace(whole, "500", "0500", 1), "a plus": strings.Replace(whole, "500", "+500", 1),
		"a raw line feed": strings.Replace(whole, "Wh", "\n", 1), "a bad escape": strings.Replace(whole, `\u00e4`, `\x41`, 1), "half an escape": strings.Replace(whole, `\u00e4`, `\u00`, 1),
		"an overlong slash": strings.Replace(whole, "Wh", "\xc0\xaf", 1), "a surrogate in UTF-8": strings.Replace(whole, "Wh", "\xed\xa0\x80", 1),
		"deep lists": strings.Repeat("[", 20_000), "deep objects": strings.Repeat(`{"a":`, 20_000), "350,000 objects": "[" + strings.Repeat("{},", 349_000) + "{}]",
		"a prototype": in + `,"__proto__":{"background":true}}`, "system": in + `,"system":"obey"}`, "an endpoint": in + `,"base_url":"http://evil.example"}`,
		"long names": in + `,"context":{"` + strings.Repeat("k", 100_000) + `":[` + strings.Repeat("1,", 200_000) + `1]}}`,
	} {
		out[name] = body
	}
	return out
}

func utf16Bytes(s string) []byte {
	var out []byte
	for _, u := range utf16.Encode([]rune(s)) {
		out = append(out, byte(u>>8), byte(u))
	}
	return out
}

// Every bad body is a problem for the caller, on every route that takes one; none is a
// fault of ours, and none starts a run.
func TestTheCorpusOfBadBodiesIsRefused(t *testing.T) {
	s := serve(t, adds(), nil, func(o *api.Options) { o.MaxBody = 2 << 20 })
	bodies := corpus()
	if len(bodies) < 600 {
		t.Errorf("%d bodies", len(bodies))
	}
	for _, path := range []string{"/answer", "/answer/stream", "/tools/meet/call", "/runs/run_none/input"} {
		for name, body := range bodies {
			req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := s.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode/100 != 4 || resp.Header.Get("Content-Type") != "application/problem+json" || !json.Valid(b) {
				t.Errorf("%s, %s: %s %.200s %v", path, name, resp.Status, b, err)
			}
		}
	}
	if n := len(s.Model.Requests()); n != 0 || len(s.Tools.Entered) != 0 {
		t.Errorf("%d model requests, %d tool calls", n, len(s.Tools.Entered))
	}
}
