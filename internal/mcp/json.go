package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// lenient makes jsontext take what encoding/json takes and servers send: names that occur
// twice, of which the last counts, and strings that are not UTF-8.
var lenient = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// validJSON reports whether raw is one JSON value.
func validJSON(raw []byte) bool { return jsontext.Value(raw).IsValid(lenient...) }

// newDecoder returns a decoder of raw, which readRaw returns parts of.
func newDecoder(raw []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(raw), lenient...)
}

// object reads an object and calls f with the name of each member. f reads the value.
func object(dec *jsontext.Decoder, f func(name string) error) error {
	if begin, err := dec.ReadToken(); err != nil || begin.Kind() != '{' {
		return errors.Join(errors.New("not an object"), err)
	}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return err
		}
		if err := f(name.String()); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

// array reads an array and calls f for each element, which f reads.
func array(dec *jsontext.Decoder, f func() error) error {
	if begin, err := dec.ReadToken(); err != nil || begin.Kind() != '[' {
		return errors.Join(errors.New("not an array"), err)
	}
	for dec.PeekKind() != ']' {
		if err := f(); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

// readRaw reads a value out of raw, and returns that part of it.
func readRaw(dec *jsontext.Decoder, raw []byte) (json.RawMessage, error) {
	v, err := dec.ReadValue()
	end := int(dec.InputOffset())
	return raw[end-len(v) : end : end], err
}

// atEnd returns err, or an error if dec has not come to the end.
func atEnd(dec *jsontext.Decoder, err error) error {
	if err != nil {
		return err
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return errors.Join(errors.New("something follows it"), err)
	}
	return nil
}

// members calls f with the name and the value of each member of the object that raw is. The
// values share raw.
func members(raw []byte, f func(name string, value json.RawMessage)) error {
	dec := newDecoder(raw)
	return atEnd(dec, object(dec, func(name string) error {
		v, err := readRaw(dec, raw)
		if err == nil {
			f(name, v)
		}
		return err
	}))
}

// textOf returns what a JSON string says, and "" for null and for no value at all; ok is
// false for values of other types.
func textOf(value json.RawMessage) (s string, ok bool) {
	if len(value) == 0 || value[0] != '"' {
		return "", len(value) == 0 || value[0] == 'n'
	}
	text, _ := jsontext.AppendUnquote(make([]byte, 0, len(value)), value) // its error is about half a surrogate pair, which becomes U+FFFD
	return string(text), true
}

// quote returns text as a JSON string.
func quote(text string) json.RawMessage {
	b, _ := jsontext.AppendQuote(make([]byte, 0, len(text)+len(text)/16+2), text) // its error is about bytes that are not UTF-8, which become U+FFFD
	return b
}
