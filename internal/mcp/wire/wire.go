// Package wire reads JSON and text that MCP servers send. It reads the members of an object without copying their
// values, and truncates text.
//
// Raw values that it returns share memory with the input. The package has no state, so everything in it may be used
// concurrently.
//
//	err := wire.Members(params, func(name string, value json.RawMessage) {
//		if name == "uri" {
//			uri, _ = wire.Text(value)
//		}
//	})
//	if err != nil || wire.IsDeeper(params, 32) {
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

// Options makes jsontext accept what encoding/json accepts and what some servers send: strings that are not UTF-8, and
// objects with two members of the same name. Callers must let the last of these members count, as encoding/json does.
var Options = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// Valid reports whether raw is one JSON value.
func Valid(raw []byte) bool { return jsontext.Value(raw).IsValid(Options...) }

// NewDecoder returns a decoder that reads raw without copying it.
func NewDecoder(raw []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(raw), Options...)
}

// ReadObject reads an object from dec and calls f with each member's name. f must read the member's value from dec.
// ReadObject stops at the first error of dec or f and returns it.
func ReadObject(dec *jsontext.Decoder, f func(name string) error) error {
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

// ReadArray reads an array from dec and calls f for each element. f must read the element from dec. ReadArray stops at
// the first error of dec or f and returns it.
func ReadArray(dec *jsontext.Decoder, f func() error) error {
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

// ReadRaw reads the next value from dec and returns it as a slice of raw, without copying it. dec must be the result of
// NewDecoder(raw).
func ReadRaw(dec *jsontext.Decoder, raw []byte) (json.RawMessage, error) {
	v, err := dec.ReadValue()
	end := int(dec.InputOffset())
	return raw[end-len(v) : end : end], err
}

// AtEnd returns an error if dec has anything left to read. err is the error of the preceding read. If it is not nil,
// AtEnd returns it without checking.
func AtEnd(dec *jsontext.Decoder, err error) error {
	if err != nil {
		return err
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return errors.Join(errors.New("something follows it"), err)
	}
	return nil
}

// Members calls f with the name and the value of each member of the object in raw. The values share memory with raw.
// Members returns an error if raw is not exactly one object. It may already have called f for some members.
func Members(raw []byte, f func(name string, value json.RawMessage)) error {
	dec := NewDecoder(raw)
	return AtEnd(dec, ReadObject(dec, func(name string) error {
		v, err := ReadRaw(dec, raw)
		if err == nil {
			f(name, v)
		}
		return err
	}))
}

// Text returns the content of a JSON string, or "" if value is empty or null. ok is false if value has another type.
// value must be valid JSON or empty.
func Text(value json.RawMessage) (s string, ok bool) {
	if len(value) == 0 || value[0] == 'n' { // null
		return "", true
	}
	if value[0] != '"' {
		return "", false
	}
	// Ignore the error: it reports an unpaired surrogate, which has become U+FFFD.
	text, _ := jsontext.AppendUnquote(make([]byte, 0, len(value)), value)
	return string(text), true
}

// Quote returns text as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func Quote(text string) json.RawMessage {
	// The capacity allows for the quotes and some escapes. Ignore the error: it reports bytes that are not UTF-8.
	quoted, _ := jsontext.AppendQuote(make([]byte, 0, len(text)+len(text)/16+2), text)
	return quoted
}

// ReplaceHalfPairs replaces each escaped surrogate in raw that is not part of a pair by U+FFFD, because many parsers
// reject unpaired surrogates (RFC 8259 section 8.2). raw must be valid JSON. If it has no escaped surrogates,
// ReplaceHalfPairs returns raw itself.
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

// IsDeeper reports whether the objects and arrays in raw are nested deeper than limit; the depth of a string or a number
// is 0. raw must be valid JSON or empty. IsDeeper counts the opening brackets first, because few values have more than
// limit of them, and counting is much cheaper.
func IsDeeper(raw []byte, limit int) bool {
	return bytes.Count(raw, []byte("{"))+bytes.Count(raw, []byte("[")) > limit && depth(raw) > limit
}

// depth returns how deeply the objects and arrays in raw are nested. It does not use jsontext, which would take several
// times as long for large results.
func depth(raw []byte) int {
	level, deepest := 0, 0
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
			level++
			deepest = max(deepest, level)
		case c == '}' || c == ']':
			level--
		}
	}
	return deepest
}

// Truncate returns at most the first n bytes of s. It cuts at the start of a UTF-8 sequence, so it may return a few
// bytes fewer.
func Truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Printable returns at most n bytes of s for a log or a message. It replaces control characters by spaces, so that the
// result is on one line, and drops bytes that are not UTF-8.
func Printable(s string, n int) string {
	return Truncate(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "")), n)
}

// HeaderValue encodes text as the value of an HTTP header, as in SEP-2243. It returns text unchanged where possible.
// Text that a proxy might change, or that itself looks encoded, becomes base64 with a prefix and a suffix.
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
