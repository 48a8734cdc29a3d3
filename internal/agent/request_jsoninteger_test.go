package agent_test

import (
	"encoding/json"
	"errors"
	"testing"

	"answerd/internal/agent"
)

func TestIntegerIsRecognizedInEveryNotation(t *testing.T) {
	for text, want := range map[string]agent.JSONInteger{
		"5": 5, "5.0": 5, "5.000": 5, "5e0": 5, "50e-1": 5, "0.5E+1": 5, "-5.0": -5, "-0.0": 0, "0": 0,
		"9223372036854775807": 1<<63 - 1, "-9223372036854775808": -1 << 63, "9007199254740991.0": 1<<53 - 1, "null": 0,
	} {
		var in struct{ N agent.JSONInteger }
		if err := json.Unmarshal([]byte(`{"N":`+text+`}`), &in); err != nil || in.N != want {
			t.Errorf("%s: %d, %v, want %d and no error", text, in.N, err, want)
		}
	}
	for text, what := range map[string]string{
		"5.5": "number 5.5", "5e-1": "number 5e-1", "9223372036854775808": "number 9223372036854775808", "9007199254740992.0": "number 9007199254740992.0",
		"1e300": "number 1e300", "1e400": "number 1e400", `"5"`: "string", "true": "bool", "[5]": "array", "{}": "object",
	} {
		var in struct {
			A struct{ N *agent.JSONInteger }
		}
		wrong, ok := errors.AsType[*json.UnmarshalTypeError](json.Unmarshal([]byte(`{"A":{"N":`+text+`}}`), &in))
		if !ok || wrong.Value != what || wrong.Field != "A.N" {
			t.Errorf("%s: %v, %+v, want Value %s, Field A.N", text, ok, wrong, what)
		}
	}
	for _, text := range []string{"", "+5", "05", "0x5", "1_0", "Inf", "NaN", "5 ", "5."} {
		if n, ok := agent.ParseJSONInteger(text); ok {
			t.Errorf("ParseJSONInteger(%q) = %d, want it refused", text, n)
		}
	}
}
