package schema

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// reference is a $ref or a $dynamicRef in the schema of the node from. base is the URI that it is
// relative to.
type reference struct {
	from    *node
	base    *url.URL
	to      string
	dynamic bool
}

// baseURI returns the URI of a schema without an $id. Nothing is ever fetched from it.
func baseURI() *url.URL { return &url.URL{Scheme: "answerd", Path: "/schema"} }

// indexIDs records the resources, anchors and references of v and of the schemas in it (draft
// 2020-12 core, 8.2; draft-07, 8.2). in is the base URI of v.
func (c *compiler) indexIDs(v *value, in *url.URL) error {
	if len(c.byID) == 0 {
		c.resources = 1
		c.byID[in.String()] = v // even if the root has an $id
	}
	if v.kind != object {
		return nil
	}
	ref, id := v.keywordString("$ref"), v.keywordString("$id")
	if c.draft7 && ref != "" {
		id = "" // draft-07, 8.3: keywords beside a reference are ignored
	}
	if c.draft7 && strings.Contains(id, "#") { // how draft-07 writes anchors
		_, anchor, _ := strings.Cut(id, "#")
		c.anchors[in.String()+"#"+anchor] = v
	} else if id != "" {
		u, err := url.Parse(id)
		if err != nil {
			return errors.New("it has an $id that is not a URI")
		}
		in = in.ResolveReference(u)
		if v != c.order[0] {
			c.resources++
		}
		c.byID[in.String()] = v
	}
	if !c.draft7 {
		for _, name := range []string{"$anchor", "$dynamicAnchor"} {
			if anchor := v.keywordString(name); anchor != "" {
				c.anchors[in.String()+"#"+anchor] = v
			}
		}
	}
	if ref != "" {
		c.refs = append(c.refs, reference{c.nodes[v], in, ref, false})
	}
	if to := v.keywordString("$dynamicRef"); to != "" && !c.draft7 {
		c.refs = append(c.refs, reference{c.nodes[v], in, to, true})
	}
	return eachSubschema(v, func(s *value) error { return c.indexIDs(s, in) })
}

// resolveReferences sets the target nodes of all references. Targets exist only in the same
// document. A fragment is a JSON pointer if it is empty or begins with a slash, and the name of an
// anchor otherwise (draft 2020-12 core, 8.2.2 and 8.2.3).
//
// That no reference leads back to itself for the same value is not checked here but by checkCost, when
// all nodes have their targets: a cycle can go through several references.
func (c *compiler) resolveReferences() error {
	for _, ref := range c.refs {
		// With one resource, $dynamicRef means the same as $ref. With several, its target depends on
		// the dynamic scope (draft 2020-12 core, 8.2.3.2), which no known tool uses.
		if ref.dynamic && c.resources > 1 {
			return errors.New("it has a $dynamicRef and several resources")
		}
		parsed, err := url.Parse(ref.to)
		if err != nil {
			return errors.New("it has a reference that is not a URI")
		}
		parsed = ref.base.ResolveReference(parsed)
		fragment := parsed.Fragment
		parsed.Fragment, parsed.RawFragment = "", ""
		target := c.byID[parsed.String()]
		switch {
		case target == nil:
		case fragment == "" || fragment[0] == '/':
			target = target.resolvePointer(fragment)
		default:
			target = c.anchors[parsed.String()+"#"+fragment]
		}
		to := c.nodes[target]
		if target == nil || to == nil {
			return fmt.Errorf("it has a reference to nothing: %s", printable(ref.to, 80))
		}
		if ref.from.ref == nil {
			ref.from.ref = to
		} else { // the schema has both keywords
			ref.from.allOf = append(ref.from.allOf, to)
		}
	}
	return nil
}

// hasLocation reports whether a pointer leads to a value in v, or to a field that an object in v
// lacks.
func (v *value) hasLocation(pointer string) bool {
	if v.resolvePointer(pointer) != nil {
		return true
	}
	in := v.resolvePointer(pointer[:max(0, strings.LastIndexByte(pointer, '/'))])
	return in != nil && in.kind == object
}

// resolvePointer returns the value that a JSON pointer (RFC 6901) leads to, or nil if there is
// none.
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
