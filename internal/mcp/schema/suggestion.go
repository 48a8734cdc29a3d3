package schema

import (
	"math"
	"strings"
)

// Limits of the search for a similar name. Comparing two names takes time proportional to the product of their lengths.
const (
	maxNameLength = 64  // in bytes; longer names are never similar
	maxCandidates = 500 // further candidates are ignored
)

// similarName returns the candidate that is most similar to name, or "" if none is similar or the steps run out. If
// several candidates are equally similar, it returns the first of them. It ignores candidates for which exclude returns
// true.
func (w *validator) similarName(name string, candidates []string, exclude func(string) bool) string {
	candidates = candidates[:min(len(candidates), maxCandidates)]
	if len(name) > maxNameLength || !w.countSteps(len(candidates)*(1+len(name)/4)) {
		return ""
	}
	normalized := normalizeName(name)
	closest, minDistance := "", math.MaxInt
	for _, candidate := range candidates {
		if len(candidate) > maxNameLength || exclude(candidate) {
			continue
		}
		distance := editDistance(normalized, normalizeName(candidate))
		// Accept one difference in three letters. "id" is not similar to "ip".
		isSimilar := distance <= max(len(name), len(candidate))/3
		if isSimilar && distance < minDistance {
			closest, minDistance = candidate, distance
		}
	}
	return closest
}

// suggestChoice returns "; did you mean …?" with the string in choices that is most similar to v, to be appended to a
// problem's text. It returns "" if v is not a string or choices has no similar string. choices has the values of an
// enum.
func (w *validator) suggestChoice(v *value, choices []*value) string {
	if v.kind != text {
		return ""
	}
	var names []string
	for _, choice := range choices[:min(len(choices), maxCandidates)] {
		if choice.kind == text {
			names = append(names, choice.text)
		}
	}
	excludeNone := func(string) bool { return false }
	return suggestion(w.similarName(v.text, names, excludeNone))
}

// suggestion returns the end of a problem's text that suggests the name similar, or "" if similar is "".
func suggestion(similar string) string {
	if similar == "" {
		return ""
	}
	return "; did you mean " + literalText(similar) + "?"
}

// separators removes the characters by which naming conventions differ.
var separators = strings.NewReplacer("_", "", "-", "", " ", "")

// normalizeName returns a name in lower case without separators, so that dueDate and due_date become equal.
func normalizeName(s string) string { return separators.Replace(strings.ToLower(s)) }

// editDistance returns the minimum number of insertions, deletions, replacements and swaps of neighboring bytes that
// turn a into b (optimal string alignment distance). a and b must be shorter than 2*maxNameLength.
//
// row[j] is the distance between the first i bytes of a and the first j bytes of b. Computing a row needs only the two
// rows before it, so only three rows are kept.
func editDistance(a, b string) int {
	var rows [3][2 * maxNameLength]int // not maxNameLength: lower case can be up to half as long again
	beforePrevious, previous, row := rows[0][:], rows[1][:], rows[2][:]
	for j := range len(b) + 1 {
		previous[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replacementCost := 1
			if a[i-1] == b[j-1] {
				replacementCost = 0
			}
			row[j] = min(previous[j]+1, row[j-1]+1, previous[j-1]+replacementCost)
			isSwap := i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1]
			if isSwap {
				row[j] = min(row[j], beforePrevious[j-2]+1)
			}
		}
		beforePrevious, previous, row = previous, row, beforePrevious
	}
	return previous[len(b)]
}
