package jsontext

import "bytes"

// maxDepth is how deep encoding/json lets values lie within each other.
const maxDepth = 10000

// Valid reports whether b is one JSON value, and means by it what encoding/json's Valid
// does: FuzzValid holds it to that. Where most of b is text it takes a tenth of the time:
// half of what a result of 1 MB cost was that question.
func Valid(b []byte) bool {
	var room [32]byte
	open := room[:0] // the brackets that are open
	i := space(b, 0)
	for i >= 0 && i < len(b) {
		switch c := b[i]; c { // a value begins
		case '{', '[':
			if len(open) == maxDepth {
				return false
			}
			open = append(open, c)
			i = space(b, i+1)
			if i < len(b) && b[i] == closing(c) {
				break // and ends below
			}
			if c == '{' {
				i = nameEnd(b, i)
			}
			continue
		default:
			if i = scalarEnd(b, i); i < 0 {
				return false
			}
		}
		for i = space(b, i); len(open) > 0 && i < len(b) && b[i] == closing(open[len(open)-1]); i = space(b, i+1) {
			open = open[:len(open)-1]
		}
		switch {
		case len(open) == 0:
			return i == len(b)
		case i == len(b) || b[i] != ',':
			return false
		}
		if i = space(b, i+1); open[len(open)-1] == '{' {
			i = nameEnd(b, i)
		}
	}
	return false
}

// closing is the bracket that closes one.
func closing(open byte) byte { return open + 2 }

// space is where the white space ends that may begin at b[i].
func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// nameEnd is where the value of the member begins whose name does at b[i]; negative where
// there is no name and colon.
func nameEnd(b []byte, i int) int {
	if i == len(b) || b[i] != '"' {
		return -1
	}
	if i = stringEnd(b, i); i < 0 {
		return -1
	}
	if i = space(b, i); i == len(b) || b[i] != ':' {
		return -1
	}
	return space(b, i+1)
}

// scalarEnd is where the string, number or literal ends that begins at b[i]; negative where
// there is none.
func scalarEnd(b []byte, i int) int {
	switch c := b[i]; c {
	case '"':
		return stringEnd(b, i)
	case 't', 'f', 'n':
		for _, word := range [...]string{"true", "false", "null"} {
			if bytes.HasPrefix(b[i:], []byte(word)) {
				return i + len(word)
			}
		}
		return -1
	}
	return numberEnd(b, i)
}

func stringEnd(b []byte, i int) int {
	for i++; ; {
		i += plain(b[i:], true)
		if i+1 >= len(b) || b[i] != '\\' {
			break
		}
		n := 2
		switch b[i+1] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		case 'u':
			if n = 6; i+n > len(b) || !hex(b[i+2:i+n]) {
				return -1
			}
		default:
			return -1
		}
		i += n
	}
	if i == len(b) || b[i] != '"' {
		return -1
	}
	return i + 1
}

func hex(b []byte) bool {
	for _, c := range b {
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
			return false
		}
	}
	return true
}

func numberEnd(b []byte, i int) int {
	if i < len(b) && b[i] == '-' {
		i++
	}
	whole := i
	if i = digits(b, i); i < 0 || b[whole] == '0' && i > whole+1 {
		return -1
	}
	if i < len(b) && b[i] == '.' {
		if i = digits(b, i+1); i < 0 {
			return -1
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return digits(b, i)
	}
	return i
}

// digits is where the digits end that begin at b[i]; negative where there are none.
func digits(b []byte, i int) int {
	from := i
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	if i == from {
		return -1
	}
	return i
}
