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

// Options makes jsontext accept what encoding/json accepts and servers send: names that occur
// twice, of which the last counts, and strings that are not UTF-8.
var Options = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// Valid reports whether raw is one JSON value.
func Valid(raw []byte) bool { return jsontext.Value(raw).IsValid(Options...) }

// NewDecoder returns a decoder of raw. ReadRaw returns parts of raw with it.
func NewDecoder(raw []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(raw), Options...)
}

// Object reads an object and calls f with the name of each member. f reads the value.
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

// Array reads an array and calls f for each element, which f reads.
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

// ReadRaw reads the next value of dec, which must be a decoder of raw, and returns that part of
// raw.
func ReadRaw(dec *jsontext.Decoder, raw []byte) (json.RawMessage, error) {
	v, err := dec.ReadValue()
	end := int(dec.InputOffset())
	return raw[end-len(v) : end : end], err
}

// AtEnd returns err, or an error if dec has not come to the end.
func AtEnd(dec *jsontext.Decoder, err error) error {
	if err != nil {
		return err
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return errors.Join(errors.New("something follows it"), err)
	}
	return nil
}

// Members calls f with the name and the value of each member of the object in raw. The values
// share raw.
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

// Text returns the content of a JSON string, and "" for null and for no value at all; ok is
// false for values of other types.
func Text(value json.RawMessage) (s string, ok bool) {
	if len(value) == 0 || value[0] != '"' {
		return "", len(value) == 0 || value[0] == 'n'
	}
	text, _ := jsontext.AppendUnquote(make([]byte, 0, len(value)), value) // its error is about half a surrogate pair, which becomes U+FFFD
	return string(text), true
}

// Quote returns text as a JSON string.
func Quote(text string) json.RawMessage {
	b, _ := jsontext.AppendQuote(make([]byte, 0, len(text)+len(text)/16+2), text) // its error is about bytes that are not UTF-8, which become U+FFFD
	return b
}

// Depth returns how many levels deep valid JSON is nested. To read it token by token would cost
// several times as much for large results.
func Depth(raw []byte) int {
	deepest, now, inString := 0, 0, false
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}

// Truncate returns at most n bytes of s, ending with a whole character.
func Truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Printable returns at most n bytes of s on one line: control characters become spaces, and
// bytes that are not UTF-8 are left out.
func Printable(s string, n int) string {
	return Truncate(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "")), n)
}

// HeaderValue returns text as an HTTP header can carry it (SEP-2243): unchanged, or in base64 if
// proxies might change it, or if it looks like a value in base64.
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
