package schema

import "fmt"

// checkLogic is the keywords that hold schemas of the same value.
func (w *walk) checkLogic(n *node, v *value, at *step, d *verdict) {
	for _, s := range n.allOf {
		d.join(w.check(s, v, at))
	}
	if n.anyOf != nil {
		w.checkAny(n, v, at, d)
	}
	if n.oneOf != nil {
		w.checkOne(n, v, at, d)
	}
	if n.not != nil && w.fits(n.not, v) {
		w.find(d, at, finding{}, func() string { return "is what the schema excludes (not), got " + describe(v) })
	}
	if n.when != nil {
		when := w.check(n.when, v, at)
		branch := n.otherwise
		if when.ok() {
			d.seen.join(&when.seen)
			branch = n.then
		}
		if branch != nil {
			d.join(w.check(branch, v, at))
		}
	}
	if v.kind == object {
		w.checkDependencies(n, v, at, d)
	}
}

// checkAny visits every alternative, since what each has seen counts.
func (w *walk) checkAny(n *node, v *value, at *step, d *verdict) {
	var wrong []verdict
	fits := false
	for _, s := range n.anyOf {
		if one := w.check(s, v, at); one.ok() {
			fits = true
			d.seen.join(&one.seen)
		} else {
			wrong = append(wrong, one)
		}
	}
	if !fits {
		w.closest(wrong, v, at, d)
	}
}

// checkOne visits every alternative too: more than one that fits is a mistake of its own.
func (w *walk) checkOne(n *node, v *value, at *step, d *verdict) {
	var wrong []verdict
	var right []int
	for i, s := range n.oneOf {
		if one := w.check(s, v, at); one.ok() {
			right = append(right, i+1)
			d.seen.join(&one.seen)
		} else {
			wrong = append(wrong, one)
		}
	}
	switch {
	case len(right) == 0:
		w.closest(wrong, v, at, d)
	case len(right) > 1:
		w.find(d, at, finding{}, func() string {
			return fmt.Sprintf("fits alternatives %d and %d of %d (oneOf), must fit exactly one", right[0], right[1], len(n.oneOf))
		})
	}
}

// checkDependencies is dependentRequired and dependentSchemas, and dependencies, which
// was both (draft-07, 6.5.7).
func (w *walk) checkDependencies(n *node, v *value, at *step, d *verdict) {
	for _, dep := range n.dependencies {
		if v.get(dep.name) == nil {
			continue
		}
		for _, name := range dep.required {
			if !w.spend(1) {
				return
			}
			if v.get(name) == nil {
				w.missing(d, at, name, " (needed where there is "+printable(dep.name, 60)+")")
			}
		}
		if dep.node != nil {
			d.join(w.check(dep.node, v, at))
		}
	}
}
