package llm

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// keywords is a JSON object in the order in which it was written, which is the order in
// which a model reads it.
type keywords []keyword

type keyword struct {
	name  string
	value json.RawMessage
}

func (k keyword) kind() jsontext.Kind { return jsontext.Value(k.value).Kind() }

// decodeKeywords reads the object raw; false where it is none.
func decodeKeywords(raw json.RawMessage) (keywords, bool) {
	dec := jsontext.NewDecoder(bytes.NewReader(raw), asWritten...)
	if open, err := dec.ReadToken(); err != nil || open.Kind() != '{' {
		return nil, false
	}
	out := keywords{}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, false
		}
		k := keyword{name: name.String()}
		value, err := dec.ReadValue()
		if err != nil {
			return nil, false
		}
		k.value = json.RawMessage(value.Clone())
		out = append(out, k)
	}
	return out, true
}

// encode writes the object without blanks of its own.
func (m keywords) encode() json.RawMessage {
	out := []byte{'{'}
	for i, k := range m {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(appendQuoted(out, k.name), ':'), k.value...)
	}
	return append(out, '}')
}

func (m keywords) index(name string) int {
	return slices.IndexFunc(m, func(k keyword) bool { return k.name == name })
}

// get is the member of that name; nil where there is none.
func (m keywords) get(name string) json.RawMessage {
	if i := m.index(name); i >= 0 {
		return m[i].value
	}
	return nil
}

// set is m with that member, at the end where it is new.
func (m keywords) set(name string, value json.RawMessage) keywords {
	out := slices.Clone(m)
	if i := m.index(name); i >= 0 {
		out[i].value = value
		return out
	}
	return append(out, keyword{name, value})
}

func (m keywords) without(name string) keywords {
	return slices.DeleteFunc(slices.Clone(m), func(k keyword) bool { return k.name == name })
}

// list is a JSON array of all.
func list(all ...json.RawMessage) json.RawMessage {
	size := len("[]")
	for _, one := range all {
		size += len(one) + 1
	}
	out := append(make([]byte, 0, size), '[')
	for i, one := range all {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, one...)
	}
	return append(out, ']')
}
