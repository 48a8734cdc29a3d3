package schema

// checkObject is the keywords about objects (draft 2020-12 core, 10.3.2; validation,
// 6.5). Problems come in the order of the schema, then of the value.
func (w *walk) checkObject(n *node, v *value, at *step, d *verdict) {
	for _, name := range n.required {
		if !w.spend(1) {
			return
		}
		if v.get(name) == nil {
			w.missing(d, at, name, "")
		}
	}
	w.bounds(n.minProperties, n.maxProperties, len(v.items), "field", at, d)
	for i, name := range v.names {
		w.checkMember(n, v, i, &step{up: at, name: name}, d)
	}
	if w.schema.notes && n.additional != nil {
		d.seen.allMembers = true
	}
	if n.unevaluatedProperties == nil || d.seen.allMembers {
		return
	}
	for i, name := range v.names {
		if !d.seen.members[name] {
			here := &step{up: at, name: name}
			if n.unevaluatedProperties.never {
				w.unexpected(d, here, name, n, v)
			} else {
				d.add(w.check(n.unevaluatedProperties, v.items[i], here))
			}
		}
	}
	d.seen.allMembers = true
}

// checkMember is what n says about one member.
func (w *walk) checkMember(n *node, v *value, i int, here *step, d *verdict) {
	name, member := v.names[i], v.items[i]
	if n.propertyNames != nil {
		if named := w.check(n.propertyNames, &value{kind: text, text: name}, here); !named.ok() {
			w.find(d, here, finding{rank: ofUnexpected}, func() string { return "the field's name does not fit: " + named.problems[0].detail })
		}
	}
	known := false
	w.applying(n, name, func(s *node) {
		known = true
		d.add(w.check(s, member, here))
	})
	switch {
	case known:
	case n.additional != nil && n.additional.never:
		w.unexpected(d, here, name, n, v)
	case n.additional != nil:
		d.add(w.check(n.additional, member, here))
	}
	if known && w.schema.notes {
		d.seen.noteMember(name)
	}
}

// applying calls yield for the schemas that properties and patternProperties have for a
// member of that name.
func (w *walk) applying(n *node, name string, yield func(*node)) {
	if s := n.properties[name]; s != nil {
		yield(s)
	}
	for _, p := range n.patterns {
		if w.matches(p.pattern, name) {
			yield(p.node)
		}
	}
}
