package schema

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Bounds of a schema and of a value. A schema comes from an MCP server or a caller, and a value from a
// model or a server, so each of them may be made to exhaust the process. maxDepth, together with
// maxCost further down, bounds the recursion and so the stack. maxSteps bounds the time, and the others
// bound memory.
const (
	maxSchema   = 256 << 10 // bytes of a schema
	maxNodes    = 8192      // subschemas
	maxDepth    = 64        // levels of nesting, of schemas and of values
	maxValues   = 200_000   // values within a value
	maxSteps    = 500_000   // of one Check: about 50 ms at worst
	maxProblems = 20        // that are reported
)

// Schema is a compiled JSON Schema. Compile returns one; the zero value is not usable. It never
// changes, so the validators of any number of goroutines can read it.
type Schema struct {
	root            *node
	draft7          bool
	tracksEvaluated bool // it has unevaluatedItems or unevaluatedProperties
}

// compiler converts the JSON of a schema to nodes, in three passes: find all schemas and compile
// their patterns, index the names that references can use and resolve the references, and build
// the nodes. A reference may point forward, so no pass can be merged with the next. nodes and order
// have only the values at places where the drafts expect a schema. A reference into anything else,
// such as an example or a member that no draft defines, is therefore a reference to nothing.
type compiler struct {
	draft4, draft7  bool // draft7 is set for draft-04, too
	tracksEvaluated bool
	patterns        map[string]*pattern // nil if package regexp does not support the expression
	size            int                 // states of all patterns
	nodes           map[*value]*node    // of all schemas in the tree
	order           []*value            // the schemas in the order of the document
	byID            map[string]*value   // the schema resources, by URI
	anchors         map[string]*value   // by URI and fragment
	refs            []reference         // in the order of the document
	resources       int                 // number of schema resources, including the root
}

// compile returns the node of the root schema.
func (c *compiler) compile(tree *value) (*node, error) {
	if !tree.isSchema() {
		return nil, fmt.Errorf("it is %s", describeValue(tree))
	}
	// Drafts 04 and 06 hardly differ from draft-07 and are treated like it, except for exclusive bounds of numbers.
	// All other schemas, also those without $schema, are treated as 2020-12.
	c.draft4 = strings.Contains(tree.keywordString("$schema"), "draft-04")
	for _, old := range []string{"draft-04", "draft-06", "draft-07"} {
		c.draft7 = c.draft7 || strings.Contains(tree.keywordString("$schema"), old)
	}
	if err := c.collectSchemas(tree); err != nil {
		return nil, err
	}
	if err := c.indexIDs(tree, baseURI()); err != nil {
		return nil, err
	}
	if err := c.resolveReferences(); err != nil {
		return nil, err
	}
	for _, v := range c.order {
		c.buildNode(c.nodes[v], v)
	}
	return c.nodes[tree], c.checkCost()
}

// collectSchemas creates an empty node for each schema in the tree, checks the types of its
// keywords, and compiles its patterns.
func (c *compiler) collectSchemas(v *value) error {
	c.nodes[v] = &node{}
	if len(c.nodes) > maxNodes {
		return fmt.Errorf("it has more than %d schemas in it", maxNodes)
	}
	c.order = append(c.order, v)
	if v.kind != object {
		return nil
	}
	if err := c.checkKeywords(v); err != nil {
		return err
	}
	if x := v.keywordString("pattern"); x != "" {
		if err := c.compilePattern(x); err != nil {
			return err
		}
	}
	if p := v.keyword("patternProperties"); p != nil {
		for _, x := range p.names {
			if err := c.compilePattern(x); err != nil {
				return err
			}
			if c.patterns[x] == nil { // without it, additional properties cannot be determined
				return fmt.Errorf("it has an unsupported regular expression in patternProperties: %s", printable(x, 80))
			}
		}
	}
	return eachSubschema(v, c.collectSchemas)
}

// node is one compiled schema. It has only the keywords that restrict values. The zero value of a
// field restricts nothing.
type node struct {
	ref         *node // $ref, or $dynamicRef, which is the same if there is only one resource
	alwaysFalse bool  // the schema false

	kinds    kind // 0: any
	enum     []*value
	constant *value

	multipleOf, minimum, maximum, exclusiveMinimum, exclusiveMaximum *value
	minLength, maxLength                                             *int
	pattern                                                          *pattern

	prefix                   []*node
	items, contains          *node // items applies after prefix
	minContains, maxContains *int
	minItems, maxItems       *int
	unique                   bool
	unevaluatedItems         *node

	properties                          map[string]*node
	names                               []string // of properties, in order
	patterns                            []patternNode
	additionalProperties, propertyNames *node
	required                            []string
	minProperties, maxProperties        *int
	dependencies                        []dependency
	unevaluatedProperties               *node

	allOf, anyOf, oneOf             []*node
	not, ifSchema, then, elseSchema *node // if, then, else
}

// pattern is a compiled regular expression and its number of states.
type pattern struct {
	*regexp.Regexp
	size int
}

// patternNode is a schema for the properties whose names match a pattern.
type patternNode struct {
	pattern *pattern
	node    *node
}

// dependency has the requirements for objects that have a member with that name.
type dependency struct {
	name     string
	required []string
	node     *node
}

// kindNames has the types that a schema can name.
var kindNames = map[string]kind{
	"null": null, "boolean": boolean, "integer": integer, "number": number, "string": text, "array": array, "object": object,
}

// buildNode fills the node of a schema whose keywords have been checked.
func (c *compiler) buildNode(n *node, v *value) {
	if v.kind == boolean {
		n.alwaysFalse = v.raw[0] == 'f'
		return
	}
	if t := v.keyword("type"); t != nil {
		n.kinds = namedKinds(t)
	}
	if e := v.keyword("enum"); e != nil {
		n.enum = e.items
		n.alwaysFalse = n.alwaysFalse || len(e.items) == 0
	}
	n.constant = v.member("const")
	n.minimum, n.exclusiveMinimum = bounds(v.keyword("minimum"), v.keyword("exclusiveMinimum"))
	n.maximum, n.exclusiveMaximum = bounds(v.keyword("maximum"), v.keyword("exclusiveMaximum"))
	n.multipleOf = v.keyword("multipleOf")
	if n.multipleOf != nil && n.multipleOf.float <= 0 {
		n.multipleOf = nil // not allowed (draft 2020-12 validation, 6.2.1), so ignored
	}
	n.minLength, n.maxLength = v.keywordCount("minLength"), v.keywordCount("maxLength")
	n.pattern = c.patterns[v.keywordString("pattern")]
	c.buildArray(n, v)
	c.buildObject(n, v)
	n.allOf = append(n.allOf, c.childSchemas(v, "allOf")...)
	n.anyOf, n.oneOf = c.childSchemas(v, "anyOf"), c.childSchemas(v, "oneOf")
	n.not = c.childSchema(v, "not")
	n.ifSchema = c.childSchema(v, "if")
	if n.ifSchema != nil {
		n.then, n.elseSchema = c.childSchema(v, "then"), c.childSchema(v, "else")
	}
	c.tracksEvaluated = c.tracksEvaluated || n.unevaluatedItems != nil || n.unevaluatedProperties != nil
}

// bounds returns the inclusive and the exclusive bound of numbers that a pair of keywords has. In draft-04 the second one
// says whether the first one is exclusive (draft-04 validation, 5.1.2 and 5.1.3).
func bounds(bound, exclusive *value) (inclusiveBound, exclusiveBound *value) {
	switch {
	case exclusive == nil || exclusive.kind != boolean:
		return bound, exclusive
	case exclusive.raw[0] == 't':
		return nil, bound
	}
	return bound, nil
}

// namedKinds returns the types that the value of the keyword type names; 0, which restricts nothing, if one of
// them does not exist. Servers write "any" or "date", and only they know what fits.
func namedKinds(t *value) (kinds kind) {
	names := t.items
	if t.kind == text {
		names = []*value{t}
	}
	for _, name := range names {
		one, exists := kindNames[name.text]
		if !exists {
			return 0
		}
		kinds |= one
	}
	return kinds
}

// buildArray fills in the keywords for arrays. The keyword items has two meanings in draft-07
// (6.4.1); in 2020-12 one of them is prefixItems.
func (c *compiler) buildArray(n *node, v *value) {
	n.contains = c.childSchema(v, "contains")
	n.minContains, n.maxContains = v.keywordCount("minContains"), v.keywordCount("maxContains")
	n.minItems, n.maxItems = v.keywordCount("minItems"), v.keywordCount("maxItems")
	unique := v.keyword("uniqueItems")
	n.unique = unique != nil && unique.raw[0] == 't'
	n.unevaluatedItems = c.childSchema(v, "unevaluatedItems")
	items := v.keyword("items")
	switch {
	case !c.draft7:
		n.prefix = c.childSchemas(v, "prefixItems")
		n.items = c.childSchema(v, "items")
	case items != nil && items.kind == array: // draft-07, 6.4.1
		n.prefix, n.items = c.childSchemas(v, "items"), c.childSchema(v, "additionalItems")
	default:
		n.items = c.childSchema(v, "items")
	}
}

// buildObject fills in the keywords for objects.
func (c *compiler) buildObject(n *node, v *value) {
	if p := v.keyword("properties"); p != nil {
		n.properties = make(map[string]*node, len(p.names))
		for i, name := range p.names {
			if s := c.nodes[p.items[i]]; s != nil {
				n.properties[name] = s
				n.names = append(n.names, name)
			}
		}
	}
	if p := v.keyword("patternProperties"); p != nil {
		for i, x := range p.names {
			if s := c.nodes[p.items[i]]; s != nil {
				n.patterns = append(n.patterns, patternNode{c.patterns[x], s})
			}
		}
	}
	n.additionalProperties = c.childSchema(v, "additionalProperties")
	n.propertyNames = c.childSchema(v, "propertyNames")
	n.unevaluatedProperties = c.childSchema(v, "unevaluatedProperties")
	n.required = v.keywordStrings("required")
	n.minProperties, n.maxProperties = v.keywordCount("minProperties"), v.keywordCount("maxProperties")
	keywords := []string{"dependentRequired", "dependentSchemas"}
	if c.draft7 {
		keywords = []string{"dependencies"} // both in one (draft-07, 6.5.7)
	}
	for _, keyword := range keywords {
		d := v.keyword(keyword)
		for i := 0; d != nil && i < len(d.names); i++ {
			n.dependencies = append(n.dependencies, dependency{d.names[i], d.keywordStrings(d.names[i]), c.nodes[d.items[i]]})
		}
	}
}

// childSchema returns the node of a keyword that is a schema, or nil if there is none.
func (c *compiler) childSchema(v *value, name string) *node {
	if s := v.keyword(name); s != nil {
		return c.nodes[s]
	}
	return nil
}

// childSchemas returns the nodes of a keyword that is a list of schemas.
func (c *compiler) childSchemas(v *value, name string) []*node {
	l := v.keyword(name)
	if l == nil || l.kind != array {
		return nil
	}
	var out []*node
	for _, s := range l.items {
		if n := c.nodes[s]; n != nil {
			out = append(out, n)
		}
	}
	return out
}

// keywordCount returns the integer value of a keyword, or nil if there is none. A schema may write
// it as 2.0.
func (v *value) keywordCount(name string) *int {
	k := v.keyword(name)
	if k == nil {
		return nil
	}
	n := int(k.float)
	return &n
}

// keywordStrings returns the strings in a keyword that is a list of them, each once.
func (v *value) keywordStrings(name string) []string {
	k := v.keyword(name)
	if k == nil || k.kind != array {
		return nil
	}
	var out []string
	seen := make(map[string]bool, len(k.items))
	for _, s := range k.items {
		if !seen[s.text] {
			seen[s.text] = true
			out = append(out, s.text)
		}
	}
	return out
}

// maxCost bounds the number of schemas that check one value. A schema counts as often as
// alternatives and references lead to it.
const maxCost = 10_000

var (
	errEndlessReference    = errors.New("it has a reference that leads back to itself")
	errTooManyAlternatives = errors.New("it has too many alternatives")
)

// checkCost refuses schemas whose check of one value would not end in reasonable time: references
// that lead back to themselves for the same value, and alternatives that multiply. A reference
// below a property or an item is no problem, because each step needs a level of the value.
//
// The cost of a node is the number of nodes that check the same value because of it, so an allOf of
// two references to an allOf of two references counts four times. It is computed once per node. A
// node whose cost is asked for while it is being computed leads back to itself: the recursion of
// validate would never end, and no bound on the value would stop it. maxSteps would, but only in the
// middle of a run, and for every value.
func (c *compiler) checkCost() error {
	costs := make(map[*node]int, len(c.nodes))
	const inProgress = -1
	var cost func(n *node) (int, error)
	cost = func(n *node) (int, error) {
		known := costs[n]
		switch {
		case known == inProgress:
			return 0, errEndlessReference
		case known > 0:
			return known, nil
		}
		costs[n] = inProgress
		sum := 1
		for _, s := range n.sameValueNodes() {
			more, err := cost(s)
			if err != nil {
				return 0, err
			}
			sum += more
			if sum > maxCost {
				return 0, errTooManyAlternatives
			}
		}
		costs[n] = sum
		return sum, nil
	}
	for _, v := range c.order {
		if _, err := cost(c.nodes[v]); err != nil {
			return err
		}
	}
	return nil
}

// sameValueNodes returns the nodes that check the same value as n, and not a part of it.
func (n *node) sameValueNodes() []*node {
	all := slices.Concat([]*node{n.ref, n.not, n.ifSchema, n.then, n.elseSchema}, n.allOf, n.anyOf, n.oneOf)
	for _, d := range n.dependencies {
		all = append(all, d.node)
	}
	return slices.DeleteFunc(all, func(s *node) bool { return s == nil })
}
