package agent

import (
	"strings"
	"testing"
)

// The text that the model gets about bad arguments names the field, and never quotes an error of
// Go.
func TestParseArgsSaysWhereArgumentsAreWrong(t *testing.T) {
	for text, want := range map[string]string{
		`{'a': 1}`:                      `they are not a JSON object: at byte 2, "'a': 1}" is not valid JSON`,
		`{"a": 1,}`:                     `they are not a JSON object: at byte 9, "}" is not valid JSON`,
		`{"a": 1`:                       "they end before the JSON object is complete",
		`[1]`:                           "they are a JSON array, not an object",
		`"x"`:                           "they are a JSON string, not an object",
		`use the calc tool`:             `they are not a JSON object: at byte 1, "use the calc tool" is not valid JSON`,
		`{"a": 1} {}`:                   `they are not a JSON object: at byte 10, "{}" is not valid JSON`,
		`null`:                          "they are not a JSON object but null",
		"{\"a\": \"\xff\"}":             "they are not valid UTF-8",
		strings.Repeat(" ", maxArgs+1):  "they are longer than 65536 bytes",
		`{"a": "` + "\n" + `line"}`:     `they are not a JSON object: at byte 8, "\nline\"}" is not valid JSON`,
		`{"a": NaN, "text": "Grüße ü"}`: `they are not a JSON object: at byte 7, "NaN, \"text\": \"Grüß" is not valid JSON`,
	} {
		var c call
		c.parseArgs(text)
		if c.args != nil || c.argsProblem != want {
			t.Errorf("parseArgs(%.40q): got args %s and problem %q, want none and %q", text, c.args, c.argsProblem, want)
		}
	}
}
