// Package typeerror finds the value of a JSON body that has the wrong type, for the API formats that decode their
// bodies with encoding/json. The errors of encoding/json name only members; this package adds the positions in lists.
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

// Find returns where body has a value of the wrong type. err is the error of json.Unmarshal for body. path is a path
// such as messages[2].role, and value says what body has there in the terms of encoding/json, such as number. ok is
// false if err is not about a value's type. The path has no positions in lists if the value is inside a map, or if err
// came from a type with its own UnmarshalJSON.
func Find(body []byte, err error) (path, value string, ok bool) {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok || wrong.Field == "" {
		return "", "", false
	}
	// Read up to the value. As in encoding/json, duplicate names and invalid UTF-8 are not errors.
	dec := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for dec.InputOffset() < wrong.Offset {
		if _, err := dec.ReadToken(); err != nil {
			return wrong.Field, wrong.Value, true
		}
	}
	path, members := lastPath(dec)
	if members != wrong.Field {
		// Either the value is in a map, whose keys encoding/json does not name, or the offset of err counts from the
		// value that an UnmarshalJSON got and not from the start of body.
		path = wrong.Field
	}
	return path, wrong.Value, true
}

// lastPath returns the path of the value that dec read last. path includes positions in lists, as in messages[2].role.
// members leaves them out, as encoding/json does: messages.role.
func lastPath(dec *jsontext.Decoder) (path, members string) {
	level := 0
	for token := range dec.StackPointer().Tokens() {
		level++
		if kind, _ := dec.StackIndex(level); kind == '[' {
			path += "[" + token + "]"
			continue
		}
		path += "." + token
		members += "." + token
	}
	return strings.TrimPrefix(path, "."), strings.TrimPrefix(members, ".")
}
