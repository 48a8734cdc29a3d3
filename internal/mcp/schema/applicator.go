package schema

import (
	"fmt"
)

// checkApplicators applies the keywords whose schemas apply to the same value (draft 2020-12 core,
// 10.2).
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
		ifSchema := w.validate(n.ifSchema, v, loc)
		branch := n.elseSchema
		if ifSchema.isValid() {
			r.evaluated.merge(&ifSchema.evaluated)
			branch = n.then
		}
		if branch != nil {
			r.addSameValue(w.validate(branch, v, loc))
		}
	}
	if v.kind == object {
		w.checkDependencies(n, v, loc, r)
	}
}

// checkAnyOf applies anyOf. It checks all alternatives even after a valid one, because each may
// add to the evaluated items and properties.
func (w *validator) checkAnyOf(n *node, v *value, loc *location, r *result) {
	var wrong []result
	anyValid := false
	for _, s := range n.anyOf {
		if one := w.validate(s, v, loc); one.isValid() {
			anyValid = true
			r.evaluated.merge(&one.evaluated)
		} else {
			wrong = append(wrong, one)
		}
	}
	if !anyValid {
		w.reportClosest(wrong, v, loc, r)
	}
}

// checkOneOf applies oneOf. It checks all alternatives, because a second valid one is a problem.
func (w *validator) checkOneOf(n *node, v *value, loc *location, r *result) {
	var wrong []result
	var valid []int
	for i, s := range n.oneOf {
		if one := w.validate(s, v, loc); one.isValid() {
			valid = append(valid, i+1)
			r.evaluated.merge(&one.evaluated)
		} else {
			wrong = append(wrong, one)
		}
	}
	switch {
	case len(valid) == 0:
		w.reportClosest(wrong, v, loc, r)
	case len(valid) > 1:
		w.report(r, loc, violation{}, func() string {
			return fmt.Sprintf("matches alternatives %d and %d of %d (oneOf), must match exactly one", valid[0], valid[1], len(n.oneOf))
		})
	}
}

// checkDependencies applies dependentRequired and dependentSchemas, or dependencies of draft-07,
// which combined both (draft-07, 6.5.7).
func (w *validator) checkDependencies(n *node, v *value, loc *location, r *result) {
	for _, dep := range n.dependencies {
		if v.member(dep.name) == nil {
			continue
		}
		for _, name := range dep.required {
			if !w.spend(1) {
				return
			}
			if v.member(name) == nil {
				w.reportMissing(r, loc, name, " (required with "+printable(dep.name, 60)+")")
			}
		}
		if dep.node != nil {
			r.addSameValue(w.validate(dep.node, v, loc))
		}
	}
}

// reportClosest reports why a value matches none of the alternatives. To list the problems of all
// alternatives would help neither a person nor a model. So it reports what all alternatives have
// in common, such as the type, or else the problems of the alternative that was probably meant.
func (w *validator) reportClosest(alternatives []result, v *value, loc *location, r *result) {
	var kinds kind
	var names []string
	here, ofKind, nearest := loc.depth(), 0, 0
	for i, a := range alternatives {
		first := a.problems[0]
		switch {
		case first.category == typeMismatch && first.depth == here:
			kinds |= first.kinds
			ofKind++
		case first.category == missingField && first.depth == here+1 && len(a.problems) == 1:
			names = append(names, first.name)
		}
		if a.isCloser(alternatives[nearest], here) {
			nearest = i
		}
	}
	switch len(alternatives) {
	case ofKind: // all have the wrong type, or there are no alternatives, so nothing is valid
		w.reportType(r, loc, kinds, v)
	case len(names):
		w.reportMissingOneOf(r, loc, names)
	default:
		r.add(alternatives[nearest])
	}
}

// isCloser reports whether a value at depth here was more likely meant for the alternative of r
// than for that of other.
func (r result) isCloser(other result, here int) bool {
	mine, theirs := r.penalty(here), other.penalty(here)
	if mine != theirs {
		return mine < theirs
	}
	return len(r.problems) < len(other.problems)
}

// penalty returns how unlikely it is that the value was meant for the alternative of r. A wrong
// type, or a wrong value of the field that distinguishes alternatives, makes it most unlikely.
// Problems further down mean little. Only the order of the weights matters, not their distances, and
// the worst problem decides: a value with the right type field and five missing fields is closer than
// one with a wrong type field and nothing missing.
func (r result) penalty(here int) int {
	most := 0
	for _, p := range r.problems {
		weight := 0
		deeper := p.depth - here
		switch {
		case p.category == typeMismatch && deeper == 0:
			weight = 5
		case p.category == enumMismatch && deeper <= 1:
			weight = 4
		case p.category == typeMismatch && deeper == 1:
			weight = 3
		case p.category == unexpectedField && deeper == 1:
			weight = 2
		case p.category == missingField && deeper == 1:
			weight = 1
		}
		most = max(most, weight)
	}
	return most
}
