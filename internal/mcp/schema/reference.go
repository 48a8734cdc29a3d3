package schema

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// reference is a $ref, or a $dynamicRef, and where it stands.
type reference struct {
	from    *node
	base    *url.URL
	to      string
	dynamic bool
}

// base is what a schema without an $id is called. It leads nowhere.
func base() *url.URL { return &url.URL{Scheme: "answerd", Path: "/schema"} }

// index notes the resources and anchors of the schemas from v on, and their references
// (draft 2020-12 core, 8.2; draft-07, 8.2).
func (c *compiler) index(v *value, in *url.URL) error {
	if len(c.byID) == 0 {
		c.resources = 1
		c.byID[in.String()] = v // also where the root has a name of its own
	}
	if v.kind != object {
		return nil
	}
	ref, id := v.string("$ref"), v.string("$id")
	if c.draft7 && ref != "" {
		id = "" // draft-07, 8.3: what stands beside a reference is ignored
	}
	if c.draft7 && strings.Contains(id, "#") { // how draft-07 writes anchors
		_, anchor, _ := strings.Cut(id, "#")
		c.anchors[in.String()+"#"+anchor] = v
	} else if id != "" {
		u, err := url.Parse(id)
		if err != nil {
			return errors.New("an $id in it is no URI")
		}
		in = in.ResolveReference(u)
		if v != c.order[0] {
			c.resources++
		}
		c.byID[in.String()] = v
	}
	if !c.draft7 {
		for _, name := range []string{"$anchor", "$dynamicAnchor"} {
			if anchor := v.string(name); anchor != "" {
				c.anchors[in.String()+"#"+anchor] = v
			}
		}
	}
	if ref != "" {
		c.refs = append(c.refs, reference{c.nodes[v], in, ref, false})
	}
	if to := v.string("$dynamicRef"); to != "" && !c.draft7 {
		c.refs = append(c.refs, reference{c.nodes[v], in, to, true})
	}
	return children(v, func(s *value) error { return c.index(s, in) })
}

// link makes references lead to their nodes.
func (c *compiler) link() error {
	for _, r := range c.refs {
		// Within one resource it is a $ref. Across several it depends on the way that
		// led to it (draft 2020-12 core, 8.2.3.2), which no tool has been seen to need.
		if r.dynamic && c.resources > 1 {
			return errors.New("it has a $dynamicRef and several resources")
		}
		u, err := url.Parse(r.to)
		if err != nil {
			return errors.New("a reference in it is no URI")
		}
		u = r.base.ResolveReference(u)
		fragment := u.Fragment
		u.Fragment, u.RawFragment = "", ""
		target := c.byID[u.String()]
		switch {
		case target == nil:
		case fragment == "" || fragment[0] == '/':
			target = target.pointed(fragment)
		default:
			target = c.anchors[u.String()+"#"+fragment]
		}
		to := c.nodes[target]
		if target == nil || to == nil {
			return fmt.Errorf("a reference in it leads nowhere: %s", printable(r.to, 80))
		}
		if r.from.ref == nil {
			r.from.ref = to
		} else { // both keywords
			r.from.allOf = append(r.from.allOf, to)
		}
	}
	return nil
}

// has reports whether a pointer leads to something in v, or to where a field of an object
// in it would be.
func (v *value) has(pointer string) bool {
	if v.pointed(pointer) != nil {
		return true
	}
	in := v.pointed(pointer[:max(0, strings.LastIndexByte(pointer, '/'))])
	return in != nil && in.kind == object
}

// pointed is what a JSON pointer leads to; nil where that is nothing.
func (v *value) pointed(pointer string) *value {
	if pointer == "" {
		return v
	}
	for _, name := range strings.Split(pointer[1:], "/") {
		name = strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~")
		switch v.kind {
		case object:
			if v = v.get(name); v == nil {
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
