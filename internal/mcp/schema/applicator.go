package schema

import (
	"fmt"
)

// checkApplicators applies the keywords whose schemas check v itself, rather than its items or members (draft 2020-12
// core, 10.2). It adds to r the problems, and the items and properties that the schemas evaluated.
func (w *validator) checkApplicators(n *node, v *value, loc *location, r *result) {
	for _, s := range n.allOf {
		r.addSameValue(w.validate(s, v, loc))
	}
	if n.anyOf != nil {
		w.checkAnyOf(n, v, loc, r)
	}
	if n.oneOf != nil {
		w.checkOneOf(n, v, loc, r)
	}
	if n.not != nil && w.isValid(n.not, v) {
		w.report(r, loc, violation{}, func() string { return "must not match the schema in not, got " + describeValue(v) })
	}
	if n.ifSchema != nil {
		w.checkIf(n, v, loc, r)
	}
	if v.kind == object {
		w.checkDependencies(n, v, loc, r)
	}
}

// checkIf applies if, then and else. The problems of if are not problems of v.
func (w *validator) checkIf(n *node, v *value, loc *location, r *result) {
	condition := w.validate(n.ifSchema, v, loc)
	branch := n.elseSchema
	if condition.isValid() {
		r.evaluated.merge(&condition.evaluated)
		branch = n.then
	}
	if branch != nil {
		r.addSameValue(w.validate(branch, v, loc))
	}
}

// checkAnyOf applies anyOf. It checks all alternatives even after a valid one, because each valid alternative can add
// to the evaluated items and properties.
func (w *validator) checkAnyOf(n *node, v *value, loc *location, r *result) {
	var invalid []result
	for _, s := range n.anyOf {
		alternative := w.validate(s, v, loc)
		if alternative.isValid() {
			r.evaluated.merge(&alternative.evaluated)
		} else {
			invalid = append(invalid, alternative)
		}
	}
	if len(invalid) == len(n.anyOf) {
		w.reportClosest(invalid, v, loc, r)
	}
}

// checkOneOf applies oneOf. It checks all alternatives even after a valid one, because a second valid one is a problem.
func (w *validator) checkOneOf(n *node, v *value, loc *location, r *result) {
	var invalid []result
	var valid []int // numbers of the alternatives, from 1
	for i, s := range n.oneOf {
		alternative := w.validate(s, v, loc)
		if alternative.isValid() {
			valid = append(valid, i+1)
			r.evaluated.merge(&alternative.evaluated)
		} else {
			invalid = append(invalid, alternative)
		}
	}
	switch {
	case len(valid) == 0:
		w.reportClosest(invalid, v, loc, r)
	case len(valid) > 1:
		w.report(r, loc, violation{}, func() string {
			return fmt.Sprintf("matches alternatives %d and %d of %d (oneOf), must match exactly one", valid[0], valid[1], len(n.oneOf))
		})
	}
}

// checkDependencies applies dependentRequired and dependentSchemas to the object v. In draft-07, dependencies serves
// both purposes (draft-07, 6.5.7).
func (w *validator) checkDependencies(n *node, v *value, loc *location, r *result) {
	for _, d := range n.dependencies {
		if v.member(d.name) == nil {
			continue
		}
		for _, name := range d.required {
			if !w.countSteps(1) {
				return
			}
			if v.member(name) == nil {
				w.reportMissing(r, loc, name, " (required with "+printable(d.name, 60)+")")
			}
		}
		if d.node != nil {
			r.addSameValue(w.validate(d.node, v, loc))
		}
	}
}

// reportClosest reports why v matches none of the alternatives of anyOf or oneOf. alternatives has at least one result,
// and each result has problems. Listing all their problems would be too long for a user or a model, so reportClosest
// adds to r the first of these that applies:
//   - the expected types, if v has the wrong type for every alternative,
//   - the missing fields, if each alternative lacks exactly one field and has no other problem,
//   - the problems of the alternative that v was probably meant to match.
func (w *validator) reportClosest(alternatives []result, v *value, loc *location, r *result) {
	depth := loc.depth()
	var expectedTypes kind
	typeMismatches := 0  // number of alternatives that expect a type other than v's
	var missing []string // fields whose lack is the only problem for one of the alternatives
	closest := alternatives[0]
	for _, alternative := range alternatives {
		first := alternative.problems[0]
		isOfValue, isOfMember := first.depth == depth, first.depth == depth+1
		switch {
		case first.category == typeMismatch && isOfValue:
			expectedTypes |= first.kinds
			typeMismatches++
		case first.category == missingField && isOfMember && len(alternative.problems) == 1:
			missing = append(missing, first.name)
		}
		if alternative.isCloser(closest, depth) {
			closest = alternative
		}
	}
	switch {
	case typeMismatches == len(alternatives):
		w.reportType(r, loc, expectedTypes, v)
	case len(missing) == len(alternatives):
		w.reportMissingOneOf(r, loc, missing)
	default:
		r.add(closest)
	}
}

// isCloser reports whether the value was more likely meant to match the alternative with the result r than the one with
// the result other. depth is the value's depth.
func (r result) isCloser(other result, depth int) bool {
	penalty, otherPenalty := r.penalty(depth), other.penalty(depth)
	if penalty != otherPenalty {
		return penalty < otherPenalty
	}
	return len(r.problems) < len(other.problems)
}

// penalty returns how unlikely it is that a value was meant to match the alternative with the result r. depth is the
// value's depth. A wrong type of the value, or a wrong value of a field that distinguishes alternatives, makes it most
// unlikely. Problems further down mean little. The worst problem decides: a value with the right type field and five
// missing fields is closer than a value with the wrong type field and nothing missing. Only the order of the weights
// matters, not their differences.
func (r result) penalty(depth int) int {
	worst := 0
	for _, p := range r.problems {
		weight := 0
		isOfValue, isOfMember := p.depth == depth, p.depth == depth+1
		switch {
		case p.category == typeMismatch && isOfValue:
			weight = 5
		case p.category == enumMismatch && (isOfValue || isOfMember):
			weight = 4
		case p.category == typeMismatch && isOfMember:
			weight = 3
		case p.category == unexpectedField && isOfMember:
			weight = 2
		case p.category == missingField && isOfMember:
			weight = 1
		}
		worst = max(worst, weight)
	}
	return worst
}
