package schema

// validator checks one value against a schema. It does not stop at the first problem, but it stops once it has taken
// maxSteps. The value then counts as not checked, never as valid.
type validator struct {
	schema     *Schema
	steps      int  // steps taken so far, by all method calls together
	outOfSteps bool // steps has exceeded maxSteps
	quiet      bool // only the verdict is needed, so report leaves pointer, detail and depth empty
}

// result is the outcome of checking one value against one schema. evaluated counts only if there are no problems (draft
// 2020-12 core, 7.7.1.1).
type result struct {
	problems  []violation // at most maxProblems
	more      bool        // further problems were dropped
	evaluated evaluated
}

// isValid reports whether r has no problems. If the validator ran out of steps, the value may be invalid nevertheless
// (see validate).
func (r result) isValid() bool { return len(r.problems) == 0 }

// add appends the problems of other, which is the result of another schema or of a part of the value. It keeps at most
// maxProblems, and sets r.more if it drops any.
func (r *result) add(other result) {
	n := min(len(other.problems), maxProblems-len(r.problems))
	r.more = r.more || other.more || n < len(other.problems)
	r.problems = append(r.problems, other.problems[:n]...)
}

// violationSteps is the number of steps charged for building the pointer and text of one problem.
const violationSteps = 20

// report adds the problem found to r. It fills in the pointer and depth from loc, and the text by calling detail.
// Building them is expensive, so report leaves them empty if w is quiet or the steps run out, when they would not be
// read. If r already has maxProblems, report only sets r.more.
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

// addSameValue adds to r what another schema found for the same value: its problems, or, if there are none, the items
// and properties that it evaluated.
func (r *result) addSameValue(other result) {
	r.add(other)
	if other.isValid() {
		r.evaluated.merge(&other.evaluated)
	}
}

// countSteps adds n to w.steps and reports whether the total is within maxSteps. Once it has returned false,
// w.outOfSteps is set and callers should do no further work.
func (w *validator) countSteps(n int) bool {
	w.steps += n
	w.outOfSteps = w.outOfSteps || w.steps > maxSteps
	return !w.outOfSteps
}

// validate checks v against n and returns all problems, up to maxProblems. If v has the wrong type, it checks no
// further keywords, because their problems would only repeat that. If w is quiet, it may return as soon as it has found
// a problem of v itself. loc is the location of v for the problems' pointers. It is nil for the whole value.
//
// A result without problems does not prove that v is valid, because the steps may have run out. Callers must also check
// w.outOfSteps before they accept v. The methods isValid and problemsOf of validator do so.
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
		return r // v is invalid already: checking the values within it could not change that
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

// isValid reports whether v is valid for n. It returns false if the steps run out. It sets w.quiet during the check, so
// that no problem texts are built.
func (w *validator) isValid(n *node, v *value) bool {
	defer func(before bool) { w.quiet = before }(w.quiet)
	w.quiet = true
	return w.validate(n, v, nil).isValid() && !w.outOfSteps
}

// evaluated records which items or properties of a value a schema's keywords have evaluated. unevaluatedItems and
// unevaluatedProperties need it (draft 2020-12 core, 11), so it is recorded only if Schema.tracksEvaluated is set.
// Another schema for the same value adds to it only if the value is valid for that schema (core, 7.7.1.1). The zero
// value means that nothing was evaluated.
type evaluated struct {
	allItems      bool
	firstItems    int          // number of items evaluated from the start of the array
	furtherItems  map[int]bool // indexes of other items
	allProperties bool
	properties    map[string]bool
}

// merge adds the items and properties that other records as evaluated.
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

// addItem records that the item with index i was evaluated.
func (e *evaluated) addItem(i int) {
	if e.furtherItems == nil {
		e.furtherItems = map[int]bool{}
	}
	e.furtherItems[i] = true
}

// addProperty records that the property called name was evaluated.
func (e *evaluated) addProperty(name string) {
	if e.properties == nil {
		e.properties = map[string]bool{}
	}
	e.properties[name] = true
}
