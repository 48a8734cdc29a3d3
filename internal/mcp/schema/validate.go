package schema

// validator checks one value against a schema. It continues after a problem, and stops when
// it has taken too many steps.
type validator struct {
	schema *Schema
	steps  int
	over   bool // steps exceed maxSteps
	quiet  bool // the caller needs no texts, only whether the value is valid
}

// result is the outcome of checking one value against one schema. The value is valid if there
// are no problems; evaluated is used only then (draft 2020-12 core, 7.7.1.1).
type result struct {
	problems  []violation
	more      bool // there are more problems than these
	evaluated evaluated
}

func (r result) ok() bool { return len(r.problems) == 0 }

// add appends the problems of another schema, or of a part of the value.
func (r *result) add(other result) {
	n := min(len(other.problems), maxProblems-len(r.problems))
	r.more = r.more || other.more || n < len(other.problems)
	r.problems = append(r.problems, other.problems[:n]...)
}

// violationSteps is the cost of the text of a problem, compared to finding it.
const violationSteps = 20

// report adds a problem. It calls detail only if the text will be read.
func (w *validator) report(r *result, at *location, f violation, detail func() string) {
	switch {
	case len(r.problems) == maxProblems:
		r.more = true
		return
	case !w.quiet && w.spend(violationSteps):
		f.at, f.depth, f.detail = at.pointer(), at.depth(), detail()
	}
	r.problems = append(r.problems, f)
}

// join is add for a schema of the same value: it also takes over what that schema evaluated.
func (r *result) join(other result) {
	r.add(other)
	if other.ok() {
		r.evaluated.join(&other.evaluated)
	}
}

// spend takes n steps, and reports whether the total is still within maxSteps.
func (w *validator) spend(n int) bool {
	w.steps += n
	w.over = w.over || w.steps > maxSteps
	return !w.over
}

// validate checks v against n. It applies all keywords, except if the type is wrong: then the
// others would only repeat that.
func (w *validator) validate(n *node, v *value, at *location) (r result) {
	if !w.spend(1) {
		return r
	}
	if n.ref != nil {
		r.join(w.validate(n.ref, v, at))
		if w.schema.draft7 {
			return r // draft-07, 8.3: keywords beside a reference are ignored
		}
	}
	switch {
	case n.alwaysFalse:
		w.reportType(&r, at, 0, v)
		return r
	case n.kinds != 0 && n.kinds&v.kind == 0:
		w.reportType(&r, at, n.kinds, v)
		return r
	}
	w.checkEnum(n, v, at, &r)
	switch v.kind {
	case integer, fraction:
		w.checkNumber(n, v, at, &r)
	case text:
		w.checkText(n, v, at, &r)
	}
	if w.quiet && !r.ok() {
		return r
	}
	w.checkApplicators(n, v, at, &r)
	switch v.kind {
	case array:
		w.checkArray(n, v, at, &r)
	case object:
		w.checkObject(n, v, at, &r)
	}
	return r
}

// isValid reports whether v is valid against n.
func (w *validator) isValid(n *node, v *value) bool {
	defer func(before bool) { w.quiet = before }(w.quiet)
	w.quiet = true
	return w.validate(n, v, nil).ok() && !w.over
}

// evaluated has the items or properties that keywords have evaluated successfully, for
// unevaluatedItems and unevaluatedProperties (draft 2020-12 core, 11). It is recorded only
// for schemas that have those keywords.
type evaluated struct {
	allItems, allProperties bool
	items                   int // from the first on
	item                    map[int]bool
	members                 map[string]bool
}

func (s *evaluated) join(other *evaluated) {
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

func (s *evaluated) addItem(i int) {
	if s.item == nil {
		s.item = map[int]bool{}
	}
	s.item[i] = true
}

func (s *evaluated) addProperty(name string) {
	if s.members == nil {
		s.members = map[string]bool{}
	}
	s.members[name] = true
}
