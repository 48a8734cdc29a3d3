package mcp

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// The form that a server asks to be filled in, and what somebody filled in.
func FuzzForm(f *testing.F) {
	for _, s := range [][2]string{
		{`{"type":"object","properties":{"a":{"type":"string","minLength":1}},"required":["a"]}`, `{"a":"b"}`}, {`{"type":"object"}`, `{}`}, {`{}`, `null`}, {`true`, `1`}, {`{"$ref":"#"}`, `{}`},
		{`{"$ref":"http://127.0.0.1/"}`, `{}`}, {`{"properties":{"a":{"enum":["x"],"enumNames":["y"]}}}`, `{"a":"z"}`}, {`{"properties":[]}`, `[]`}, {`[`, `{`},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, schema, content string) {
		e := Elicitation{Mode: ElicitForm, Schema: json.RawMessage(schema)}
		if err := e.Check(json.RawMessage(content)); err == nil && !json.Valid([]byte(content)) {
			t.Errorf("%q is an answer to %q", content, schema)
		}
	})
}

// Headers that a tool's schema asks for are ones that can be sent, whatever the arguments.
func FuzzHeaderParams(f *testing.F) {
	for _, s := range [][2]string{
		{`{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"A"}}}`, `{"a":"b"}`},
		{`{"properties":{"a":{"type":"object","properties":{"b":{"type":"integer","x-mcp-header":"B"}}}}}`, `{"a":{"b":1e3}}`},
		{`{"properties":{"a":{"type":"string","x-mcp-header":"A\r\nB"}}}`, `{"a":"b"}`}, {`{"properties":{"a":{"type":"boolean","x-mcp-header":"A"}}}`, `{"a":true}`},
		{`{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}`, `{"a":"\r\n X: y"}`}, {`{"x-mcp-header":1}`, `[]`},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, schema, args string) {
		params, err := headerParams(json.RawMessage(schema))
		if err != nil {
			return
		}
		for name, value := range headers(params, json.RawMessage(args)) {
			var b strings.Builder
			if err := (http.Header{name: {value}}).Write(&b); err != nil || b.String() != name+": "+value+"\r\n" {
				t.Errorf("%q with %q gives %q", schema, args, b.String())
			}
		}
	})
}
