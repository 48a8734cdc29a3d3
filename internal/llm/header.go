package llm

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// A header is what comes before a call's arguments:
//
//	fence? deco "TOOL" deco ":" deco name deco "PARAMETERS" deco ":" fence? deco
//
// where deco is white space, bold and code marks, and the two words are in any case.
// It stands at the start of a word, on a line of its own or not, and its two halves on
// one line or on two, blank lines between them included. Models write all of these.
type header struct {
	name   string
	fences int // opening code fences among its decoration
	size   int // bytes up to the arguments
	// raw is what stands in the place of arguments that do not begin with a bracket.
	// Such a header counts only in the very form that the prompt shows and for a tool
	// that exists, since "Tool: hammer, parameters: 3 cm" is prose.
	raw string
}

// verdict is whether a text begins with what is looked for.
type verdict int

const (
	no   verdict = iota
	yes          // it does
	more         // it may, depending on what comes
)

// maxHeader bounds a header and so how much text is held back, in bytes.
const maxHeader = 1024

// Bytes that may stand between the words of a header.
const (
	marks      = "*`"
	blanks     = " \t"
	whiteSpace = blanks + "\r\n"
)

// matcher walks through a text that may not be complete yet.
type matcher struct {
	text string
	at   int
}

// rest is what has not been passed over.
func (m *matcher) rest() string { return m.text[m.at:] }

// atEnd reports whether what stopped the matcher may be only that no more has come.
func (m *matcher) atEnd() bool { return m.at >= len(m.text) }

// skip passes over at most limit bytes of set and returns them.
func (m *matcher) skip(set string, limit int) string {
	start := m.at
	for m.at < len(m.text) && m.at-start < limit && strings.IndexByte(set, m.text[m.at]) >= 0 {
		m.at++
	}
	return m.text[start:m.at]
}

// word passes over w, in any case. A part of w at the end of the text takes the
// matcher there.
func (m *matcher) word(w string) bool {
	rest := m.rest()
	n := min(len(w), len(rest))
	if !strings.EqualFold(rest[:n], w[:n]) {
		return false
	}
	m.at += n
	return n == len(w)
}

// label passes over w, decoration and a colon.
func (m *matcher) label(w string) bool {
	if !m.word(w) {
		return false
	}
	m.skip(blanks+marks, 8)
	return m.word(":")
}

// name passes over a tool's name: letters and digits of any script, "_", "-", and
// within it "." and "/".
func (m *matcher) name() string {
	start := m.at
	for m.at < len(m.text) && m.at-start < 256 {
		if !utf8.FullRuneInString(m.rest()) {
			m.at = len(m.text)
			break
		}
		r, size := utf8.DecodeRuneInString(m.rest())
		if !unicode.In(r, unicode.L, unicode.M, unicode.N) && !strings.ContainsRune("_-./", r) {
			break
		}
		m.at += size
	}
	return strings.TrimRight(m.text[start:m.at], "./")
}

// matchHeader looks for a header at the start of text. final says that nothing follows
// text. known says whether there is a tool of a name.
func matchHeader(text string, final bool, known func(string) bool) (header, verdict) {
	if len(text) >= maxHeader {
		// However much has come, the same bytes decide: the outcome must not depend on
		// the pieces in which they came.
		text, final = text[:maxHeader], true
	}
	m := &matcher{text: text}
	// Marks before TOOL belong to the call only if it is one; else they are text.
	opening := m.skip(marks, 6)
	begin := m.at
	h, v := m.header(final, known)
	fenced := strings.Contains(opening, "```")
	if fenced {
		h.fences++
	}
	if v != no || !fenced {
		return h, v
	}
	// A fence with a language: the header is on a line below.
	m.at = begin
	m.info(20)
	m.skip(blanks+"\r", 8)
	if !m.word("\n") {
		return h, m.open(final)
	}
	m.skip(whiteSpace, 64)
	m.skip(marks, 6)
	h, v = m.header(final, known)
	h.fences++
	return h, v
}

// info passes over the language of a code fence.
func (m *matcher) info(limit int) {
	for start := m.at; m.at < len(m.text) && m.at-start < limit; m.at++ {
		c := m.text[m.at]
		if c < '0' || c > '9' && c < 'A' || c > 'Z' && c < 'a' || c > 'z' {
			return
		}
	}
}

// open is the verdict on a text that did not go on as it should.
func (m *matcher) open(final bool) verdict {
	if m.atEnd() && !final {
		return more
	}
	return no
}

// header matches from the word TOOL on.
func (m *matcher) header(final bool, known func(string) bool) (h header, v verdict) {
	start := m.at
	if !m.label("TOOL") {
		return h, m.open(final)
	}
	exact := strings.HasPrefix(m.text[start:], "TOOL")
	m.skip(whiteSpace+marks+`"'`, 64)
	if h.name = m.name(); h.name == "" {
		return h, m.open(final)
	}
	m.skip(whiteSpace+marks+`"',`, 64)
	second := m.at
	if !m.label("PARAMETERS") {
		return h, m.open(final)
	}
	exact = exact && strings.HasPrefix(m.text[second:], "PARAMETERS")
	colon := m.at
	if strings.Contains(m.skip(whiteSpace+marks, 64), "```") {
		h.fences++
		m.info(10)
		m.skip(whiteSpace, 64)
	}
	h.size = m.at
	switch {
	case m.atEnd() && !final:
		return h, more
	case strings.HasPrefix(m.rest(), "{"):
		return h, yes
	case !exact || !known(h.name):
		return h, no
	case strings.HasPrefix(m.rest(), "["):
		return h, yes
	}
	return m.rawArguments(h, colon, final)
}

// rawArguments takes the rest of the line for the arguments of a call that has no
// object where one should be. They are never empty, since no arguments is something
// that a tool may well accept (S1.3).
func (m *matcher) rawArguments(h header, colon int, final bool) (header, verdict) {
	line, _, ended := strings.Cut(m.text[colon:], "\n")
	if !ended && !final {
		return h, more
	}
	h.fences = 0 // those may be text behind this line
	h.size = colon + len(line)
	if h.raw = strings.TrimSpace(line); h.raw == "" {
		h.raw = "PARAMETERS:"
	}
	return h, yes
}

// matchNextCall looks, behind the end of a line, for a call's first words or a code
// fence. Neither can stand at the start of a line within JSON, so they end arguments
// that were never closed.
func matchNextCall(text string, final bool) verdict {
	m := &matcher{text: text}
	m.skip(blanks+"\r", 64)
	if strings.Contains(m.skip(marks, 6), "```") {
		return yes
	}
	if m.label("TOOL") {
		return yes
	}
	return m.open(final)
}
