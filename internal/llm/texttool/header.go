package texttool

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// toolHeader holds the part of a call before its arguments:
//
//	fence? deco "TOOL" deco ":" deco name deco "PARAMETERS" deco ":" fence? deco
//
// Here deco is white space and marks for bold or code, and the two words may be in any case. The
// header starts at the start of a word, not necessarily of a line. Its two halves may be on one
// line or on two, with blank lines between them. Models write all of these forms.
type toolHeader struct {
	name   string
	fences int // opening code fences among its decoration
	size   int // bytes up to the arguments
	// raw replaces arguments that do not begin with a bracket. Such a header counts only in
	// exactly the form of the prompt and for an existing tool, since "Tool: hammer, parameters:
	// 3 cm" is prose.
	raw string
}

// matchResult tells whether a text begins with the searched pattern.
type matchResult int

const (
	noMatch  matchResult = iota
	needMore             // it may, depending on the text that follows
	matched              // it does
)

// maxHeader bounds a header, and so how much text is delayed, in bytes.
const maxHeader = 1024

// Bytes that may stand between the words of a header.
const (
	marks      = "*`"
	blanks     = " \t"
	whiteSpace = blanks + "\r\n"
)

// headerMatcher matches patterns in a text that may be incomplete. A method that does not find what it
// looks for leaves pos at the end of the text if more text could change that (atEnd), and before it
// otherwise; mismatchResult turns that into needMore or noMatch.
type headerMatcher struct {
	text string
	pos  int
}

// remainingText returns the text from the current position.
func (m *headerMatcher) remainingText() string { return m.text[m.pos:] }

// atEnd reports whether all text is consumed, so that a failed match may only lack text that has
// not arrived.
func (m *headerMatcher) atEnd() bool { return m.pos >= len(m.text) }

// skipBytes skips at most limit bytes of set and returns them.
func (m *headerMatcher) skipBytes(set string, limit int) string {
	start := m.pos
	for m.pos < len(m.text) && m.pos-start < limit && strings.IndexByte(set, m.text[m.pos]) >= 0 {
		m.pos++
	}
	return m.text[start:m.pos]
}

// matchWord skips word, in any case. If the text ends within word, the position moves to the end
// of the text.
func (m *headerMatcher) matchWord(word string) bool {
	text := m.remainingText()
	n := min(len(word), len(text))
	if !strings.EqualFold(text[:n], word[:n]) {
		return false
	}
	m.pos += n
	return n == len(word)
}

// matchLabel skips word, decoration and a colon.
func (m *headerMatcher) matchLabel(word string) bool {
	if !m.matchWord(word) {
		return false
	}
	m.skipBytes(blanks+marks, 8)
	return m.matchWord(":")
}

// readName reads a tool's name: letters and digits of any script, "_", "-", and within it
// "." and "/".
func (m *headerMatcher) readName() string {
	start := m.pos
	for m.pos < len(m.text) && m.pos-start < 256 {
		if !utf8.FullRuneInString(m.remainingText()) {
			m.pos = len(m.text)
			break
		}
		r, size := utf8.DecodeRuneInString(m.remainingText())
		if !unicode.In(r, unicode.L, unicode.M, unicode.N) && !strings.ContainsRune("_-./", r) {
			break
		}
		m.pos += size
	}
	return strings.TrimRight(m.text[start:m.pos], "./")
}

// matchHeader looks for a header at the start of text. final means that no more text follows,
// and isKnown reports whether a tool exists.
func matchHeader(text string, final bool, isKnown func(string) bool) (toolHeader, matchResult) {
	if len(text) >= maxHeader {
		// Decide from the same number of bytes however many have arrived, because the outcome
		// must not depend on the pieces.
		text, final = text[:maxHeader], true
	}
	m := &headerMatcher{text: text}
	// Marks before TOOL belong to a call only if one follows; otherwise they are text.
	opening := m.skipBytes(marks, 6)
	begin := m.pos
	header, result := m.matchToolHeader(final, isKnown)
	fenced := strings.Contains(opening, "```")
	if fenced {
		header.fences++
	}
	if result != noMatch || !fenced {
		return header, result
	}
	// A fence with a language: the header must be on a later line.
	m.pos = begin
	m.skipLanguage(20)
	m.skipBytes(blanks+"\r", 8)
	if !m.matchWord("\n") {
		return header, m.mismatchResult(final)
	}
	m.skipBytes(whiteSpace, 64)
	m.skipBytes(marks, 6)
	header, result = m.matchToolHeader(final, isKnown)
	header.fences++
	return header, result
}

// skipLanguage skips the language of a code fence.
func (m *headerMatcher) skipLanguage(limit int) {
	for start := m.pos; m.pos < len(m.text) && m.pos-start < limit; m.pos++ {
		switch c := m.text[m.pos]; {
		case '0' <= c && c <= '9', 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z':
		default:
			return
		}
	}
}

// mismatchResult returns the result for a text that does not continue like a header.
func (m *headerMatcher) mismatchResult(final bool) matchResult {
	if m.atEnd() && !final {
		return needMore
	}
	return noMatch
}

// matchToolHeader matches from the word TOOL.
func (m *headerMatcher) matchToolHeader(final bool, isKnown func(string) bool) (header toolHeader, result matchResult) {
	start := m.pos
	if !m.matchLabel("TOOL") {
		return header, m.mismatchResult(final)
	}
	exact := strings.HasPrefix(m.text[start:], "TOOL")
	m.skipBytes(whiteSpace+marks+`"'`, 64)
	header.name = m.readName()
	if header.name == "" {
		return header, m.mismatchResult(final)
	}
	m.skipBytes(whiteSpace+marks+`"',`, 64)
	second := m.pos
	if !m.matchLabel("PARAMETERS") {
		return header, m.mismatchResult(final)
	}
	exact = exact && strings.HasPrefix(m.text[second:], "PARAMETERS")
	afterColon := m.pos

	if strings.Contains(m.skipBytes(whiteSpace+marks, 64), "```") {
		header.fences++
		m.skipLanguage(10)
		m.skipBytes(whiteSpace, 64)
	}

	header.size = m.pos
	switch {
	case m.atEnd() && !final:
		return header, needMore
	case strings.HasPrefix(m.remainingText(), "{"):
		return header, matched
	case !exact || !isKnown(header.name):
		return header, noMatch
	case strings.HasPrefix(m.remainingText(), "["):
		return header, matched
	}
	return m.matchRawArguments(header, afterColon, final)
}

// matchRawArguments makes the rest of the line the arguments of a call that has no object after
// its colon. They are never empty: a tool may accept a call without arguments, but this call is
// malformed and must fail.
func (m *headerMatcher) matchRawArguments(header toolHeader, afterColon int, final bool) (toolHeader, matchResult) {
	line, _, ended := strings.Cut(m.text[afterColon:], "\n")
	if !ended && !final {
		return header, needMore
	}
	header.fences = 0 // after this line, fences may be part of the text
	header.size = afterColon + len(line)
	header.raw = strings.TrimSpace(line)
	if header.raw == "" {
		header.raw = "PARAMETERS:"
	}
	return header, matched
}

// matchNextCall looks, after the end of a line, for the first words of a call or a code fence.
// Neither can be at the start of a line within JSON, so they end arguments that were never
// closed.
func matchNextCall(text string, final bool) matchResult {
	m := &headerMatcher{text: text}
	m.skipBytes(blanks+"\r", 64)
	if strings.Contains(m.skipBytes(marks, 6), "```") || m.matchLabel("TOOL") {
		return matched
	}
	return m.mismatchResult(final)
}
