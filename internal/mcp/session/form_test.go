package session

import (
	"encoding/json"
	"testing"
)

func TestPlainFormRefusesFieldsThatCannotBeShown(t *testing.T) {
	for _, field := range []string{
		`{"type":["null","null"]}`, `{"anyOf":[{"type":"null"},{"type":"null"}]}`, `{"type":"null"}`, `{"type":["string","integer"]}`,
		`{"type":"object"}`, `{"type":"string","properties":{}}`, `{"type":"array"}`, `{"type":"array","items":[]}`, `{}`, `[]`, `null`, `5`,
	} {
		if plain, err := plainForm(json.RawMessage(`{"properties":{"a":` + field + `}}`)); err == nil {
			t.Errorf("%s: got %s, want an error", field, plain)
		}
	}
}
