package schema

import "strings"

// Bounds of the search for a similar name, which is quadratic.
const (
	maxSimilar      = 64  // bytes of a name
	maxSimilarities = 500 // names
)

// similar is the name that was probably meant; "" if none comes near. Names that are
// taken are left out.
func (w *walk) similar(name string, names []string, taken func(string) bool) string {
	best, least, asked := "", 0, plain(name)
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
		d := distance(asked, plain(other))
		// One slip in three letters; "id" is not "ip".
		if d > max(len(name), len(other))/3 || best != "" && d >= least {
			continue
		}
		best, least = other, d
	}
	return best
}

// nearest is the same among the strings of an enum, as the end of a sentence.
func (w *walk) nearest(v *value, choices []*value) string {
	if v.kind != text {
		return ""
	}
	var names []string
	for _, c := range choices[:min(len(choices), maxSimilarities)] {
		if c.kind == text {
			names = append(names, c.text)
		}
	}
	if meant := w.similar(v.text, names, func(string) bool { return false }); meant != "" {
		return "; did you mean " + literalText(meant) + "?"
	}
	return ""
}

var joints = strings.NewReplacer("_", "", "-", "", " ", "")

// plain is a name without what conventions of writing differ in.
func plain(s string) string { return joints.Replace(strings.ToLower(s)) }

// distance is how many letters to insert, delete, replace or swap with the next make a
// into b.
func distance(a, b string) int {
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
