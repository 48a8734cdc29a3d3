package schema

import (
	"slices"
	"strings"
)

// repair replaces invalid strings in v by the JSON values that they contain, wherever such a value is valid for its
// place in the schema n. It converts nothing else. Nothing is lost, because the JSON text of a number has all its
// digits. It returns v itself if it replaced nothing. The result may still be invalid, because other parts of v may be
// wrong.
//
// At each level, repair validates the value, which visits all levels below it. Its time therefore grows with the square
// of the depth, and with the number of alternatives that it tries. All these visits count as steps. When the steps run
// out, repair returns the remaining values unchanged.
func (w *validator) repair(n *node, v *value) *value {
	if w.outOfSteps || w.isValid(n, v) {
		return v
	}
	// First repair the values within v. If v is still invalid, it may itself be a string that contains JSON.
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

// parseText parses the JSON text in the string v. It returns nil if v is not a string or its content is not JSON. It
// also returns nil if the content is a JSON string, because v already is a string. White space around an array or
// object is ignored. Around any other value it may be part of the text, so parseText returns nil.
func parseText(v *value) *value {
	if v.kind != text {
		return nil
	}
	trimmed := strings.TrimSpace(v.text)
	isString := strings.HasPrefix(trimmed, `"`)
	isContainer := strings.HasPrefix(trimmed, "[") || strings.HasPrefix(trimmed, "{")
	hasSpace := trimmed != v.text
	if isString || hasSpace && !isContainer {
		return nil
	}
	parsed, problem := parseJSON([]byte(trimmed), refuseDuplicates)
	if problem != nil {
		return nil
	}
	return parsed
}

// repairWithin returns v with its items or members repaired for n and for the schemas that n combines. It replaces v
// itself only if that makes v valid for an alternative of anyOf or oneOf. If the steps run out, it returns v unchanged.
func (w *validator) repairWithin(n *node, v *value) *value {
	if !w.countSteps(1) {
		return v // w.outOfSteps makes the whole check fail
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
	v = w.repairAlternative(n.anyOf, v, atLeastOne)
	v = w.repairAlternative(n.oneOf, v, exactlyOne)
	switch v.kind {
	case array:
		return w.repairItems(n, v)
	case object:
		return w.repairMembers(n, v)
	}
	return v
}

// matchRule says how many alternatives must accept a value.
type matchRule bool

const (
	atLeastOne matchRule = false // anyOf
	exactlyOne matchRule = true  // oneOf
)

// repairAlternative repairs v so that the alternatives of an anyOf or a oneOf accept it according to rule. It tries to
// repair v for each alternative in order, and returns the first result that conforms. It returns v itself if an
// alternative already accepts v, or if no repair succeeds.
func (w *validator) repairAlternative(alternatives []*node, v *value, rule matchRule) *value {
	if w.countMatches(alternatives, v) > 0 {
		return v
	}
	for _, alternative := range alternatives {
		repaired := w.repair(alternative, v)
		if repaired == v {
			continue
		}
		matches := w.countMatches(alternatives, repaired)
		if matches == 1 || matches > 1 && rule == atLeastOne {
			return repaired
		}
	}
	return v
}

// countMatches returns the number of alternatives that accept v.
func (w *validator) countMatches(alternatives []*node, v *value) int {
	matches := 0
	for _, s := range alternatives {
		if w.isValid(s, v) {
			matches++
		}
	}
	return matches
}

// repairItems returns the array v with each item repaired according to n's schema for that item.
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

// repairMembers returns the object v with its members repaired. It applies the keyword if and the dependencies last,
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

// replaceItems returns v with each item, or member value, replaced by what replace returns for its index. It returns v
// itself if replace returns every item unchanged.
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
