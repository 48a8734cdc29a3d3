package schema

import (
	"fmt"
	"strings"
)

// compiler turns the JSON of a schema into nodes.
type compiler struct {
	draft7   bool
	notes    bool
	patterns map[string]*pattern // nil: Go doesn't understand it
	size     int                 // of all patterns
	nodes    map[*value]*node    // of every schema in the tree
	order    []*value            // in which they were found
	byID     map[string]*value   // the resources, by URI
	anchors  map[string]*value   // by URI and fragment
	refs     []reference

	resources int
}

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
	c.order = append(c.order, v)
	if v.kind != object {
		return nil
	}
	if err := checkKeywords(v); err != nil {
		return err
	}
	if x := v.string("pattern"); x != "" {
		if err := c.pattern(x); err != nil {
			return err
		}
	}
	if p := v.keyword("patternProperties"); p != nil {
		for _, x := range p.names {
			if err := c.pattern(x); err != nil {
				return err
			}
			if c.patterns[x] == nil { // it decides what is an additional property
				return fmt.Errorf("an expression of patternProperties in it is not understood: %s", printable(x, 80))
			}
		}
	}
	return children(v, c.read)
}
