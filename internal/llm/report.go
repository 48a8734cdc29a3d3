package llm

import (
	"encoding/json"
	"fmt"
	"regexp"
)

// word is what may be repeated of an endpoint's error: a code made of words. No key is
// one, and nobody's text.
var word = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)

// reported is what the log is told of what an endpoint said: its codes, and how long it
// was. The rest may repeat the request, or the key that came with it.
func reported(said []byte) string {
	var body struct {
		Error      json.RawMessage
		Type, Code any
	}
	text := fmt.Sprintf("%d bytes", len(said))
	if json.Unmarshal(said, &body) != nil {
		return text
	}
	if body.Error != nil {
		_ = json.Unmarshal(body.Error, &body) // an endpoint's error is an object, or has no codes
	}
	for _, code := range []any{body.Type, body.Code} {
		switch v := code.(type) {
		case float64:
			text += fmt.Sprintf(", %g", v)
		case string:
			if len(v) <= 64 && word.MatchString(v) {
				text += ", " + v
			}
		}
	}
	return text
}
