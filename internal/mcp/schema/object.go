package schema

// checkObject applies the keywords for objects (draft 2020-12 core, 10.3.2; validation, 6.5). The
// problems are in the order of the schema for missing fields, and then in that of the value.
// unevaluatedProperties comes last, because it applies to the properties that no other keyword has
// evaluated (core, 11.3).
func (w *validator) checkObject(n *node, v *value, loc *location, r *result) {
	for _, name := range n.required {
		if !w.spend(1) {
			return
		}
		if v.member(name) == nil {
			w.reportMissing(r, loc, name, "")
		}
	}
	w.checkCount(n.minProperties, n.maxProperties, len(v.items), "field", loc, r)
	for i, name := range v.names {
		w.checkMember(n, v, i, &location{up: loc, name: name}, r)
	}
	if w.schema.tracksEvaluated && n.additionalProperties != nil {
		r.evaluated.allProperties = true
	}
	if n.unevaluatedProperties == nil || r.evaluated.allProperties {
		return
	}
	for i, name := range v.names {
		if !r.evaluated.members[name] {
			here := &location{up: loc, name: name}
			if n.unevaluatedProperties.alwaysFalse {
				w.reportUnexpected(r, here, name, n, v)
			} else {
				r.add(w.validate(n.unevaluatedProperties, v.items[i], here))
			}
		}
	}
	r.evaluated.allProperties = true
}

// checkMember checks the member i of v against n. additionalProperties applies only if no schema
// in properties and patternProperties does.
func (w *validator) checkMember(n *node, v *value, i int, here *location, r *result) {
	name, member := v.names[i], v.items[i]
	if n.propertyNames != nil {
		if named := w.validate(n.propertyNames, &value{kind: text, text: name}, here); !named.isValid() {
			w.report(r, here, violation{category: unexpectedField}, func() string { return "the name of the field is invalid: " + named.problems[0].detail })
		}
	}
	known := false
	w.eachPropertySchema(n, name, func(s *node) {
		known = true
		r.add(w.validate(s, member, here))
	})
	switch {
	case known:
	case n.additionalProperties != nil && n.additionalProperties.alwaysFalse:
		w.reportUnexpected(r, here, name, n, v)
	case n.additionalProperties != nil:
		r.add(w.validate(n.additionalProperties, member, here))
	}
	if known && w.schema.tracksEvaluated {
		r.evaluated.addProperty(name)
	}
}

// eachPropertySchema calls yield for the schemas in properties and patternProperties that apply to
// a member with that name.
func (w *validator) eachPropertySchema(n *node, name string, yield func(*node)) {
	if s := n.properties[name]; s != nil {
		yield(s)
	}
	for _, p := range n.patterns {
		if w.matchPattern(p.pattern, name) {
			yield(p.node)
		}
	}
}
