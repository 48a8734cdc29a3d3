package toolsearch

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxWords bounds the words of a text.
const maxWords = 2000

// stopWords are words that say nothing about a tool.
var stopWords = map[string]bool{
	"a": true, "an": true, "and": true, "any": true, "are": true, "as": true, "at": true, "be": true, "by": true, "can": true,
	"for": true, "from": true, "i": true, "if": true, "in": true, "into": true, "is": true, "it": true, "its": true, "me": true,
	"my": true, "of": true, "on": true, "or": true, "that": true, "the": true, "their": true, "this": true, "to": true,
	"tool": true, "use": true, "want": true, "was": true, "which": true, "with": true, "you": true, "your": true,
}

// splitWords returns the words of a text in the form in which they are compared. A name is
// split where one of its words ends: create_issue, createIssue and "Create issue" give the same two words.
func splitWords(text string) []string {
	var out []string
	start, last := -1, rune(0)
	end := func(to int) {
		if start < 0 {
			return
		}
		out = appendWord(out, text[start:to])
		start = -1
	}
	for i, r := range text {
		if len(out) >= maxWords {
			return out[:maxWords]
		}
		switch {
		case !unicode.In(r, unicode.L, unicode.N, unicode.M):
			end(i)
		case start < 0:
			start = i
		case startsWord(last, r, text[i:]):
			end(i)
			start = i
		}
		last = r
	}
	end(len(text))
	return out[:min(len(out), maxWords)]
}

// startsWord reports whether a new word begins at r, the first of rest: at the U of getURLs,
// and at the F of JSONFile. A new word also begins where a script without spaces begins or ends.
func startsWord(last, r rune, rest string) bool {
	if hasNoSpaces(last) != hasNoSpaces(r) {
		return true
	}
	if !unicode.IsUpper(r) {
		return false
	}
	if !unicode.IsUpper(last) {
		return true
	}
	next, _ := utf8.DecodeRuneInString(rest[utf8.RuneLen(r):])
	after, _ := utf8.DecodeRuneInString(strings.TrimPrefix(rest[utf8.RuneLen(r):], string(next)))
	// The s of a plural such as URLs or IDs does not begin a word.
	return unicode.IsLower(next) && !(next == 's' && !unicode.IsLetter(after))
}

// hasNoSpaces reports whether words of r's script are written without spaces between.
func hasNoSpaces(r rune) bool {
	return r == 'ー' || unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai)
}

// appendWord adds the stem of a word, unless it is a stop word. In a script without spaces it adds each pair of
// adjacent letters: a word is then found by its pairs, without a dictionary.
func appendWord(out []string, word string) []string {
	first, size := utf8.DecodeRuneInString(word)
	if !hasNoSpaces(first) {
		lower := strings.ToLower(word)
		stem := stemWord(lower) // of "this" it is "thi", so both forms are looked up
		if !stopWords[lower] && !stopWords[stem] {
			out = append(out, stem)
		}
		return out
	}
	if len(word) == size {
		return append(out, word)
	}
	for first, second := 0, size; second < len(word); {
		_, n := utf8.DecodeRuneInString(word[second:])
		out = append(out, word[first:second+n])
		first, second = second, second+n
	}
	return out
}

// stemWord takes the commonest endings off an English word, so that files, filed and filing
// meet in fil. It only has to be the same for all forms, not to be a word.
func stemWord(w string) string {
	for i := range len(w) {
		if w[i] < 'a' || w[i] > 'z' {
			return w
		}
	}
	switch {
	case len(w) > 4 && strings.HasSuffix(w, "ies"):
		w = w[:len(w)-3] + "y"
	case strings.HasSuffix(w, "ss"), strings.HasSuffix(w, "us"):
	case len(w) > 2 && strings.HasSuffix(w, "s"):
		w = w[:len(w)-1]
	}
	for _, ending := range []string{"ing", "ed"} {
		if base, ok := strings.CutSuffix(w, ending); ok && len(base) >= 3 && strings.ContainsAny(base, "aeiouy") {
			w = base
			if n := len(w); w[n-1] == w[n-2] && !strings.ContainsRune("lsz", rune(w[n-1])) {
				w = w[:n-1]
			}
			break
		}
	}
	if len(w) > 3 {
		w = strings.TrimSuffix(w, "e")
	}
	return w
}
