package auth

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestSecretNeverPrints(t *testing.T) {
	s := NewSecret("hush")
	hidden := struct {
		Open   Secret
		closed Secret
		deep   []any
	}{s, s, []any{s, &s}}

	for _, verb := range []string{"%s", "%v", "%+v", "%#v", "%d", "%x", "%X", "%q", "%c", "%U", "%t", "%e", "%p", "%10.2s"} {
		for _, value := range []any{s, &s, hidden, &hidden, []Secret{s}, map[Secret]Secret{s: s}} {
			if text := fmt.Sprintf(verb, value); strings.Contains(text, "hush") || strings.Contains(text, "68757368") {
				t.Errorf("%s of %T: %s, want text without hush, text without 68757368", verb, value, text)
			}
		}
	}

	text, err := json.Marshal(hidden)
	if err != nil || strings.Contains(string(text), "hush") {
		t.Errorf("JSON %s, %v, want text without hush, no error", text, err)
	}
}

func TestSecretComparesByText(t *testing.T) {
	var read Secret
	if err := read.UnmarshalText([]byte("hush")); err != nil || read != NewSecret("hush") || read.Reveal() != "hush" {
		t.Errorf("got %q, %v, want %v, %q", read.Reveal(), err, NewSecret("hush"), "hush")
	}
	if !NewSecret("").IsZero() || (Secret{}).Reveal() != "" || read.IsZero() {
		t.Error("IsZero is not of the empty secret only, want it so")
	}
}
