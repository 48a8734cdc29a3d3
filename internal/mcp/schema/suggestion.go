package schema

import (
	"strings"
)

// Bounds of the search for a similar name, whose time is quadratic.
const (
	maxSimilar      = 64  // bytes of a name
	maxSimilarities = 500 // names
)

// similarName returns the name of names that was probably meant, or "" if none is similar. It
// leaves out names for which taken is true.
func (w *validator) similarName(name string, names []string, taken func(string) bool) string {
	best, least := "", 0 // the name found so far, and its distance
	asked := normalizeName(name)
	if len(name) > maxSimilar || !w.spend(min(len(names), maxSimilarities)*(1+len(name)/4)) {
		return ""
	}
	for i, other := range names {
		if i == maxSimilarities {
			break
		}
		if len(other) > maxSimilar || taken(other) {
			continue
		}
		distance := editDistance(asked, normalizeName(other))
		// Accept one difference in three letters. "id" is not similar to "ip".
		isSimilar := distance <= max(len(name), len(other))/3
		if isSimilar && (best == "" || distance < least) {
			best, least = other, distance
		}
	}
	return best
}

// suggestChoice returns a suggestion of a similar string of an enum, as the end of a sentence, or
// "".
func (w *validator) suggestChoice(v *value, listChoices []*value) string {
	if v.kind != text {
		return ""
	}
	var names []string
	for _, c := range listChoices[:min(len(listChoices), maxSimilarities)] {
		if c.kind == text {
			names = append(names, c.text)
		}
	}
	if meant := w.similarName(v.text, names, func(string) bool { return false }); meant != "" {
		return "; did you mean " + literalText(meant) + "?"
	}
	return ""
}

// separators removes the characters in which naming conventions differ.
var separators = strings.NewReplacer("_", "", "-", "", " ", "")

// normalizeName returns a name in lower case without separators, so that dueDate and due_date are
// equal.
func normalizeName(s string) string { return separators.Replace(strings.ToLower(s)) }

// editDistance returns the least number of insertions, deletions, replacements and swaps of
// neighboring bytes that turn a into b (Damerau-Levenshtein distance). It keeps three rows of the
// matrix.
func editDistance(a, b string) int {
	var rows [3][2 * maxSimilar]int // a name in lower case can be longer than maxSimilar, by half
	before, last, row := rows[0][:], rows[1][:], rows[2][:]
	for j := range len(b) + 1 {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			isSwap := i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1]
			if isSwap {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
