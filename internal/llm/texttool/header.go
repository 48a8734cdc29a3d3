package texttool

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// toolHeader is the part of a call before its arguments:
//
//	fence? deco "TOOL" deco ":" deco name deco "PARAMETERS" deco ":" fence? deco
//
// Here deco is white space and marks for bold or code, and the two words may be in any case. The header starts at the
// beginning of a word, not necessarily of a line. Its two halves may be on one line or on two, with blank lines between
// them. Models write all of these forms.
type toolHeader struct {
	name   string
	fences int // number of code fences opened in the header
	size   int // length of the header in bytes, up to the arguments
	// raw is the rest of the line after "PARAMETERS:" if it does not begin with a bracket, and otherwise "". size
	// includes it. Such a header counts only if it has exactly the form of the prompt and names an offered tool,
	// because "Tool: hammer, parameters: 3 cm" is prose.
	raw string
}

// matchResult says whether a text begins with a pattern. The values are ordered by certainty, so that max combines the
// results for several patterns.
type matchResult int

const (
	noMatch  matchResult = iota // the text does not begin with the pattern
	needMore                    // the text ends within the pattern, or before what decides the match
	matched                     // the text begins with the pattern
)

// Limits for a header and its parts, in bytes.
const (
	maxHeader = 1024 // also limits how much text is delayed
	maxName   = 256
	maxMarks  = 6  // consecutive marks, such as "**" and "```"
	maxBlanks = 8  // blanks within a line
	maxSpace  = 64 // white space and marks between the words of a header

	maxFenceLanguage     = 20 // the language of the fence around a call
	maxArgumentsLanguage = 10 // the language of the fence around its arguments, such as "json"
)

// Bytes that may occur between the words of a header, and in the language of a code fence.
const (
	marks            = "*`"
	blanks           = " \t"
	whiteSpace       = blanks + "\r\n"
	lettersAndDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// headerMatcher matches patterns in a text that may be incomplete. Its methods move the position forward. After a method
// has failed, the position says whether more text could change the outcome: if so, the position is at the end of the
// text, and otherwise before it. mismatchResult translates this to needMore or noMatch.
type headerMatcher struct {
	text  string
	pos   int     // number of bytes already matched
	final bool    // no more text follows
	tools toolSet // the tools that were offered
}

// remainingText returns the text after the current position.
func (m *headerMatcher) remainingText() string { return m.text[m.pos:] }

// atEnd reports whether the position is at the end of the text. A match that failed there may succeed with more text.
func (m *headerMatcher) atEnd() bool { return m.pos >= len(m.text) }

// skipBytes skips at most limit bytes that are in set, and returns them.
func (m *headerMatcher) skipBytes(set string, limit int) string {
	start := m.pos
	for m.pos < len(m.text) && m.pos-start < limit && strings.IndexByte(set, m.text[m.pos]) >= 0 {
		m.pos++
	}
	return m.text[start:m.pos]
}

// matchWord skips word, ignoring case, and reports whether the text continues with it. If the text ends within word,
// the position moves to the end of the text.
func (m *headerMatcher) matchWord(word string) bool {
	text := m.remainingText()
	n := min(len(word), len(text))
	if !strings.EqualFold(text[:n], word[:n]) {
		return false
	}
	m.pos += n
	return n == len(word)
}

// matchLabel skips word, blanks and marks, and a colon. It reports whether the text continues with all of them.
func (m *headerMatcher) matchLabel(word string) bool {
	if !m.matchWord(word) {
		return false
	}
	m.skipBytes(blanks+marks, maxBlanks)
	return m.matchWord(":")
}

// readName reads a tool's name of at most maxName bytes: letters and digits of any script, "_", "-", "." and "/". It
// drops "." and "/" at the end of the name. It returns "" if the text does not continue with a name.
func (m *headerMatcher) readName() string {
	start := m.pos
	for m.pos < len(m.text) && m.pos-start < maxName {
		if !utf8.FullRuneInString(m.remainingText()) {
			m.pos = len(m.text) // the rest of the character has not arrived
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

// matchHeader matches the beginning of text with a header, which may be in a code fence or between marks. final says
// that no more text follows. tools are the tools that were offered. The returned header is valid only if the result is
// matched.
func matchHeader(text string, final bool, tools toolSet) (toolHeader, matchResult) {
	if len(text) >= maxHeader {
		// Decide from maxHeader bytes even if more have arrived, because the outcome must not depend on the pieces.
		text, final = text[:maxHeader], true
	}
	m := &headerMatcher{text: text, final: final, tools: tools}
	inFence := strings.Contains(m.skipBytes(marks, maxMarks), "```")
	start := m.pos
	header, result := m.matchToolHeader()
	if inFence && result == noMatch {
		m.pos = start
		header, result = m.matchAfterLanguage()
	}
	if inFence {
		header.fences++
	}
	return header, result
}

// matchAfterLanguage matches the language of a code fence, and a header on a later line.
func (m *headerMatcher) matchAfterLanguage() (header toolHeader, result matchResult) {
	m.skipBytes(lettersAndDigits, maxFenceLanguage)
	m.skipBytes(blanks+"\r", maxBlanks)
	if !m.matchWord("\n") {
		return header, m.mismatchResult()
	}
	m.skipBytes(whiteSpace, maxSpace)
	m.skipBytes(marks, maxMarks)
	return m.matchToolHeader()
}

// mismatchResult returns the result after a failed match: needMore if more text could change it, and otherwise noMatch.
func (m *headerMatcher) mismatchResult() matchResult {
	if m.atEnd() && !m.final {
		return needMore
	}
	return noMatch
}

// matchToolHeader matches a header, starting at the word TOOL. An object with arguments may follow any header. A list,
// or text without a bracket, counts only if the header is in capitals and names an offered tool.
func (m *headerMatcher) matchToolHeader() (header toolHeader, result matchResult) {
	toolStart := m.pos
	if !m.matchLabel("TOOL") {
		return header, m.mismatchResult()
	}
	m.skipBytes(whiteSpace+marks+`"'`, maxSpace)
	header.name = m.readName()
	if header.name == "" {
		return header, m.mismatchResult()
	}
	m.skipBytes(whiteSpace+marks+`"',`, maxSpace)
	parametersStart := m.pos
	if !m.matchLabel("PARAMETERS") {
		return header, m.mismatchResult()
	}
	afterColon := m.pos
	inCapitals := strings.HasPrefix(m.text[toolStart:], "TOOL") && strings.HasPrefix(m.text[parametersStart:], "PARAMETERS")

	if strings.Contains(m.skipBytes(whiteSpace+marks, maxSpace), "```") {
		header.fences++
		m.skipBytes(lettersAndDigits, maxArgumentsLanguage)
		m.skipBytes(whiteSpace, maxSpace)
	}

	header.size = m.pos
	switch {
	case m.atEnd() && !m.final:
		return header, needMore
	case strings.HasPrefix(m.remainingText(), "{"):
		return header, matched
	case !inCapitals || !m.tools.isKnown(header.name):
		return header, noMatch
	case strings.HasPrefix(m.remainingText(), "["):
		return header, matched
	}
	return m.matchRawArguments(header, afterColon)
}

// matchRawArguments returns header with the rest of the line, from offset afterColon on, as its raw arguments. If the
// line is empty, raw is "PARAMETERS:". raw is never empty, because such a call is malformed and must fail, while a call
// without arguments could succeed.
func (m *headerMatcher) matchRawArguments(header toolHeader, afterColon int) (toolHeader, matchResult) {
	line, _, ended := strings.Cut(m.text[afterColon:], "\n")
	if !ended && !m.final {
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

// matchNextCall matches the beginning of text, which follows a line break, with a code fence or with the label TOOL of
// a call. Neither can begin a line within JSON, so they end arguments whose closing bracket is missing.
func matchNextCall(text string, final bool) matchResult {
	m := &headerMatcher{text: text, final: final}
	m.skipBytes(blanks+"\r", maxSpace)
	if strings.Contains(m.skipBytes(marks, maxMarks), "```") || m.matchLabel("TOOL") {
		return matched
	}
	return m.mismatchResult()
}
