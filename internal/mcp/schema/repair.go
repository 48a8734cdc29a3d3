package schema

import "strings"

// repair is v with the strings in it that don't fit n taken for the JSON that they
// hold, where that fits. A string that is JSON text of a value says what the value is to
// the last digit, so nothing is lost; nothing else is ever turned into something else.
// What fits as it is stays as it is.
func (w *walk) repair(n *node, v *value) *value {
	if w.over || w.fits(n, v) {
		return v
	}
	if better := w.repairWithin(n, v); better != v {
		v = better
		if w.fits(n, v) {
			return v
		}
	}
	if meant := held(v); meant != nil {
		meant = w.repairWithin(n, meant)
		if w.fits(n, meant) {
			return meant.inPlaceOf(v)
		}
	}
	return v
}

// held is the value that a string holds as JSON text; nil where it holds none. Blanks
// around an array or object are layout; around anything else they are something that
// the writer meant to say.
func held(v *value) *value {
	if v.kind != text {
		return nil
	}
	s := strings.TrimSpace(v.text)
	if s == "" || s[0] == '"' || s != v.text && s[0] != '[' && s[0] != '{' {
		return nil
	}
	meant, wrong := parse([]byte(s), twiceIsWrong)
	if wrong != nil {
		return nil
	}
	return meant
}

// repairWithin is v with what is in it repaired by every schema that applies to it.
func (w *walk) repairWithin(n *node, v *value) *value {
	if !w.spend(1) {
		return v
	}
	if n.ref != nil {
		v = w.repairWithin(n.ref, v)
		if w.schema.draft7 {
			return v
		}
	}
	for _, s := range n.allOf {
		v = w.repairWithin(s, v)
	}
	v = w.repairAlternative(n.anyOf, v, len(n.anyOf))
	v = w.repairAlternative(n.oneOf, v, 1)
	switch v.kind {
	case array:
		return w.repairItems(n, v)
	case object:
		return w.repairMembers(n, v)
	}
	return v
}

// repairAlternative is v as the first alternative has it that it can be made fit for,
// such that at most so many fit.
func (w *walk) repairAlternative(alternatives []*node, v *value, most int) *value {
	fitting := func(v *value) int {
		n := 0
		for _, s := range alternatives {
			if w.fits(s, v) {
				n++
			}
		}
		return n
	}
	if len(alternatives) == 0 || fitting(v) > 0 {
		return v
	}
	for _, s := range alternatives {
		if better := w.repair(s, v); better != v {
			if n := fitting(better); n > 0 && n <= most {
				return better
			}
		}
	}
	return v
}

func (w *walk) repairItems(n *node, v *value) *value {
	return w.replace(v, func(i int, item *value) *value {
		switch {
		case i < len(n.prefix):
			return w.repair(n.prefix[i], item)
		case n.items != nil:
			return w.repair(n.items, item)
		}
		return item
	})
}

func (w *walk) repairMembers(n *node, v *value) *value {
	v = w.replace(v, func(i int, member *value) *value {
		known := false
		w.applying(n, v.names[i], func(s *node) {
			known = true
			member = w.repair(s, member)
		})
		if !known && n.additional != nil {
			member = w.repair(n.additional, member)
		}
		return member
	})
	if n.when != nil {
		branch := n.otherwise
		if w.fits(n.when, v) {
			branch = n.then
		}
		if branch != nil {
			v = w.repairWithin(branch, v)
		}
	}
	for _, d := range n.dependencies {
		if d.node != nil && v.get(d.name) != nil {
			v = w.repairWithin(d.node, v)
		}
	}
	return v
}

// replace is v with other items; v itself where none is another.
func (w *walk) replace(v *value, by func(int, *value) *value) *value {
	var items []*value
	for i, item := range v.items {
		other := by(i, item)
		if other == item {
			continue
		}
		if items == nil {
			items = append(items, v.items...)
		}
		items[i] = other
	}
	if items == nil {
		return v
	}
	return v.with(items)
}
