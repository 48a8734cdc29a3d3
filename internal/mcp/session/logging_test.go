package session

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestBoundLogDataKeepsJSONWithinItsBounds(t *testing.T) {
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	for in, want := range map[string]string{
		`{"a":[1,null]}`: `{"a":[1,null]}`, `false`: `false`, `12345678901234567890`: `12345678901234567890`,
		``: `null`, "\"\xff\"": "\"\uFFFD\"", deep: `"` + deep + ` […]"`,
	} {
		if got := string(boundLogData(json.RawMessage(in))); got != want {
			t.Errorf("boundLogData(%q) = %q, want %q", in, got, want)
		}
	}
	got := boundLogData(json.RawMessage(`"` + strings.Repeat("ä", maxLogData) + `"`))
	if len(got) > maxLogData+20 || !json.Valid(got) || !strings.HasSuffix(string(got), `ä […]"`) {
		t.Errorf("got %d bytes that end in %q, want at most %d that end in %q", len(got), got[len(got)-20:], maxLogData+20, `ä […]"`)
	}
}
