package schema

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// checkEnum applies the keywords enum and const to v.
func (w *validator) checkEnum(n *node, v *value, loc *location, r *result) {
	equalsValue := func(choice *value) bool {
		hasSteps := w.countSteps(1 + len(v.items))
		return !hasSteps || equalValues(choice, v) // without steps, w.outOfSteps makes the whole check fail anyway
	}
	if n.enum != nil && !slices.ContainsFunc(n.enum, equalsValue) {
		w.report(r, loc, violation{category: enumMismatch}, func() string {
			return "expected one of " + listChoices(n.enum) + ", got " + describeValue(v) + w.suggestChoice(v, n.enum)
		})
	}
	if n.constant != nil && !equalsValue(n.constant) {
		w.report(r, loc, violation{category: enumMismatch}, func() string {
			return "expected " + literalOf(n.constant) + ", got " + describeValue(v)
		})
	}
}

// checkNumber applies the keywords for numbers to v (draft 2020-12 validation, 6.2).
func (w *validator) checkNumber(n *node, v *value, loc *location, r *result) {
	reportBound := func(relation string, bound *value) {
		w.report(r, loc, violation{}, func() string {
			return fmt.Sprintf("expected %s %s, got %s", relation, literalOf(bound), literalOf(v))
		})
	}
	if n.minimum != nil && compareNumbers(v, n.minimum) < 0 {
		reportBound("at least", n.minimum)
	}
	if n.maximum != nil && compareNumbers(v, n.maximum) > 0 {
		reportBound("at most", n.maximum)
	}
	if n.exclusiveMinimum != nil && compareNumbers(v, n.exclusiveMinimum) <= 0 {
		reportBound("more than", n.exclusiveMinimum)
	}
	if n.exclusiveMaximum != nil && compareNumbers(v, n.exclusiveMaximum) >= 0 {
		reportBound("less than", n.exclusiveMaximum)
	}
	if n.multipleOf != nil && !isMultiple(v, n.multipleOf) {
		reportBound("a multiple of", n.multipleOf)
	}
}

// checkText applies the keywords for strings to v (draft 2020-12 validation, 6.3). Lengths are counted in characters.
// It does not check format, which is only an annotation (7.2.1).
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

// checkCount adds a problem to r if count is less than lowest or more than highest. A nil bound does not apply. noun is
// the singular noun for the counted things, such as "item".
func (w *validator) checkCount(lowest, highest *int, count int, noun string, loc *location, r *result) {
	reportBound := func(relation string, bound int) {
		w.report(r, loc, violation{}, func() string {
			return fmt.Sprintf("expected %s %s, got %d", relation, countOf(bound, noun), count)
		})
	}
	if lowest != nil && count < *lowest {
		reportBound("at least", *lowest)
	}
	if highest != nil && count > *highest {
		reportBound("at most", *highest)
	}
}

// Limits on how many of an enum's values a problem's text lists.
const (
	maxListedChoices      = 20
	maxListedChoicesBytes = 200 // no further value is listed once the text is longer
)

// listChoices lists the values of an enum as JSON, separated by commas. If there are too many, it lists only the first
// ones and adds the total number.
func listChoices(choices []*value) string {
	var list strings.Builder
	for i, choice := range choices {
		if i == maxListedChoices || list.Len() > maxListedChoicesBytes {
			return fmt.Sprintf("%s … (%d in all)", list.String(), len(choices))
		}
		if i > 0 {
			list.WriteString(", ")
		}
		list.WriteString(literalOf(choice))
	}
	return list.String()
}

// matchPattern reports whether s matches p. It counts the steps before it starts to match. If they exceed maxSteps, it
// returns true without matching, because w.outOfSteps makes the whole check fail anyway.
func (w *validator) matchPattern(p *pattern, s string) bool {
	w.countSteps(1 + len(s)*p.states/workPerStep)
	return w.outOfSteps || p.MatchString(s)
}
