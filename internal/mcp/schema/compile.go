package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// compiler turns the JSON of a schema into nodes.
type compiler struct {
	draft7   bool
	notes    bool
	patterns map[string]*pattern // nil: Go doesn't understand it
	size     int                 // of all patterns
	bytes    int                 // of all schemas, those within others counted again
	nodes    map[*value]*node    // of every schema in the tree
	order    []*value            // in which they were found
	byID     map[string]*value   // the resources, by URI
	anchors  map[string]*value   // by URI and fragment
	refs     []reference

	resources int
}

// draft7URI is how the library knows draft-07.
const draft7URI = "http://json-schema.org/draft-07/schema#"

func (c *compiler) compile(tree *value) (*node, error) {
	if !tree.isSchema() {
		return nil, fmt.Errorf("it is %s", describe(tree))
	}
	// Drafts 04 and 06 are read as 07, which they hardly differ from; everything else,
	// and no word about it, as the newest.
	for _, old := range []string{"draft-04", "draft-06", "draft-07"} {
		c.draft7 = c.draft7 || strings.Contains(tree.string("$schema"), old)
	}
	if err := c.read(tree); err != nil {
		return nil, err
	}
	if err := c.index(tree, base()); err != nil {
		return nil, err
	}
	if err := c.link(); err != nil {
		return nil, err
	}
	if _, err := c.judge(tree); err != nil {
		return nil, err
	}
	for _, v := range c.order {
		c.build(c.nodes[v], v)
	}
	return c.nodes[tree], c.bounded()
}

// read finds every schema in the tree, and its patterns.
func (c *compiler) read(v *value) error {
	if c.nodes[v] = (&node{}); len(c.nodes) > maxNodes {
		return fmt.Errorf("it has more than %d schemas in it", maxNodes)
	}
	if c.bytes += len(v.raw); c.bytes > maxNested {
		return errors.New("it is too large for its depth")
	}
	c.order = append(c.order, v)
	if v.kind != object {
		return nil
	}
	var expressions []string
	if x := v.string("pattern"); x != "" { // which is none to the library
		expressions = append(expressions, x)
	}
	if p := v.keyword("patternProperties"); p != nil {
		expressions = append(expressions, p.names...)
	}
	for _, x := range expressions {
		if err := c.pattern(x); err != nil {
			return err
		}
	}
	return children(v, c.read)
}

// judge is the schema as the library has it, which says whether its keywords are what
// they should be and its references lead somewhere within it.
func (c *compiler) judge(tree *value) (*jsonschema.Resolved, error) {
	var s jsonschema.Schema
	err := json.Unmarshal(c.understood(tree).render(nil), &s)
	if bad, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		// The library's own words are about its Go types.
		return nil, fmt.Errorf("%q in it cannot be a %s", bad.Field[strings.LastIndexByte(bad.Field, '.')+1:], bad.Value)
	}
	if err != nil {
		return nil, fmt.Errorf("it does not decode: %s", printable(err.Error(), 200))
	}
	if s.Schema = ""; c.draft7 {
		s.Schema = draft7URI
	}
	r, err := s.Resolve(&jsonschema.ResolveOptions{BaseURI: baseURI})
	if err != nil {
		return nil, fmt.Errorf("it cannot be used: %s", printable(err.Error(), 200))
	}
	return r, nil
}

// understood is the schema without the patterns that Go doesn't understand, such as
// those that look ahead: the rest is worth checking without them.
func (c *compiler) understood(v *value) *value {
	if v.kind != object && v.kind != array {
		return v
	}
	items, changed := make([]*value, len(v.items)), false
	for i, item := range v.items {
		items[i] = item
		if v.kind == object && v.names[i] == "pattern" && item.kind == text && c.patterns[item.text] == nil {
			items[i] = (&value{kind: text, raw: []byte(`""`)}).inPlaceOf(item)
		} else {
			items[i] = c.understood(item)
		}
		changed = changed || items[i] != item
	}
	if !changed {
		return v
	}
	return v.with(items)
}
