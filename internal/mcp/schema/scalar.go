package schema

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// checkEnum applies enum and const.
func (w *validator) checkEnum(n *node, v *value, loc *location, r *result) {
	same := func(choice *value) bool { return !w.spend(1+len(v.items)) || equalValues(choice, v) }
	if n.enum != nil && !slices.ContainsFunc(n.enum, same) {
		w.report(r, loc, violation{category: enumMismatch}, func() string {
			return "expected one of " + listChoices(n.enum) + ", got " + describeValue(v) + w.suggestChoice(v, n.enum)
		})
	}
	if n.constant != nil && !same(n.constant) {
		w.report(r, loc, violation{category: enumMismatch}, func() string { return "expected " + literalOf(n.constant) + ", got " + describeValue(v) })
	}
}

// checkNumber applies the keywords for numbers (draft 2020-12 validation, 6.2).
func (w *validator) checkNumber(n *node, v *value, at *location, r *result) {
	wrong := func(what string, bound *value) {
		w.report(r, at, violation{}, func() string { return fmt.Sprintf("expected %s %s, got %s", what, literalOf(bound), literalOf(v)) })
	}
	if n.minimum != nil && compareNumbers(v, n.minimum) < 0 {
		wrong("at least", n.minimum)
	}
	if n.maximum != nil && compareNumbers(v, n.maximum) > 0 {
		wrong("at most", n.maximum)
	}
	if n.exclusiveMinimum != nil && compareNumbers(v, n.exclusiveMinimum) <= 0 {
		wrong("more than", n.exclusiveMinimum)
	}
	if n.exclusiveMaximum != nil && compareNumbers(v, n.exclusiveMaximum) >= 0 {
		wrong("less than", n.exclusiveMaximum)
	}
	if n.multipleOf != nil && !isMultiple(v, n.multipleOf) {
		wrong("a multiple of", n.multipleOf)
	}
}

// checkText applies the keywords for strings (draft 2020-12 validation, 6.3). Lengths are in
// characters. A format is only an annotation (7.2.1).
func (w *validator) checkText(n *node, v *value, loc *location, r *result) {
	if n.minLength != nil || n.maxLength != nil {
		w.checkCount(n.minLength, n.maxLength, utf8.RuneCountInString(v.text), "character", loc, r)
	}
	if n.pattern != nil && !w.matchPattern(n.pattern, v.text) {
		w.report(r, loc, violation{}, func() string {
			return fmt.Sprintf("expected text that matches %s, got %s", printable(n.pattern.String(), 120), literalOf(v))
		})
	}
}

// checkCount applies a pair of keywords that bound a count. what is the counted thing, in the
// singular.
func (w *validator) checkCount(low, high *int, n int, what string, loc *location, r *result) {
	if low != nil && n < *low {
		w.report(r, loc, violation{}, func() string { return fmt.Sprintf("expected at least %s, got %d", countOf(*low, what), n) })
	}
	if high != nil && n > *high {
		w.report(r, loc, violation{}, func() string { return fmt.Sprintf("expected at most %s, got %d", countOf(*high, what), n) })
	}
}

// Bounds of a list of an enum's values in a message.
const (
	maxListedChoices      = 20
	maxListedChoicesBytes = 200 // the value that exceeds it is still listed whole
)

// listChoices returns the values of an enum, or the first ones and how many there are.
func listChoices(all []*value) string {
	var b strings.Builder
	for i, v := range all {
		isFull := i == maxListedChoices || b.Len() > maxListedChoicesBytes
		if i > 0 && isFull {
			return fmt.Sprintf("%s … (%d in all)", b.String(), len(all))
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(literalOf(v))
	}
	return b.String()
}

// matchPattern reports whether s matches p. It counts the steps for that first; without enough
// steps left it reports true, and the whole check fails.
func (w *validator) matchPattern(p *pattern, s string) bool {
	w.spend(1 + len(s)*p.size/bytesPerStep)
	return w.outOfSteps || p.MatchString(s)
}
