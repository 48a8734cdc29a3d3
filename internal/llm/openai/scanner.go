package openai

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// jsonScanner reads one JSON value completely and checks its syntax. The first syntax error ends the reading:
// everything after it counts as the end of the input. So callers do not check errors after each step. Their loops end
// by themselves, what they read is empty, and decodeJSON checks syntaxErr and typeErr once at the end. A typeErr does
// not end the reading, because the other members may be valid.
//
// It is written by hand because it runs for each token of a model. A typical chunk of 280 bytes takes 0.36 µs from its
// bytes to an llm.Text. The same members take 0.75 µs with jsontext.Decoder, 3.3 µs with encoding/json and 10 to 25 µs
// with the SDK's types (its ssestream takes 16 times as long). For 1,000 tokens that arrive at once, jsontext.Decoder
// would add 0.4 ms of CPU time.
type jsonScanner struct {
	data      []byte // the input; nil after a syntax error
	pos       int    // position in data of the next byte to read
	depth     int    // number of objects and arrays that are open at pos
	syntaxErr error  // the first syntax error
	typeErr   error  // the first member of an unexpected type
	escaped   bool   // the string that scanString read last contains escapes
	scratch   []byte // buffer for unquoteString
}

// maxDepth is the deepest nesting of values, as in encoding/json.
const maxDepth = 10000

// errCut says that the input ends too early.
var errCut = errors.New("unexpected end of JSON")

// failSyntax records a syntax error at pos, or errCut at the end of the data, and empties data, which ends the reading.
// Only the first error is recorded.
func (s *jsonScanner) failSyntax() {
	if s.syntaxErr == nil {
		s.syntaxErr = errCut
		if s.pos < len(s.data) {
			s.syntaxErr = fmt.Errorf("invalid JSON at byte %d", s.pos)
		}
		s.data, s.pos = nil, 0
	}
}

// skipMismatch skips a value that does not have the type expected for member, and records a typeErr. It records no
// error for null, because null counts as a missing member.
func (s *jsonScanner) skipMismatch(member string) {
	if s.peekKind() != 'n' && s.typeErr == nil {
		s.typeErr = fmt.Errorf("%s is of an unexpected type", member)
	}
	s.skipValue()
}

// peekKind skips white space and returns the next byte without reading it, or 0 at the end. The first byte of a value
// determines the value's type.
func (s *jsonScanner) peekKind() (c byte) {
	if s.pos < len(s.data) {
		c = s.data[s.pos]
	}
	if c <= ' ' {
		c = s.skipSpace()
	}
	return // a bare return keeps this function inlinable, which saves 5 % of the time
}

// skipSpace skips white space and returns the next byte without reading it, or 0 at the end.
func (s *jsonScanner) skipSpace() byte {
	for ; s.pos < len(s.data); s.pos++ {
		if c := s.data[s.pos]; strings.IndexByte(" \t\r\n", c) < 0 {
			return c
		}
	}
	return 0
}

// enter reads the opening bracket of an object or array, and reports whether an element follows. If the object or array
// is empty, enter also reads the closing bracket. It skips a value of another type with skipMismatch, which names member
// in its error. member may be "" if the caller knows the type.
//
//	for more := s.enter('{', "usage"); more; more = s.hasNext('}') {
//		switch string(s.readName()) {
func (s *jsonScanner) enter(opening byte, member string) bool {
	if s.peekKind() != opening {
		s.skipMismatch(member)
		return false
	}
	s.depth++
	if s.depth > maxDepth {
		s.failSyntax()
		return false
	}
	s.pos++
	closing := opening + 2 // in ASCII, both ']' and '}' come two after their opening bracket
	if s.peekKind() == closing {
		s.leave()
		return false
	}
	return true
}

// hasNext reads the comma before the next element of an object or array, and returns true. If closing is next, the
// closing bracket that the caller expects, hasNext reads that and returns false. Anything else is a syntax error.
func (s *jsonScanner) hasNext(closing byte) bool {
	switch s.peekKind() {
	case ',':
		s.pos++
		return true
	case closing:
		s.leave()
	default:
		s.failSyntax()
	}
	return false
}

// leave reads the closing bracket of an object or array.
func (s *jsonScanner) leave() {
	s.pos++
	s.depth--
}

// readName reads a member's name and the colon after it. It returns the name without quotes and escapes, or nil after a
// syntax error.
func (s *jsonScanner) readName() []byte {
	raw := s.scanString()
	if s.peekKind() != ':' {
		s.failSyntax()
		return nil
	}
	s.pos++
	if s.escaped {
		return []byte(s.unquoteString(raw))
	}
	return raw[1 : len(raw)-1]
}

// readQuoted reads a string and returns it as it is in the data, with quotes and escapes. It skips a value of another
// type with skipMismatch, and returns an empty string in quotes.
func (s *jsonScanner) readQuoted(member string) []byte {
	if s.peekKind() != '"' {
		s.skipMismatch(member)
		return noText
	}
	return s.scanString()
}

// readString reads a string and returns it without quotes and escapes. For a value of another type it returns "", and
// records a typeErr unless the value is null.
func (s *jsonScanner) readString(member string) string { return s.unquoteString(s.readQuoted(member)) }

// readStringOrSkip reads a string and returns it without quotes and escapes. For a value of another type it returns "",
// without an error.
func (s *jsonScanner) readStringOrSkip() string {
	if s.peekKind() != '"' {
		s.skipValue()
		return ""
	}
	return s.unquoteString(s.scanString())
}

// unquoteString returns the text of raw, a JSON string in quotes that scanString has read. Invalid Unicode becomes
// U+FFFD, so the error of AppendUnquote can be ignored.
func (s *jsonScanner) unquoteString(raw []byte) string {
	s.scratch, _ = jsontext.AppendUnquote(s.scratch[:0], raw)
	return string(s.scratch)
}

// readInteger reads an integer and returns it and true. For any other value it returns 0 and false, and records a
// typeErr unless the value is null.
func (s *jsonScanner) readInteger(member string) (value int64, ok bool) {
	if c := s.peekKind(); c != '-' && (c < '0' || c > '9') {
		s.skipMismatch(member)
		return 0, false
	}
	n, err := strconv.ParseInt(string(s.readRaw()), 10, 64)
	if err != nil && s.typeErr == nil && s.syntaxErr == nil {
		s.typeErr = fmt.Errorf("%s is not an integer", member)
	}
	return n, err == nil
}

// readRaw reads any value and returns its JSON, which is part of the data. It returns nil after a syntax error.
func (s *jsonScanner) readRaw() []byte {
	s.peekKind()
	data, start := s.data, s.pos
	s.skipValue()
	if s.syntaxErr != nil {
		return nil
	}
	return data[start:s.pos]
}

// skipValue reads a value of any type and checks its syntax.
func (s *jsonScanner) skipValue() {
	switch c := s.peekKind(); c {
	case '{':
		for more := s.enter('{', ""); more; more = s.hasNext('}') {
			s.readName()
			s.skipValue()
		}
	case '[':
		for more := s.enter('[', ""); more; more = s.hasNext(']') {
			s.skipValue()
		}
	case '"':
		s.scanString()
	case 't':
		s.skipLiteral("true")
	case 'f':
		s.skipLiteral("false")
	case 'n':
		s.skipLiteral("null")
	default:
		s.skipNumber()
	}
}

// skipLiteral skips word. If something else is next, it records a syntax error.
func (s *jsonScanner) skipLiteral(word string) {
	rest := s.data[s.pos:]
	n := min(len(word), len(rest))
	if string(rest[:n]) != word[:n] {
		s.failSyntax()
		return
	}
	s.pos += n
	if n < len(word) { // the input ends within word, so this records errCut
		s.failSyntax()
	}
}

// skipNumber skips a number. If something else is next, it records a syntax error.
func (s *jsonScanner) skipNumber() {
	if s.nextIs('-') {
		s.pos++
	}
	if s.nextIs('0') {
		s.pos++
	} else {
		s.skipDigits()
	}
	if s.nextIs('.') {
		s.pos++
		s.skipDigits()
	}
	if s.nextIs('e') || s.nextIs('E') {
		s.pos++
		if s.nextIs('+') || s.nextIs('-') {
			s.pos++
		}
		s.skipDigits()
	}
}

// nextIs reports whether char is the next byte. It does not skip white space.
func (s *jsonScanner) nextIs(char byte) bool { return s.pos < len(s.data) && s.data[s.pos] == char }

// skipDigits skips digits. If the next byte is not a digit, it records a syntax error.
func (s *jsonScanner) skipDigits() {
	start := s.pos
	for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
		s.pos++
	}
	if s.pos == start {
		s.failSyntax()
	}
}

// noText is the JSON of an empty string. It is returned instead of a missing string.
var noText = []byte(`""`)

// scanString reads a string and returns its JSON with the quotes, which is part of the data. It sets s.escaped. After a
// syntax error it returns noText.
func (s *jsonScanner) scanString() []byte {
	if s.peekKind() != '"' {
		s.failSyntax()
		return noText
	}
	data, start := s.data, s.pos
	s.escaped = false
	s.pos++
	for {
		next := s.pos // a local variable, which is faster in this loop
		for next < len(data) && !special[data[next]] {
			next++
		}
		s.pos = next
		if s.nextIs('"') {
			s.pos++
			return data[start:s.pos]
		}
		if !s.nextIs('\\') || !s.skipEscape() {
			s.failSyntax()
			return noText
		}
		s.escaped = true
	}
}

// special marks the bytes that end a string, begin an escape, or are not allowed in a string.
var special = func() (t [256]bool) {
	for c := range ' ' {
		t[c] = true
	}
	t['"'], t['\\'] = true, true
	return t
}()

// skipEscape skips an escape, whose backslash is at pos. If the escape is invalid, it returns false and leaves pos at the
// wrong byte. An escape that is cut off by the end of the input counts as valid, so that scanString reports errCut.
func (s *jsonScanner) skipEscape() bool {
	s.pos++
	if !s.nextIs('u') {
		return s.skipOneOf(`"\/bfnrt`)
	}
	s.pos++
	for range 4 {
		if !s.skipOneOf("0123456789abcdefABCDEF") {
			return false
		}
	}
	return true
}

// skipOneOf skips the next byte if it is in set. At the end of the input it moves pos beyond the end and returns true.
func (s *jsonScanner) skipOneOf(set string) bool {
	if s.pos < len(s.data) && strings.IndexByte(set, s.data[s.pos]) < 0 {
		return false
	}
	s.pos++
	return true
}
