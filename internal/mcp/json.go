package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// lenient makes jsontext take what encoding/json takes and servers send: names that occur
// twice, of which the last counts, and strings that are not UTF-8.
var lenient = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// validJSON reports whether raw is one JSON value.
func validJSON(raw []byte) bool { return jsontext.Value(raw).IsValid(lenient...) }

// members calls f with the name and the value of each member of a JSON object; the values
// share raw. The error says that raw is not one object.
func members(raw []byte, f func(name string, value json.RawMessage)) error {
	name := ""
	return parts(raw, '{', func(dec *jsontext.Decoder) error {
		token, err := dec.ReadToken()
		if err == nil {
			name = token.String()
		}
		return err
	}, func(value json.RawMessage) { f(name, value) })
}

// elements returns the values of a JSON array, which share raw. The error says that raw is
// not one array.
func elements(raw []byte) (out []json.RawMessage, _ error) {
	return out, parts(raw, '[', func(*jsontext.Decoder) error { return nil }, func(value json.RawMessage) { out = append(out, value) })
}

// parts calls before, which reads what stands before a value, and f for each value within
// the object or array that raw is.
func parts(raw []byte, kind jsontext.Kind, before func(*jsontext.Decoder) error, f func(json.RawMessage)) error {
	dec := jsontext.NewDecoder(bytes.NewBuffer(raw), lenient...)
	if begin, err := dec.ReadToken(); err != nil || begin.Kind() != kind {
		return errors.Join(fmt.Errorf("it does not begin with %c", kind), err)
	}
	for end := kind + 2; dec.PeekKind() != end; { // "{" and "}", and "[" and "]", are two apart
		if err := before(dec); err != nil {
			return err
		}
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		end := int(dec.InputOffset())
		f(raw[end-len(value) : end : end])
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return errors.Join(errors.New("something follows it"), err)
	}
	return nil
}

// textOf returns what a JSON string says, and "" for null and for no value at all; ok is
// false for values of other types.
func textOf(value json.RawMessage) (s string, ok bool) {
	if len(value) == 0 || value[0] != '"' {
		return "", len(value) == 0 || value[0] == 'n'
	}
	text, _ := jsontext.AppendUnquote(nil, value) // its error is about half a surrogate pair, which becomes U+FFFD
	return string(text), true
}

// quote returns text as a JSON string.
func quote(text string) json.RawMessage {
	b, _ := jsontext.AppendQuote(nil, text) // its error is about bytes that are not UTF-8, which become U+FFFD
	return b
}
