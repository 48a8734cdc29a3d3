package schema

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// reference is a $ref, a $dynamicRef, or a $recursiveRef (draft 2019-09 core, 8.2.4.2).
type reference struct {
	keyword string   // its name
	from    *node    // of the schema that has the reference
	base    *url.URL // uri is relative to it
	uri     string   // the value of the keyword
}

// baseURI returns the base URI of a schema without an $id. Nothing is ever fetched from it.
func baseURI() *url.URL { return &url.URL{Scheme: "answerd", Path: "/schema"} }

// indexIDs records the resources, anchors and references of v and of the schemas in it (draft
// 2020-12 core, 8.2; draft-07, 8.2). base is the base URI of v. The first call must be for the root.
func (c *compiler) indexIDs(v *value, base *url.URL) error {
	if len(c.byID) == 0 {
		c.resources = 1
		c.byID[base.String()] = v // baseURI leads to the root even if the root has an $id
	}
	if v.kind != object {
		return nil
	}
	id := v.keywordString("$id")
	if c.draft7 && v.keywordString("$ref") != "" {
		id = "" // in draft-07, keywords beside a reference are ignored (8.3)
	}
	if c.draft7 && strings.Contains(id, "#") { // draft-07 has no $anchor: the fragment of $id names an anchor (8.2.3)
		_, anchor, _ := strings.Cut(id, "#")
		c.anchors[base.String()+"#"+anchor] = v
	} else if id != "" {
		u, err := url.Parse(id)
		if err != nil {
			return errors.New("it has an $id that is not a URI")
		}
		base = base.ResolveReference(u)
		isRoot := v == c.order[0]
		if !isRoot { // the root has been counted already
			c.resources++
		}
		c.byID[base.String()] = v
	}
	if !c.draft7 {
		for _, name := range []string{"$anchor", "$dynamicAnchor"} {
			if anchor := v.keywordString(name); anchor != "" {
				c.anchors[base.String()+"#"+anchor] = v
			}
		}
	}
	c.indexReferences(v, base)
	for _, s := range subschemas(v) {
		if err := c.indexIDs(s, base); err != nil {
			return err
		}
	}
	return nil
}

// indexReferences adds the references of v to c.refs. base is the base URI of v.
func (c *compiler) indexReferences(v *value, base *url.URL) {
	for _, keyword := range []string{"$ref", "$dynamicRef", "$recursiveRef"} {
		uri := v.keywordString(keyword)
		if uri != "" && (keyword == "$ref" || !c.draft7) {
			c.refs = append(c.refs, reference{keyword: keyword, from: c.nodes[v], base: base, uri: uri})
		}
	}
}

// resolveReferences sets the field ref of each node with a reference to the node that the reference leads to. The
// target of a second reference in the same schema is added to allOf, which has the same effect.
//
// Whether a reference leads back to itself for the same value is checked later (checkCost): a cycle can consist of
// several references, which must all be resolved first.
func (c *compiler) resolveReferences() error {
	for _, ref := range c.refs {
		// With one resource, the other keywords mean the same as $ref. With several, the target depends on
		// the dynamic scope (draft 2020-12 core, 8.2.3.2), which no known tool uses.
		if ref.keyword != "$ref" && c.resources > 1 {
			return fmt.Errorf("it has a %s and several resources", ref.keyword)
		}
		target, err := c.findTarget(ref)
		if err != nil {
			return err
		}
		if ref.from.ref == nil {
			ref.from.ref = target
		} else {
			ref.from.allOf = append(ref.from.allOf, target)
		}
	}
	return nil
}

// findTarget returns the node of the schema that a reference leads to. The error means that the document has no such
// schema; other documents are not considered. A fragment is a JSON pointer if it is empty or begins with a slash, and
// the name of an anchor otherwise (draft 2020-12 core, 8.2.2 and 8.2.3).
func (c *compiler) findTarget(ref reference) (*node, error) {
	uri, err := url.Parse(ref.uri)
	if err != nil {
		return nil, errors.New("it has a reference that is not a URI")
	}
	uri = ref.base.ResolveReference(uri)
	fragment := uri.Fragment
	uri.Fragment, uri.RawFragment = "", ""
	target := c.byID[uri.String()]
	switch {
	case target == nil:
	case fragment == "" || fragment[0] == '/':
		target = target.resolvePointer(fragment)
	default:
		target = c.anchors[uri.String()+"#"+fragment]
	}
	if n := c.nodes[target]; n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("it has a reference to nothing: %s", printable(ref.uri, 80))
}

// hasLocation reports whether a pointer leads to a value in v, or to a field that an object in v
// lacks: that is where a Problem reports a missing field.
func (v *value) hasLocation(pointer string) bool {
	if v.resolvePointer(pointer) != nil {
		return true
	}
	parent := v.resolvePointer(pointer[:max(0, strings.LastIndexByte(pointer, '/'))])
	return parent != nil && parent.kind == object
}

// resolvePointer returns the value in v that a JSON pointer (RFC 6901) leads to, or nil if v has no such
// value. The pointer is empty or begins with a slash.
func (v *value) resolvePointer(pointer string) *value {
	if pointer == "" {
		return v
	}
	for _, name := range strings.Split(pointer[1:], "/") {
		name = strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~")
		switch v.kind {
		case object:
			v = v.member(name)
			if v == nil {
				return nil
			}
		case array:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(v.items) {
				return nil
			}
			v = v.items[i]
		default:
			return nil
		}
	}
	return v
}
