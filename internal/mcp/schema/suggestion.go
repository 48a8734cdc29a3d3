package schema

import (
	"strings"
)

// Bounds of the search for a similar name, which is quadratic.
const (
	maxSimilar      = 64  // bytes of a name
	maxSimilarities = 500 // names
)

// similarName returns the name that was probably meant; "" if none is similar. It leaves out
// names that are taken.
func (w *validator) similarName(name string, names []string, taken func(string) bool) string {
	best, least, asked := "", 0, normalizeName(name)
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
		d := editDistance(asked, normalizeName(other))
		// At most one difference in three letters; "id" is not "ip".
		if d > max(len(name), len(other))/3 || best != "" && d >= least {
			continue
		}
		best, least = other, d
	}
	return best
}

// suggestChoice returns the similar string of an enum, as the end of a sentence.
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

var separators = strings.NewReplacer("_", "", "-", "", " ", "")

// normalizeName returns a name without case and separators, in which conventions differ.
func normalizeName(s string) string { return separators.Replace(strings.ToLower(s)) }

// editDistance returns how many insertions, deletions, replacements and swaps of neighboring
// letters turn a into b.
func editDistance(a, b string) int {
	var rows [3][2 * maxSimilar]int // lower case can be longer, by half
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
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
