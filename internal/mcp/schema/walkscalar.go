package schema

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// checkChoice is enum and const.
func (w *walk) checkChoice(n *node, v *value, at *step, d *verdict) {
	same := func(choice *value) bool { return !w.spend(1+len(v.items)) || equal(choice, v) }
	if n.enum != nil && !slices.ContainsFunc(n.enum, same) {
		w.find(d, at, finding{rank: ofChoice}, func() string {
			return "expected one of " + choices(n.enum) + ", got " + describe(v) + w.nearest(v, n.enum)
		})
	}
	if n.constant != nil && !same(n.constant) {
		w.find(d, at, finding{rank: ofChoice}, func() string { return "expected " + literal(n.constant) + ", got " + describe(v) })
	}
}

// checkNumber is the keywords about numbers (draft 2020-12 validation, 6.2).
func (w *walk) checkNumber(n *node, v *value, at *step, d *verdict) {
	wrong := func(what string, bound *value) {
		w.find(d, at, finding{}, func() string { return fmt.Sprintf("expected %s %s, got %s", what, literal(bound), literal(v)) })
	}
	if n.minimum != nil && compare(v, n.minimum) < 0 {
		wrong("at least", n.minimum)
	}
	if n.maximum != nil && compare(v, n.maximum) > 0 {
		wrong("at most", n.maximum)
	}
	if n.above != nil && compare(v, n.above) <= 0 {
		wrong("more than", n.above)
	}
	if n.below != nil && compare(v, n.below) >= 0 {
		wrong("less than", n.below)
	}
	if n.multipleOf != nil && !multiple(v, n.multipleOf) {
		wrong("a multiple of", n.multipleOf)
	}
}

// checkText is the keywords about strings (6.3). Lengths are in characters; a format is
// an annotation and checks nothing (7.2.1).
func (w *walk) checkText(n *node, v *value, at *step, d *verdict) {
	if n.minLength != nil || n.maxLength != nil {
		w.bounds(n.minLength, n.maxLength, utf8.RuneCountInString(v.text), "character", at, d)
	}
	if n.pattern != nil && !w.matches(n.pattern, v.text) {
		w.find(d, at, finding{}, func() string {
			return fmt.Sprintf("expected text that matches %s, got %s", printable(n.pattern.String(), 120), literal(v))
		})
	}
}

// bounds is the six keywords that count something.
func (w *walk) bounds(low, high *int, n int, what string, at *step, d *verdict) {
	if low != nil && n < *low {
		w.find(d, at, finding{}, func() string { return fmt.Sprintf("expected at least %s, got %d", counted(*low, what), n) })
	}
	if high != nil && n > *high {
		w.find(d, at, finding{}, func() string { return fmt.Sprintf("expected at most %s, got %d", counted(*high, what), n) })
	}
}

// counted is "1 item" or "2 items".
func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// choices is some of the values of an enum, and how many there are.
func choices(all []*value) string {
	var b strings.Builder
	for i, v := range all {
		if i > 0 && (i == 20 || b.Len() > 200) {
			return fmt.Sprintf("%s … (%d in all)", b.String(), len(all))
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(literal(v))
	}
	return b.String()
}
