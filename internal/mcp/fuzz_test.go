package mcp

import (
	"encoding/json"
	"testing"
)

// The form that a server asks a person to fill in, and the values that a person gave.
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
			t.Errorf("Check of %q for %q = nil, want an error for what is not JSON", content, schema)
		}
	})
}
