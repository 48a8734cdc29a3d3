package schema

import (
	"strings"
)

// repair returns the value with its invalid strings replaced by the JSON value that they contain, if that
// value is valid against n. Nothing is lost, because the JSON text of a value has all its digits.
// Nothing else is ever converted, and valid values stay unchanged. If the repair does not make v valid,
// the caller decides what to do with the result (Check returns the original value then).
//
// Each level asks whether its value is valid, and that visits all levels below. So the time grows with
// the square of the depth, and with each alternative that is tried. All of that counts as steps; when
// they run out, values are returned as they are.
func (w *validator) repair(n *node, v *value) *value {
	if w.outOfSteps || w.isValid(n, v) {
		return v
	}
	// First repair what is in the value. Only if that is not enough, take the whole value for a
	// string that contains JSON.
	if better := w.repairWithin(n, v); better != v {
		v = better
		if w.isValid(n, v) {
			return v
		}
	}
	if meant := parseText(v); meant != nil {
		meant = w.repairWithin(n, meant)
		if w.isValid(n, meant) {
			return meant.withPositionOf(v)
		}
	}
	return v
}

// parseText returns the value whose JSON text a string contains, or nil if it contains none. White
// space around an array or object is layout; around anything else it may be part of the text.
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
	meant, wrong := parseJSON([]byte(trimmed), refuseDuplicates)
	if wrong != nil {
		return nil
	}
	return meant
}

// repairWithin returns the value with the values in it repaired by all schemas that apply to them.
func (w *validator) repairWithin(n *node, v *value) *value {
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

// repairAlternative returns v repaired for the first alternative that makes it valid, and for
// which at most most alternatives are valid: 1 for oneOf.
func (w *validator) repairAlternative(alternatives []*node, v *value, most int) *value {
	fitting := func(v *value) int {
		n := 0
		for _, s := range alternatives {
			if w.isValid(s, v) {
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

// repairItems returns the array with its items repaired.
func (w *validator) repairItems(n *node, v *value) *value {
	return w.replaceItems(v, func(i int, item *value) *value {
		switch {
		case i < len(n.prefix):
			return w.repair(n.prefix[i], item)
		case n.items != nil:
			return w.repair(n.items, item)
		}
		return item
	})
}

// repairMembers returns the object with its members repaired. The keywords if and dependencies come last,
// because the repaired members decide which of their schemas apply.
func (w *validator) repairMembers(n *node, v *value) *value {
	v = w.replaceItems(v, func(i int, member *value) *value {
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

// replaceItems returns v with each item replaced by the result of by, or v itself if nothing
// changes. It copies the items at the first change, because values are immutable.
func (w *validator) replaceItems(v *value, by func(int, *value) *value) *value {
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
	return v.withItems(items)
}
