package schema

// walk is one check of one value. It goes on after a mistake, and stops when it has
// taken too many steps.
type walk struct {
	schema *Schema
	steps  int
	over   bool // too many
	quiet  bool // only whether a value fits is asked
}

// verdict is what one schema says about one value. A value fits if there are no
// problems; seen counts only then (draft 2020-12 core, 7.7.1.1).
type verdict struct {
	problems []finding
	more     bool // there are more problems than these
	seen     seen
}

func (d verdict) ok() bool { return len(d.problems) == 0 }

// add takes what another schema, or the same about a part, says into d.
func (d *verdict) add(o verdict) {
	n := min(len(o.problems), maxProblems-len(d.problems))
	d.more = d.more || o.more || n < len(o.problems)
	d.problems = append(d.problems, o.problems[:n]...)
}

// findingSteps is what the words of a problem cost, compared to finding it.
const findingSteps = 20

// find adds a problem. Its words are made only where somebody will read them.
func (w *walk) find(d *verdict, at *step, f finding, detail func() string) {
	switch {
	case len(d.problems) == maxProblems:
		d.more = true
		return
	case !w.quiet && w.spend(findingSteps):
		f.at, f.depth, f.detail = at.pointer(), at.depth(), detail()
	}
	d.problems = append(d.problems, f)
}

// join is add for a schema of the same value: what it has seen of it is seen.
func (d *verdict) join(o verdict) {
	d.add(o)
	if o.ok() {
		d.seen.join(&o.seen)
	}
}

// spend takes n steps, and reports whether they are there.
func (w *walk) spend(n int) bool {
	w.steps += n
	w.over = w.over || w.steps > maxSteps
	return !w.over
}

// check says what n finds wrong with v. All keywords that apply are looked at, but for
// those of a schema that wants another type: they have nothing to say.
func (w *walk) check(n *node, v *value, at *step) (d verdict) {
	if !w.spend(1) {
		return d
	}
	if n.ref != nil {
		d.join(w.check(n.ref, v, at))
		if w.schema.draft7 {
			return d // draft-07, 8.3: what stands beside a reference is ignored
		}
	}
	switch {
	case n.never:
		w.wrongKind(&d, at, 0, v)
		return d
	case n.kinds != 0 && n.kinds&v.kind == 0:
		w.wrongKind(&d, at, n.kinds, v)
		return d
	}
	w.checkChoice(n, v, at, &d)
	switch v.kind {
	case integer, fraction:
		w.checkNumber(n, v, at, &d)
	case text:
		w.checkText(n, v, at, &d)
	}
	if w.quiet && !d.ok() {
		return d
	}
	w.checkLogic(n, v, at, &d)
	switch v.kind {
	case array:
		w.checkArray(n, v, at, &d)
	case object:
		w.checkObject(n, v, at, &d)
	}
	return d
}

// fits reports whether n finds nothing wrong with v.
func (w *walk) fits(n *node, v *value) bool {
	defer func(before bool) { w.quiet = before }(w.quiet)
	w.quiet = true
	return w.check(n, v, nil).ok() && !w.over
}

// seen is what keywords have looked at in an array or object and found right, for those
// that are about the rest (draft 2020-12 core, 11). It is kept only for schemas that
// have such keywords.
type seen struct {
	allItems, allMembers bool
	items                int // from the first on
	item                 map[int]bool
	members              map[string]bool
}

func (s *seen) join(o *seen) {
	s.allItems = s.allItems || o.allItems
	s.allMembers = s.allMembers || o.allMembers
	s.items = max(s.items, o.items)
	for i := range o.item {
		s.noteItem(i)
	}
	for name := range o.members {
		s.noteMember(name)
	}
}

func (s *seen) noteItem(i int) {
	if s.item == nil {
		s.item = map[int]bool{}
	}
	s.item[i] = true
}

func (s *seen) noteMember(name string) {
	if s.members == nil {
		s.members = map[string]bool{}
	}
	s.members[name] = true
}
