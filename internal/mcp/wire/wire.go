// Package wire reads what MCP servers send, in place and within bounds: the members of a JSON
// object without a copy of their values, strings, and text that is cut to a length.
//
// The values that it returns share memory with the input. Nothing here keeps state, so all of it
// may be used from several goroutines.
//
//	err := wire.Members(params, func(name string, value json.RawMessage) {
//		if name == "uri" {
//			uri, _ = wire.Text(value)
//		}
//	})
//	if err != nil || wire.Depth(params) > 32 {
//		return errBadParams
//	}
//	log.Debug("resource updated", "uri", wire.Printable(uri, 200))
package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Options makes jsontext accept what encoding/json accepts and servers send: strings that are not UTF-8, and
// objects with two members of the same name. Callers let the last of these members count, as encoding/json does.
var Options = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// Valid reports whether raw is one JSON value.
func Valid(raw []byte) bool { return jsontext.Value(raw).IsValid(Options...) }

// NewDecoder returns a decoder that reads raw without a copy of it.
func NewDecoder(raw []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(raw), Options...)
}

// Object reads an object from dec and calls f with the name of each member. f must read the member's value
// from dec. Object stops at the first error, of dec or of f, and returns it.
func Object(dec *jsontext.Decoder, f func(name string) error) error {
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

// Array reads an array from dec and calls f for each element. f must read the element from dec. Array stops
// at the first error, of dec or of f, and returns it.
func Array(dec *jsontext.Decoder, f func() error) error {
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

// ReadRaw reads the next value from dec and returns it as a part of raw, without a copy. dec must be a
// decoder that NewDecoder made for raw.
func ReadRaw(dec *jsontext.Decoder, raw []byte) (json.RawMessage, error) {
	v, err := dec.ReadValue()
	end := int(dec.InputOffset())
	return raw[end-len(v) : end : end], err
}

// AtEnd checks that dec has nothing left to read. err is the error of what was read before; if it is not nil,
// AtEnd returns it without the check.
func AtEnd(dec *jsontext.Decoder, err error) error {
	if err != nil {
		return err
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return errors.Join(errors.New("something follows it"), err)
	}
	return nil
}

// Members calls f with the name and the value of each member of the object in raw. The values share memory
// with raw. Members returns an error if raw is not exactly one object; f may have been called before.
func Members(raw []byte, f func(name string, value json.RawMessage)) error {
	dec := NewDecoder(raw)
	return AtEnd(dec, Object(dec, func(name string) error {
		v, err := ReadRaw(dec, raw)
		if err == nil {
			f(name, v)
		}
		return err
	}))
}

// Text returns the content of a JSON string. An absent value and null count as an empty string. ok is false
// for a value of another type. value must be valid JSON or empty.
func Text(value json.RawMessage) (s string, ok bool) {
	if len(value) == 0 || value[0] == 'n' { // null
		return "", true
	}
	if value[0] != '"' {
		return "", false
	}
	// The error is about half of a surrogate pair, which becomes U+FFFD.
	text, _ := jsontext.AppendUnquote(make([]byte, 0, len(value)), value)
	return string(text), true
}

// Quote returns text as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func Quote(text string) json.RawMessage {
	// The capacity has room for the quotes and some escapes. The error is about bytes that are not UTF-8.
	quoted, _ := jsontext.AppendQuote(make([]byte, 0, len(text)+len(text)/16+2), text)
	return quoted
}

// ReplaceHalfPairs returns valid JSON with U+FFFD in place of each half of a surrogate pair in its escapes, which many
// parsers refuse (RFC 8259 section 8.2). It returns raw itself if raw has no escaped surrogates.
func ReplaceHalfPairs(raw []byte) []byte {
	if !bytes.Contains(raw, []byte(`\ud`)) && !bytes.Contains(raw, []byte(`\uD`)) {
		return raw
	}
	replaced, err := jsontext.AppendFormat(nil, raw, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	if err != nil {
		return raw // jsontext nests at most 10,000 levels
	}
	return replaced
}

// Depth returns how deep the objects and arrays in raw are nested: 0 for a string or a number. raw must be
// valid JSON. Depth does not use jsontext, whose tokens cost several times as much for large results.
func Depth(raw []byte) int {
	depth, deepest := 0, 0
	inString := false
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch {
		case inString && c == '\\':
			i++ // the escaped character may be a quote
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

// Truncate returns the first n bytes of s, or less where that would cut a character of UTF-8 in two.
func Truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Printable returns at most n bytes of s for a log or a message: on one line, with control characters
// replaced by spaces, and without bytes that are not UTF-8.
func Printable(s string, n int) string {
	return Truncate(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "")), n)
}

// HeaderValue returns text as the value of an HTTP header, as SEP-2243 encodes it: unchanged where possible.
// Text that a proxy might change, or that itself looks like encoded text, becomes base64 with a prefix and a
// suffix.
func HeaderValue(text string) string {
	const before, after = "=?base64?", "?="
	isPrintable := !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
	isTrimmed := strings.Trim(text, " \t") == text
	looksEncoded := strings.HasPrefix(text, before) && strings.HasSuffix(text, after)
	if isPrintable && isTrimmed && !looksEncoded {
		return text
	}
	return before + base64.StdEncoding.EncodeToString([]byte(text)) + after
}
