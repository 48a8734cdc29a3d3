package demo

import "testing"

func TestStructuredTextFillsASchema(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type":"object","properties":{"result":{"type":"number"},"text":{"type":"string"},"ok":{"type":"boolean"},"list":{"type":"array"},"none":{"type":"null"}}}`: `{"list":[],"none":null,"ok":true,"result":100,"text":"12.5 * 8 = 100"}`,
		`{"type":"integer"}`: `100`,
		`true`:               `"12.5 * 8 = 100"`,
	} {
		if got := structuredText([]byte(schema), "12.5 * 8 = 100"); got != want {
			t.Errorf("%s: got %s, want %s", schema, got, want)
		}
	}
}
