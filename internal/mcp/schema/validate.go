package schema

// validator checks one value against a schema. It continues after a problem, and stops when it
// exceeds maxSteps: then the value counts as not checked, and never as valid.
type validator struct {
	schema     *Schema
	steps      int  // steps so far, of all calls of its methods
	outOfSteps bool // steps exceed maxSteps
	quiet      bool // only the validity is needed: violations have no pointer, detail and depth (see report)
}

// result is the outcome of checking one value against one schema. evaluated is used only if there
// are no problems (draft 2020-12 core, 7.7.1.1).
type result struct {
	problems  []violation // at most maxProblems
	more      bool        // there are more problems than these
	evaluated evaluated
}

// isValid reports whether r has no problems. If the steps of the validator have run out, the value can be invalid
// all the same (see validate).
func (r result) isValid() bool { return len(r.problems) == 0 }

// add appends the problems of another schema, or of a part of the value, up to maxProblems. If there are more, it sets
// r.more.
func (r *result) add(other result) {
	n := min(len(other.problems), maxProblems-len(r.problems))
	r.more = r.more || other.more || n < len(other.problems)
	r.problems = append(r.problems, other.problems[:n]...)
}

// violationSteps is the number of steps that the pointer and the text of one problem count.
const violationSteps = 20

// report adds the problem found at loc to r, or sets r.more if r has maxProblems already. It also sets the problem's
// pointer, depth and text, which is the result of detail. It leaves them empty if w is quiet or the steps run out:
// then the text is not read, and building a text is expensive.
func (w *validator) report(r *result, loc *location, found violation, detail func() string) {
	if len(r.problems) == maxProblems {
		r.more = true
		return
	}
	if !w.quiet && w.countSteps(violationSteps) {
		found.pointer = loc.pointer()
		found.depth = loc.depth()
		found.detail = detail()
	}
	r.problems = append(r.problems, found)
}

// addSameValue adds the result of another schema for the same value to r: its problems, or, if it has no problems, the
// items and properties that it evaluated.
func (r *result) addSameValue(other result) {
	r.add(other)
	if other.isValid() {
		r.evaluated.merge(&other.evaluated)
	}
}

// countSteps adds n to the steps of w, and reports whether the total is still within maxSteps. Once it has returned
// false, w.outOfSteps is set and no further work should be done.
func (w *validator) countSteps(n int) bool {
	w.steps += n
	w.outOfSteps = w.outOfSteps || w.steps > maxSteps
	return !w.outOfSteps
}

// validate checks v against n and returns all problems, up to maxProblems. It applies all keywords, except after a
// wrong type, which the problems of further keywords would only repeat. If w is quiet, the first problems of v itself
// are enough. loc is the place of v, for the pointers of problems; nil is the whole value.
//
// A result without problems does not prove that v is valid: it may mean that the steps ran out. So before
// the final verdict, a caller must look at w.outOfSteps, too, as the methods isValid and problemsOf of validator do.
func (w *validator) validate(n *node, v *value, loc *location) (r result) {
	if !w.countSteps(1) {
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

	if w.quiet && !r.isValid() {
		return r // v is invalid; to check the values within v would take long and not change that
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

// isValid reports whether v is valid against n. It returns false if the steps run out. It does not build the texts of
// problems.
func (w *validator) isValid(n *node, v *value) bool {
	defer func(before bool) { w.quiet = before }(w.quiet)
	w.quiet = true
	return w.validate(n, v, nil).isValid() && !w.outOfSteps
}

// evaluated records which items or properties of a value the keywords of a schema have evaluated, for
// unevaluatedItems and unevaluatedProperties (draft 2020-12 core, 11). It is recorded only for schemas
// with these keywords (Schema.tracksEvaluated). Further schemas for the same value add to it, but only if the
// value is valid against them (core, 7.7.1.1). The zero value means that nothing was evaluated.
type evaluated struct {
	allItems      bool
	firstItems    int          // number of items, from the first one
	furtherItems  map[int]bool // by index
	allProperties bool
	properties    map[string]bool
}

// merge adds the items and properties that another schema has evaluated.
func (e *evaluated) merge(other *evaluated) {
	e.allItems = e.allItems || other.allItems
	e.allProperties = e.allProperties || other.allProperties
	e.firstItems = max(e.firstItems, other.firstItems)
	for i := range other.furtherItems {
		e.addItem(i)
	}
	for name := range other.properties {
		e.addProperty(name)
	}
}

// addItem records that the item i was evaluated.
func (e *evaluated) addItem(i int) {
	if e.furtherItems == nil {
		e.furtherItems = map[int]bool{}
	}
	e.furtherItems[i] = true
}

// addProperty records that the property with that name was evaluated.
func (e *evaluated) addProperty(name string) {
	if e.properties == nil {
		e.properties = map[string]bool{}
	}
	e.properties[name] = true
}
