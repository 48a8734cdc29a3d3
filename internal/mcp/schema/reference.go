package schema

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// reference is a $ref, a $dynamicRef, or a $recursiveRef (draft 2019-09 core, 8.2.4.2).
type reference struct {
	keyword string   // the keyword's name
	from    *node    // the schema that contains the reference
	base    *url.URL // the base URI, against which uri is resolved
	uri     string   // the keyword's value
}

// baseURI returns the base URI of a root schema without an $id. It only serves to resolve references. Nothing is
// fetched from it.
func baseURI() *url.URL { return &url.URL{Scheme: "answerd", Path: "/schema"} }

// indexIDs records the resources, anchors and references of v and of all schemas within it (draft 2020-12 core, 8.2;
// draft-07, 8.2). base is the base URI that applies to v. The first call must be for the root schema.
func (c *compiler) indexIDs(v *value, base *url.URL) error {
	if len(c.byID) == 0 {
		c.resources = 1
		c.byID[base.String()] = v // baseURI refers to the root even if the root has an $id
	}
	if v.kind != object {
		return nil
	}
	id := v.keywordString("$id")
	if c.draft7 && v.keywordString("$ref") != "" {
		id = "" // in draft-07, keywords beside a reference are ignored (8.3)
	}
	anchors := []string{v.keywordString("$anchor"), v.keywordString("$dynamicAnchor")}
	if c.draft7 {
		// draft-07 has no $anchor. The fragment of $id names an anchor instead (8.2.3), and such an $id is no base URI.
		_, fragment, hasFragment := strings.Cut(id, "#")
		anchors = nil
		if hasFragment {
			c.anchors[base.String()+"#"+fragment] = v
			id = ""
		}
	}
	if id != "" {
		uri, err := url.Parse(id)
		if err != nil {
			return errors.New("it has an $id that is not a URI")
		}
		base = base.ResolveReference(uri)
		isRoot := v == c.order[0]
		if !isRoot { // the root has been counted already
			c.resources++
		}
		c.byID[base.String()] = v
	}
	for _, anchor := range anchors {
		if anchor != "" {
			c.anchors[base.String()+"#"+anchor] = v
		}
	}
	c.indexReferences(v, base)
	for subschema := range v.subschemas(nil) {
		if err := c.indexIDs(subschema, base); err != nil {
			return err
		}
	}
	return nil
}

// indexReferences adds the references in v to c.refs. base is the base URI that applies to v.
func (c *compiler) indexReferences(v *value, base *url.URL) {
	for _, keyword := range []string{"$ref", "$dynamicRef", "$recursiveRef"} {
		uri := v.keywordString(keyword)
		if uri != "" && (keyword == "$ref" || !c.draft7) {
			c.refs = append(c.refs, reference{keyword: keyword, from: c.nodes[v], base: base, uri: uri})
		}
	}
}

// resolveReferences sets node.ref to the target of the schema's reference. If a schema has both $ref and $dynamicRef,
// the second target is added to allOf, which has the same effect.
//
// It does not reject a reference that leads back to itself for the same value. Such a cycle can consist of several
// references, so checkCost looks for it once all references are resolved.
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

// findTarget returns the node of the schema that ref refers to. It returns an error if the document has no such schema.
// It does not consider other documents. A fragment is a JSON pointer if it is empty or begins with a slash, and
// otherwise an anchor's name (draft 2020-12 core, 8.2.2 and 8.2.3).
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
	if found := c.nodes[target]; found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("it has a reference to nothing: %s", printable(ref.uri, 80))
}

// hasLocation reports whether pointer refers to a value in v, or to a field that an object in v lacks, which is where a
// Problem reports a missing field.
func (v *value) hasLocation(pointer string) bool {
	if v.resolvePointer(pointer) != nil {
		return true
	}
	parentPointer := pointer[:max(0, strings.LastIndexByte(pointer, '/'))]
	parent := v.resolvePointer(parentPointer)
	return parent != nil && parent.kind == object
}

// resolvePointer returns the value in v to which a JSON pointer (RFC 6901) refers, or nil if v has no such value.
// pointer must be empty or begin with a slash.
func (v *value) resolvePointer(pointer string) *value {
	for name := range jsontext.Pointer(pointer).Tokens() {
		v = v.child(name)
		if v == nil {
			return nil
		}
	}
	return v
}

// child returns the member of the object v called name, or the item of the array v whose index name is. It returns nil
// if v has no such value.
func (v *value) child(name string) *value {
	if v.kind != array {
		return v.member(name)
	}
	i, err := strconv.Atoi(name)
	if err != nil || i < 0 || i >= len(v.items) {
		return nil
	}
	return v.items[i]
}
