package schema

import (
	"slices"
	"strings"
)

// repair returns v with invalid strings replaced by the JSON values that they contain, where such a value is valid
// against the schema for that place. Nothing is lost, because the JSON text of a value has all its digits. It converts
// nothing else, and returns v itself if there is nothing to replace. The result may still be invalid: other parts of v
// may be wrong.
//
// At each level, repair checks whether the value is valid, which visits all levels below. So the time grows with
// the square of the depth, and with each alternative that is tried. All of these visits count as steps. When the steps
// run out, repair returns the remaining values unchanged.
func (w *validator) repair(n *node, v *value) *value {
	if w.outOfSteps || w.isValid(n, v) {
		return v
	}
	// First repair the values in v. Only if v is still invalid, try whether v itself is a string that contains JSON.
	if repaired := w.repairWithin(n, v); repaired != v {
		v = repaired
		if w.isValid(n, v) {
			return v
		}
	}
	if parsed := parseText(v); parsed != nil {
		parsed = w.repairWithin(n, parsed)
		if w.isValid(n, parsed) {
			return parsed.withPositionOf(v)
		}
	}
	return v
}

// parseText returns the value whose JSON text the string v contains, or nil if v is not a string or contains no JSON
// text. It returns nil for the text of a JSON string, because v is a string already. White space around an array or
// object is layout. Around anything else it may be part of the text, so parseText returns nil.
func parseText(v *value) *value {
	if v.kind != text {
		return nil
	}
	trimmed := strings.TrimSpace(v.text)
	if trimmed == "" || trimmed[0] == '"' {
		return nil
	}
	if isContainer := trimmed[0] == '[' || trimmed[0] == '{'; trimmed != v.text && !isContainer {
		return nil
	}
	parsed, problem := parseJSON([]byte(trimmed), refuseDuplicates)
	if problem != nil {
		return nil
	}
	return parsed
}

// repairWithin returns v with its items or members repaired for all schemas that n applies to them. v itself is
// replaced only if that makes it valid for an alternative of anyOf or oneOf.
func (w *validator) repairWithin(n *node, v *value) *value {
	if !w.countSteps(1) {
		return v
	}
	if n.ref != nil {
		v = w.repairWithin(n.ref, v)
		if w.schema.draft7 {
			return v // draft-07, 8.3: keywords beside a reference are ignored
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

// repairAlternative repairs v for one alternative of anyOf or oneOf. It tries them in order, and returns the first
// repaired value that at least one and at most maxMatches alternatives accept; maxMatches is 1 for oneOf. It returns v
// itself if an alternative accepts v, or if no repair succeeds.
func (w *validator) repairAlternative(alternatives []*node, v *value, maxMatches int) *value {
	if len(alternatives) == 0 || w.countMatches(alternatives, v) > 0 {
		return v
	}
	for _, s := range alternatives {
		repaired := w.repair(s, v)
		if repaired == v {
			continue
		}
		if matches := w.countMatches(alternatives, repaired); matches > 0 && matches <= maxMatches {
			return repaired
		}
	}
	return v
}

// countMatches returns how many of the alternatives accept v.
func (w *validator) countMatches(alternatives []*node, v *value) int {
	matches := 0
	for _, s := range alternatives {
		if w.isValid(s, v) {
			matches++
		}
	}
	return matches
}

// repairItems returns the array v with its items repaired.
func (w *validator) repairItems(n *node, v *value) *value {
	return v.replaceItems(func(i int, item *value) *value {
		switch {
		case i < len(n.prefix):
			return w.repair(n.prefix[i], item)
		case n.items != nil:
			return w.repair(n.items, item)
		}
		return item
	})
}

// repairMembers returns the object v with its members repaired. The keywords if and dependencies come last,
// because the repaired members decide which of their schemas apply.
func (w *validator) repairMembers(n *node, v *value) *value {
	v = v.replaceItems(func(i int, member *value) *value {
		known := false
		w.eachPropertySchema(n, v.names[i], func(s *node) {
			known = true
			member = w.repair(s, member)
		})
		if !known && n.additionalProperties != nil {
			member = w.repair(n.additionalProperties, member)
		}
		return member
	})
	if n.ifSchema != nil {
		branch := n.elseSchema
		if w.isValid(n.ifSchema, v) {
			branch = n.then
		}
		if branch != nil {
			v = w.repairWithin(branch, v)
		}
	}
	for _, d := range n.dependencies {
		if d.node != nil && v.member(d.name) != nil {
			v = w.repairWithin(d.node, v)
		}
	}
	return v
}

// replaceItems returns v with each item, or value of a member, replaced by the result of replace for its index. It
// returns v itself if replace returns every item unchanged.
func (v *value) replaceItems(replace func(int, *value) *value) *value {
	var items []*value
	for i, item := range v.items {
		replacement := replace(i, item)
		if replacement == item {
			continue
		}
		if items == nil {
			items = slices.Clone(v.items) // values are immutable
		}
		items[i] = replacement
	}
	if items == nil {
		return v
	}
	return v.withItems(items)
}
