package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"unicode/utf8"
)

// errJSON says no more, because what encoding/json says quotes the text.
var errJSON = errors.New("not a JSON object of the expected shape")

// object is a JSON object whose member names are unique and exactly as written.
// Decoding into a struct would take the last of two members of one name, and "EXP"
// for "exp": two readers of one token could then see two identities.
type object map[string]json.RawMessage

// parseObject reads data, which must hold one object and nothing else.
func parseObject(data []byte) (object, error) {
	if !utf8.Valid(data) {
		return nil, errJSON
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return nil, errJSON
	}
	o := object{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, errJSON
		}
		key, ok := name.(string)
		if _, twice := o[key]; !ok || twice {
			return nil, errJSON
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, errJSON
		}
		o[key] = value
	}
	if _, err := dec.Token(); err != nil {
		return nil, errJSON
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errJSON
	}
	return o, nil
}

// has reports whether there is a member of that name, null included.
func (o object) has(name string) bool {
	_, ok := o[name]
	return ok
}

// text is the string member of that name, "" if there is none. A member of another
// type is an error, and so is null.
func (o object) text(name string) (string, error) {
	raw, ok := o[name]
	if !ok {
		return "", nil
	}
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil || s == nil {
		return "", errJSON
	}
	return *s, nil
}

// texts is the member of that name as a list: a string is a list of one.
func (o object) texts(name string) ([]string, error) {
	raw, ok := o[name]
	if !ok {
		return nil, nil
	}
	if s, err := o.text(name); err == nil {
		return []string{s}, nil
	}
	var list []*string
	if err := json.Unmarshal(raw, &list); err != nil || list == nil {
		return nil, errJSON
	}
	out := make([]string, len(list))
	for i, s := range list {
		if s == nil {
			return nil, errJSON
		}
		out[i] = *s
	}
	return out, nil
}

// objects is the member of that name, which must be there and be a list of objects.
func (o object) objects(name string) ([]object, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(o[name], &list); err != nil || list == nil {
		return nil, errJSON
	}
	out := make([]object, 0, len(list))
	for _, raw := range list {
		item, err := parseObject(raw)
		if err != nil {
			return nil, err
		}
		out = append(out, item)
	}
	return out, nil
}
