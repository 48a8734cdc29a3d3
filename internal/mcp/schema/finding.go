package schema

import (
	"fmt"
	"slices"
	"strings"
)

// rank is what sort of mistake one is.
type rank uint8

const (
	ofValue rank = iota
	ofType
	ofChoice // of enum or const
	ofUnexpected
	ofMissing
)

// finding is a problem, with what closest needs to weigh it.
type finding struct {
	at, detail string
	rank       rank
	depth      int    // of at
	kinds      kind   // ofType: what was expected
	name       string // ofMissing: which field
}

func (w *walk) wrongKind(d *verdict, at *step, want kind, got *value) {
	w.find(d, at, finding{rank: ofType, kinds: want}, func() string {
		if want == 0 {
			return "nothing is allowed here, got " + describe(got)
		}
		return "expected " + want.String() + ", got " + describe(got)
	})
}

func (w *walk) missing(d *verdict, at *step, name, why string) {
	here := step{up: at, name: name}
	w.find(d, &here, finding{rank: ofMissing, name: printable(name, 80)}, func() string {
		return "missing required field: " + printable(name, 80) + why // the wording of S1.5
	})
}

// missingOneOf is an object that has none of the fields of which each alternative asks
// for one.
func (w *walk) missingOneOf(d *verdict, at *step, names []string) {
	w.find(d, at, finding{rank: ofMissing}, func() string {
		slices.Sort(names)
		return "missing required field: one of " + printable(strings.Join(slices.Compact(names), ", "), 200)
	})
}

func (w *walk) unexpected(d *verdict, here *step, name string, n *node, in *value) {
	w.find(d, here, finding{rank: ofUnexpected}, func() string {
		detail := "unexpected field: " + printable(name, 80)
		taken := func(other string) bool { return in.get(other) != nil }
		if meant := w.similar(name, n.names, taken); meant != "" {
			detail += "; did you mean " + literalText(meant) + "?"
		}
		return detail
	})
}

// problems is what to say about the whole value; nil if it fits.
func (w *walk) problems(d verdict) []Problem {
	if w.over {
		return []Problem{{"", "cannot be checked: the schema has too many alternatives for a value of this size"}}
	}
	var out []Problem
	for _, f := range d.problems {
		// Two schemas of an allOf may find the same.
		if p := (Problem{f.at, f.detail}); !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	if d.more {
		out = append(out, Problem{"", fmt.Sprintf("and more than these %d", len(out))})
	}
	return out
}
