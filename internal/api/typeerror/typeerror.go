// Package typeerror says which value of a JSON body has the wrong type, for the API formats that decode
// their bodies with encoding/json: its errors name the members, and not which item of a list they are in.
//
//	err := json.Unmarshal(body, &request)
//	if field, value, ok := typeerror.Find(body, err); ok {
//		return fmt.Errorf("%s is of the wrong type: %s", field, value) // messages[2].role is of the wrong type: number
//	}
//
// The package has no state, so its function may be called concurrently.
package typeerror

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Find returns the path of the value that err is about, such as messages[2].role, and what the value is in the
// words of encoding/json. ok is false if err is not about the type of a member of body. The path lacks the
// positions in lists if err came from a type with an UnmarshalJSON of its own.
func Find(body []byte, err error) (path, value string, ok bool) {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok || wrong.Field == "" {
		return "", "", false
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for dec.InputOffset() < wrong.Offset {
		if _, err := dec.ReadToken(); err != nil {
			return wrong.Field, wrong.Value, true
		}
	}
	full, members := format(dec)
	if members != wrong.Field {
		full = wrong.Field
	}
	return full, wrong.Value, true
}

// format returns the path of the value that was read last, with the positions in lists and without.
func format(dec *jsontext.Decoder) (full, members string) {
	level := 0
	for token := range dec.StackPointer().Tokens() {
		level++
		if kind, _ := dec.StackIndex(level); kind == '[' {
			full += "[" + token + "]"
			continue
		}
		full, members = full+"."+token, members+"."+token
	}
	return strings.TrimPrefix(full, "."), strings.TrimPrefix(members, ".")
}
