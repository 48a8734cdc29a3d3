package schema

// checkObject applies n's keywords for objects to v (draft 2020-12 core, 10.3.2; validation, 6.5). It adds the problems
// and the evaluated properties to r. Missing fields come first, in the order of n.required, followed by the members'
// problems in the order of v. unevaluatedProperties is applied last, because it concerns only the properties that no
// other keyword has evaluated (core, 11.3).
func (w *validator) checkObject(n *node, v *value, loc *location, r *result) {
	for _, name := range n.required {
		if !w.countSteps(1) {
			return
		}
		if v.member(name) == nil {
			w.reportMissing(r, loc, name, "")
		}
	}
	w.checkCount(n.minProperties, n.maxProperties, len(v.items), "field", loc, r)
	for i := range v.names {
		w.checkMember(n, v, i, loc, r)
	}
	if w.schema.tracksEvaluated && n.additionalProperties != nil {
		r.evaluated.allProperties = true
	}
	if n.unevaluatedProperties == nil || r.evaluated.allProperties {
		return
	}
	for i, name := range v.names {
		switch {
		case r.evaluated.properties[name]:
		case n.unevaluatedProperties.alwaysFalse:
			w.reportUnexpected(r, loc, name, n, v)
		default:
			r.add(w.validate(n.unevaluatedProperties, v.items[i], loc.member(name)))
		}
	}
	r.evaluated.allProperties = true
}

// checkMember checks the member with index i of v, the object at loc. additionalProperties applies only if no schema in
// properties or patternProperties does.
func (w *validator) checkMember(n *node, v *value, i int, loc *location, r *result) {
	name, member := v.names[i], v.items[i]
	memberLoc := loc.member(name)
	if n.propertyNames != nil {
		nameResult := w.validate(n.propertyNames, &value{kind: text, text: name}, memberLoc)
		if !nameResult.isValid() {
			w.report(r, memberLoc, violation{category: unexpectedField}, func() string {
				return "the name of the field is invalid: " + nameResult.problems[0].detail
			})
		}
	}
	isDefined := false // by properties or patternProperties
	w.eachPropertySchema(n, name, func(s *node) {
		isDefined = true
		r.add(w.validate(s, member, memberLoc))
	})
	switch {
	case isDefined:
		if w.schema.tracksEvaluated {
			r.evaluated.addProperty(name)
		}
	case n.additionalProperties == nil:
	case n.additionalProperties.alwaysFalse:
		w.reportUnexpected(r, loc, name, n, v)
	default:
		r.add(w.validate(n.additionalProperties, member, memberLoc))
	}
}

// eachPropertySchema calls yield for each schema in properties and patternProperties of n that applies to a member
// called name.
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
