package mcp

import (
	"bytes"
	"encoding/json"
	"iter"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// What follows finds the parts of a large value without reading it once more: results are
// checked as a whole when they are decoded, and encoding/json would look at every byte of
// a text again for each level that it is taken out of.

// members are the names and values of a JSON object that is valid.
func members(object json.RawMessage) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		for i := skipSpace(object, 1); object[i] != '}'; {
			end := valueEnd(object, i)
			name, _ := textOf(object[i:end])
			i = skipSpace(object, skipSpace(object, end)+len(":"))
			end = valueEnd(object, i)
			if !yield(name, object[i:end:end]) {
				return
			}
			if i = skipSpace(object, end); object[i] == ',' {
				i = skipSpace(object, i+1)
			}
		}
	}
}

// elements are the values of a JSON array that is valid.
func elements(array json.RawMessage) (out []json.RawMessage) {
	for i := skipSpace(array, 1); array[i] != ']'; {
		end := valueEnd(array, i)
		out = append(out, array[i:end:end])
		if i = skipSpace(array, end); array[i] == ',' {
			i = skipSpace(array, i+1)
		}
	}
	return out
}

func skipSpace(b []byte, i int) int {
	for b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r' {
		i++
	}
	return i
}

// valueEnd is where the value ends that begins at b[i].
func valueEnd(b []byte, i int) int {
	switch b[i] {
	case '"':
		return stringEnd(b, i)
	case '{', '[':
		depth := 0
		for {
			switch b[i] {
			case '"':
				i = stringEnd(b, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
			i++
		}
	}
	for i < len(b) && !bytes.ContainsRune([]byte(",]} \t\r\n"), rune(b[i])) {
		i++
	}
	return i
}

// stringEnd is where the string ends that begins at b[i].
func stringEnd(b []byte, i int) int {
	for i++; ; {
		i += bytes.IndexByte(b[i:], '"')
		slashes := 0
		for b[i-1-slashes] == '\\' {
			slashes++
		}
		i++
		if slashes%2 == 0 {
			return i
		}
	}
}

// textOf is what a JSON string says that is valid, or "" for null and for no value at all;
// ok is false for values of other types.
func textOf(value json.RawMessage) (s string, ok bool) {
	if len(value) == 0 || value[0] != '"' {
		return "", len(value) == 0 || value[0] == 'n'
	}
	inside := value[1 : len(value)-1]
	if bytes.IndexByte(inside, '\\') < 0 {
		return string(inside), true
	}
	var out strings.Builder
	out.Grow(len(inside))
	for len(inside) > 0 {
		i := bytes.IndexByte(inside, '\\')
		if i < 0 {
			out.Write(inside)
			break
		}
		out.Write(inside[:i])
		n := 2
		switch c := inside[i+1]; c {
		case 'b':
			out.WriteByte('\b')
		case 'f':
			out.WriteByte('\f')
		case 'n':
			out.WriteByte('\n')
		case 'r':
			out.WriteByte('\r')
		case 't':
			out.WriteByte('\t')
		case 'u':
			var r rune
			r, n = unicodeEscape(inside[i:])
			out.WriteRune(r)
		default: // a quote, a slash or a backslash
			out.WriteByte(c)
		}
		inside = inside[i+n:]
	}
	return out.String(), true
}

// unicodeEscape reads \uXXXX, or two that are a surrogate pair, and says how long it is.
// Half a pair is U+FFFD.
func unicodeEscape(b []byte) (r rune, n int) {
	r = hex4(b[2:])
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if len(b) >= 12 && b[6] == '\\' && b[7] == 'u' {
		if pair := utf16.DecodeRune(r, hex4(b[8:])); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return utf8.RuneError, 6
}

func hex4(b []byte) (r rune) {
	for _, c := range b[:4] {
		switch {
		case c <= '9':
			c -= '0'
		default:
			c = c&^0x20 - 'A' + 10
		}
		r = r<<4 | rune(c)
	}
	return r
}
