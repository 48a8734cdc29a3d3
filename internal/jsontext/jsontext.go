// Package jsontext writes JSON strings, and tells what is JSON and which bytes of a string
// stand for themselves. Nearly all that answerd sends, takes and stores is text in such strings:
// by encoding/json a conversation is rendered in twice to seven times the time.
//
//	b = append(b, `{"delta":`...)
//	b = jsontext.AppendString(b, delta)
//	b = append(b, '}')
//
// The bytes are those of encoding/json with HTML escaping off, whatever the string holds:
// FuzzAppendString holds it to that. Everything here is a function of its arguments.
package jsontext

import (
	"math/bits"
	"strings"
	"unicode/utf8"
)

// AppendString appends s to b as a JSON string. U+2028 and U+2029 are escaped for
// JavaScript's sake, and what is not UTF-8 becomes U+FFFD.
func AppendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0 // s[from:i] is yet to be copied as it is
	// What is beyond ASCII is looked at rune by rune, but in a long text that has nothing to
	// escape there: that takes half the time.
	beyond, look := false, true
	for i := plain(s, beyond); i < len(s); i += plain(s[i:], beyond) {
		c := s[i]
		if c >= utf8.RuneSelf {
			if look && len(s)-i >= 64 {
				if look = false; allPlain(s[i:]) {
					beyond = true
					continue
				}
			}
			r, n := utf8.DecodeRuneInString(s[i:])
			if r != '\u2028' && r != '\u2029' && (r != utf8.RuneError || n > 1) {
				i += n
				continue
			}
			b = append(append(b, s[from:i]...), '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
			i += n
			from = i
			continue
		}
		b = append(b, s[from:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, '\\', 'b')
		case '\f':
			b = append(b, '\\', 'f')
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}

// allPlain reports whether all of s that is beyond ASCII can stay as it is.
func allPlain(s string) bool {
	return utf8.ValidString(s) && !strings.Contains(s, "\u2028") && !strings.Contains(s, "\u2029")
}

// Plain is how many bytes at the start of b stand for themselves in a JSON string: all up
// to a quote, a backslash or a control character. It takes what is beyond ASCII for UTF-8.
func Plain(b []byte) int { return plain(b, true) }

// PlainASCII is how many bytes at the start of s are ASCII and stand for themselves there.
func PlainASCII(s string) int { return plain(s, false) }

// plain is Plain if bytes beyond ASCII are taken, and else ends before them, too. It looks at
// eight at a time.
func plain[T string | []byte](s T, beyond bool) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(s); i += 8 {
		e := s[i : i+8]
		w := uint64(e[0]) | uint64(e[1])<<8 | uint64(e[2])<<16 | uint64(e[3])<<24 |
			uint64(e[4])<<32 | uint64(e[5])<<40 | uint64(e[6])<<48 | uint64(e[7])<<56
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		// The high bit of the first byte that is below a space, or one of the two, is set; of
		// those behind it, that says nothing. Bytes beyond ASCII hide nothing of that.
		special := (w - ones*' ') | (quote - ones) | (slash - ones)
		hit := (special | w) & highs
		if hit != 0 && beyond {
			hit = special &^ w & highs
		}
		if hit != 0 {
			return i + bits.TrailingZeros64(hit)/8
		}
	}
	for ; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf && !beyond {
			break
		}
	}
	return i
}
