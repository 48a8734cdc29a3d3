package toolsearch

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxWords is how many words splitWords returns at most.
const maxWords = 2000

// stopWords are too common to distinguish tools.
var stopWords = map[string]bool{
	"a": true, "an": true, "and": true, "any": true, "are": true, "as": true, "at": true, "be": true, "by": true, "can": true,
	"for": true, "from": true, "i": true, "if": true, "in": true, "into": true, "is": true, "it": true, "its": true, "me": true,
	"my": true, "of": true, "on": true, "or": true, "that": true, "the": true, "their": true, "this": true, "to": true,
	"tool": true, "use": true, "want": true, "was": true, "which": true, "with": true, "you": true, "your": true,
}

// splitWords returns the stems (stemWord) of the first maxWords words of text, without stop words. It also splits names
// into words: create_issue, createIssue and "Create issue" give the same result.
func splitWords(text string) []string {
	var out []string
	start := -1 // where the current word begins; -1 between words
	previous := rune(0)
	endWord := func(end int) {
		if start < 0 {
			return
		}
		out = appendWord(out, text[start:end])
		start = -1
	}
	for i, r := range text {
		if len(out) >= maxWords {
			return out[:maxWords]
		}
		switch {
		case !unicode.In(r, unicode.L, unicode.N, unicode.M): // not a letter, a number or a combining mark
			endWord(i)
		case start < 0:
			start = i
		case startsWord(previous, r, text[i:]):
			endWord(i)
			start = i
		}
		previous = r
	}
	endWord(len(text))
	return out[:min(len(out), maxWords)]
}

// startsWord reports whether a new word begins at r, which follows previous and is the first rune of rest. That is the
// case at the U of getURLs and the F of JSONFile, and where a script without spaces begins or ends.
func startsWord(previous, r rune, rest string) bool {
	if hasNoSpaces(previous) != hasNoSpaces(r) {
		return true
	}
	if !unicode.IsUpper(r) {
		return false
	}
	if !unicode.IsUpper(previous) {
		return true
	}
	// r follows another capital letter. It begins a word if a small letter follows, as in JSONFile.
	next, nextSize := utf8.DecodeRuneInString(rest[utf8.RuneLen(r):])
	afterNext, _ := utf8.DecodeRuneInString(rest[utf8.RuneLen(r)+nextSize:])
	isPluralS := next == 's' && !unicode.IsLetter(afterNext) // as in URLs or IDs
	return unicode.IsLower(next) && !isPluralS
}

// hasNoSpaces reports whether r belongs to a script that is written without spaces between words. 'ー' occurs in
// Hiragana and Katakana words, but Unicode assigns it to neither script.
func hasNoSpaces(r rune) bool {
	return r == 'ー' || unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai)
}

// appendWord appends the stem of a word to out, unless it is a stop word. In a script without spaces, the word may
// really be several words. For these, appendWord appends each pair of adjacent letters instead, so that words can be
// found without a dictionary. A single letter is appended as it is.
func appendWord(out []string, word string) []string {
	letter, size := utf8.DecodeRuneInString(word)
	if !hasNoSpaces(letter) {
		lower := strings.ToLower(word)
		stem := stemWord(lower)
		// Check both forms, because the stem of the stop word "this" is "thi".
		if !stopWords[lower] && !stopWords[stem] {
			out = append(out, stem)
		}
		return out
	}
	if len(word) == size {
		return append(out, word)
	}
	letters := []rune(word)
	for i := range len(letters) - 1 {
		out = append(out, string(letters[i:i+2]))
	}
	return out
}

// stemWord returns the stem of an English word, so that files, filed and filing all become fil. It removes a plural s,
// then ing or ed, then a doubled consonant before that ending, then a final e. The stem need not be a word, but must be
// the same for all forms of a word. A word with letters other than a to z is returned unchanged.
func stemWord(word string) string {
	for i := range len(word) {
		if word[i] < 'a' || word[i] > 'z' {
			return word
		}
	}
	switch {
	case len(word) > 4 && strings.HasSuffix(word, "ies"):
		word = word[:len(word)-3] + "y"
	case strings.HasSuffix(word, "ss"), strings.HasSuffix(word, "us"): // the s belongs to the word, as in class and status
	case len(word) > 2 && strings.HasSuffix(word, "s"):
		word = word[:len(word)-1]
	}
	for _, ending := range []string{"ing", "ed"} {
		if base, ok := strings.CutSuffix(word, ending); ok && len(base) >= 3 && strings.ContainsAny(base, "aeiouy") {
			word = base
			n := len(word)
			isDoubled := word[n-1] == word[n-2]
			if isDoubled && !strings.ContainsRune("lsz", rune(word[n-1])) {
				word = word[:n-1]
			}
			break
		}
	}
	if len(word) > 3 {
		word = strings.TrimSuffix(word, "e")
	}
	return word
}
