package demo

import (
	"strings"
	"unicode"
)

// stopWords carry no meaning of their own. Question words and the verbs of asking
// are among them: they say that something is wanted, not what.
var stopWords = func() map[string]bool {
	m := make(map[string]bool)
	for w := range strings.FieldsSeq(`a an and any are as at be been but by can could did do does doing for from give had has have
		how i if in into is it its just let like me my need no not now of off on one or our please really say should so some such
		tell than that the their them then there these they this those to too up us use used using was we were what when where
		which who whom why will with would you your about also want know anywhere`) {
		m[w] = true
	}
	return m
}()

// possessives come off first, or "today's" would leave a word "s".
var possessives = strings.NewReplacer("'s ", " ", "’s ", " ")

// splitWords cuts text into lower-case words of letters and digits. camelCase and
// snake_case fall apart, so that a tool's name gives the words it is made of.
func splitWords(text string) []string {
	var words []string
	var word []rune
	flush := func() {
		if len(word) > 0 {
			words = append(words, strings.ToLower(string(word)))
			word = word[:0]
		}
	}
	lower := false
	for _, r := range possessives.Replace(text + " ") {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			flush()
			lower = false
			continue
		}
		if lower && unicode.IsUpper(r) {
			flush()
		}
		lower = unicode.IsLower(r)
		word = append(word, r)
	}
	flush()
	return words
}

// stems are the words of text that mean something, each cut to its stem.
func stems(text string) []string {
	var out []string
	for _, w := range splitWords(text) {
		if !stopWords[w] {
			out = append(out, stem(w))
		}
	}
	return out
}

// sameAs maps stems to the one that stands for them.
var sameAs = map[string]string{"doc": "document", "documentat": "document", "remov": "delet", "eras": "delet",
	"failur": "fail", "cancellat": "cancel", "config": "configurat", "auth": "authenticat"}

// stem cuts the commonest English endings, so that "resuming", "resumes" and
// "resume" meet. It need not give a word, only the same text for the same word.
func stem(w string) string {
	n := len(w)
	switch {
	case n > 4 && strings.HasSuffix(w, "ies"):
		w = w[:n-3] + "y"
	case n > 3 && strings.HasSuffix(w, "s") && !strings.HasSuffix(w, "ss") && !strings.HasSuffix(w, "us") && !strings.HasSuffix(w, "is"):
		w = w[:n-1]
	}
	for _, ending := range []string{"ing", "ed", "ion"} {
		cut, ok := strings.CutSuffix(w, ending)
		if !ok || len(cut) < 4 {
			continue
		}
		w = cut
		if k := len(w); ending != "ion" && k > 4 && w[k-1] == w[k-2] && w[k-1] != 's' && w[k-1] != 'l' {
			w = w[:k-1] // running, stopped
		}
		break
	}
	if len(w) > 3 {
		w = strings.TrimSuffix(w, "e")
	}
	if s, ok := sameAs[w]; ok {
		return s
	}
	return w
}
