package schema

// validator checks one value against a schema. It continues after a problem, and stops when it
// exceeds maxSteps: then the value counts as not checked, and never as valid.
type validator struct {
	schema     *Schema
	steps      int
	outOfSteps bool // steps exceed maxSteps
	quiet      bool // only the validity is needed, so texts of problems are not built
}

// result is the outcome of checking one value against one schema. evaluated is used only if there
// are no problems (draft 2020-12 core, 7.7.1.1).
type result struct {
	problems  []violation
	more      bool // there are more problems than these
	evaluated evaluated
}

// isValid reports whether the value is valid.
func (r result) isValid() bool { return len(r.problems) == 0 }

// add appends the problems of another schema, or of a part of the value, up to maxProblems.
func (r *result) add(other result) {
	n := min(len(other.problems), maxProblems-len(r.problems))
	r.more = r.more || other.more || n < len(other.problems)
	r.problems = append(r.problems, other.problems[:n]...)
}

// violationSteps is the cost of the text of a problem, compared to finding it.
const violationSteps = 20

// report adds a problem. It calls detail, which is expensive, only if the text will be read.
func (w *validator) report(r *result, loc *location, f violation, detail func() string) {
	switch {
	case len(r.problems) == maxProblems:
		r.more = true
		return
	case !w.quiet && w.spend(violationSteps):
		f.at = loc.pointer()
		f.depth = loc.depth()
		f.detail = detail()
	}
	r.problems = append(r.problems, f)
}

// addSameValue adds the problems of another schema for the same value. If there are none, it also
// adds what that schema evaluated.
func (r *result) addSameValue(other result) {
	r.add(other)
	if other.isValid() {
		r.evaluated.merge(&other.evaluated)
	}
}

// spend counts n steps, and reports whether the total is still within maxSteps.
func (w *validator) spend(n int) bool {
	w.steps += n
	w.outOfSteps = w.outOfSteps || w.steps > maxSteps
	return !w.outOfSteps
}

// validate checks v against n and returns all problems. It applies all keywords, except after a
// wrong type: the others would only repeat that. loc is the place of v, for problems; nil is the whole
// value.
//
// A result without problems does not prove that v is valid: it may mean that the steps ran out. So
// everything that decides something by it must look at w.outOfSteps too, as isValid and problemsOf do.
func (w *validator) validate(n *node, v *value, loc *location) (r result) {
	if !w.spend(1) {
		return r
	}
	if n.ref != nil {
		r.addSameValue(w.validate(n.ref, v, loc))
		if w.schema.draft7 {
			return r // draft-07, 8.3: keywords beside a reference are ignored
		}
	}

	switch {
	case n.alwaysFalse:
		w.reportType(&r, loc, 0, v)
		return r
	case n.kinds != 0 && n.kinds&v.kind == 0:
		w.reportType(&r, loc, n.kinds, v)
		return r
	}

	w.checkEnum(n, v, loc, &r)
	switch v.kind {
	case integer, fraction:
		w.checkNumber(n, v, loc, &r)
	case text:
		w.checkText(n, v, loc, &r)
	}

	if w.quiet && !r.isValid() { // nobody reads further problems, and the values within v may be many
		return r
	}
	w.checkApplicators(n, v, loc, &r)

	switch v.kind {
	case array:
		w.checkArray(n, v, loc, &r)
	case object:
		w.checkObject(n, v, loc, &r)
	}
	return r
}

// isValid reports whether v is valid against n. It does not build the texts of problems.
func (w *validator) isValid(n *node, v *value) bool {
	defer func(before bool) { w.quiet = before }(w.quiet)
	w.quiet = true
	return w.validate(n, v, nil).isValid() && !w.outOfSteps
}

// evaluated records which items or properties keywords have evaluated successfully, for
// unevaluatedItems and unevaluatedProperties (draft 2020-12 core, 11). It is used only for schemas
// with those keywords. Keywords beside them and schemas for the same value add to it; what a schema
// evaluated that turned out not to match does not count (core, 7.7.1.1). The zero value means nothing.
type evaluated struct {
	allItems, allProperties bool
	items                   int          // the first items
	item                    map[int]bool // further items, by index
	members                 map[string]bool
}

// merge adds what another schema has evaluated.
func (s *evaluated) merge(other *evaluated) {
	s.allItems = s.allItems || other.allItems
	s.allProperties = s.allProperties || other.allProperties
	s.items = max(s.items, other.items)
	for i := range other.item {
		s.addItem(i)
	}
	for name := range other.members {
		s.addProperty(name)
	}
}

// addItem records that the item i was evaluated.
func (s *evaluated) addItem(i int) {
	if s.item == nil {
		s.item = map[int]bool{}
	}
	s.item[i] = true
}

// addProperty records that the property with that name was evaluated.
func (s *evaluated) addProperty(name string) {
	if s.members == nil {
		s.members = map[string]bool{}
	}
	s.members[name] = true
}
