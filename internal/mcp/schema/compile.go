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
// maxCost further down, bounds the recursion and so the stack. maxSteps bounds the time, and the remaining
// constants bound memory.
const (
	maxSchema   = 256 << 10 // bytes of a schema
	maxNodes    = 8192      // schemas within a schema, including the root
	maxDepth    = 64        // levels of nesting, of schemas and of values
	maxValues   = 200_000   // JSON values within a schema or a checked value
	maxSteps    = 500_000   // steps of the validator in one Check or Validate: about 50 ms at worst
	maxProblems = 20        // problems that are reported for one value
)

// Schema is a compiled JSON Schema. Compile returns one; the zero value is not usable. It never
// changes, so the validators of any number of goroutines can read it.
type Schema struct {
	root            *node
	draft7          bool // the schema is of draft-07, draft-06 or draft-04
	tracksEvaluated bool // the schema has unevaluatedItems or unevaluatedProperties
}

// compiler converts the JSON of a schema to nodes, in three passes: find all schemas and compile
// their patterns, index the names that references can use and resolve the references, and build
// the nodes. A reference may point forward, so no pass can be merged with the next. nodes and order
// have only the values at places where the drafts expect a schema. A reference into anything else,
// such as an example or a member that no draft defines, is therefore a reference to nothing.
type compiler struct {
	draft4          bool                // the schema is of draft-04; draft7 is set, too
	draft7          bool                // the schema is of draft-07, draft-06 or draft-04
	tracksEvaluated bool                // the schema has unevaluatedItems or unevaluatedProperties
	patterns        map[string]*pattern // by expression; nil if package regexp does not support the expression
	patternStates   int                 // sum of the states of all patterns
	nodes           map[*value]*node    // the node of each schema in the tree
	order           []*value            // the schemas in the order of the document; the first one is the root
	byID            map[string]*value   // the schema resources, by URI
	anchors         map[string]*value   // the schemas with anchors, by URI with fragment
	refs            []reference         // in the order of the document
	resources       int                 // number of schema resources, including the root
}

// compile returns the node of the root schema. It may be called once.
func (c *compiler) compile(tree *value) (*node, error) {
	if !tree.isSchema() {
		return nil, fmt.Errorf("it is %s", describeValue(tree))
	}
	// Drafts 04 and 06 hardly differ from draft-07 and are treated like it. The one exception is that exclusiveMinimum
	// and exclusiveMaximum are booleans in draft-04 (see bounds). All other schemas, also those without $schema, are
	// treated as 2020-12.
	declared := tree.keywordString("$schema")
	c.draft4 = strings.Contains(declared, "draft-04")
	c.draft7 = c.draft4 || strings.Contains(declared, "draft-06") || strings.Contains(declared, "draft-07")
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

// collectSchemas creates an empty node for the schema v and for each schema within it, checks the types of their
// keywords, and compiles their patterns.
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
	if expression := v.keywordString("pattern"); expression != "" {
		if err := c.compilePattern(expression); err != nil {
			return err
		}
	}
	if p := v.keyword("patternProperties"); p != nil {
		if err := c.compilePropertyPatterns(p.names); err != nil {
			return err
		}
	}
	for _, s := range subschemas(v) {
		if err := c.collectSchemas(s); err != nil {
			return err
		}
	}
	return nil
}

// compilePropertyPatterns compiles the expressions of patternProperties. It returns an error for an unsupported one:
// without it, the additional properties are unknown. The keyword pattern ignores an unsupported expression instead.
func (c *compiler) compilePropertyPatterns(expressions []string) error {
	for _, expression := range expressions {
		if err := c.compilePattern(expression); err != nil {
			return err
		}
		if c.patterns[expression] == nil {
			return fmt.Errorf("it has an unsupported regular expression in patternProperties: %s", printable(expression, 80))
		}
	}
	return nil
}

// node is one compiled schema. It has only the keywords that restrict values. The zero value of a
// field restricts nothing.
type node struct {
	ref         *node // target of the first reference; further ones are in allOf
	alwaysFalse bool  // no value is valid: the schema false, or an empty enum

	kinds    kind // the keyword type; 0 allows any type
	enum     []*value
	constant *value

	multipleOf, minimum, maximum, exclusiveMinimum, exclusiveMaximum *value
	minLength, maxLength                                             *int
	pattern                                                          *pattern

	prefix                   []*node // for the first items of an array, by index
	items, contains          *node   // items applies to the items after those of prefix
	minContains, maxContains *int
	minItems, maxItems       *int
	unique                   bool
	unevaluatedItems         *node

	properties                          map[string]*node
	names                               []string      // the keys of properties, in the order of the schema
	patterns                            []patternNode // patternProperties
	additionalProperties, propertyNames *node
	required                            []string
	minProperties, maxProperties        *int
	dependencies                        []dependency // dependentRequired and dependentSchemas, or dependencies
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

// dependency has the requirements for objects that have a member called name.
type dependency struct {
	name     string
	required []string // names of further members that the object must have
	node     *node    // a schema for the whole object, or nil
}

// kindNames has the types that the keyword type can name.
var kindNames = map[string]kind{
	"null": null, "boolean": boolean, "integer": integer, "number": number, "string": text, "array": array, "object": object,
}

// buildNode sets the fields of n, the node of the schema v. checkKeywords has checked the types of v's keywords.
// resolveReferences has set n.ref, and n.allOf if v has two references.
func (c *compiler) buildNode(n *node, v *value) {
	if v.kind == boolean {
		n.alwaysFalse = !v.isTrue()
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
		n.multipleOf = nil // the draft does not allow such a value (draft 2020-12 validation, 6.2.1), so ignore it
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

// bounds returns the bounds of the keywords minimum and exclusiveMinimum, or maximum and exclusiveMaximum. nil means no
// bound. In draft-04 the exclusive keyword is a boolean that says whether the other bound is exclusive (draft-04
// validation, 5.1.2 and 5.1.3).
func bounds(bound, exclusive *value) (inclusiveBound, exclusiveBound *value) {
	switch {
	case exclusive == nil || exclusive.kind != boolean:
		return bound, exclusive
	case exclusive.isTrue():
		return nil, bound
	}
	return bound, nil
}

// namedKinds returns the types that the value of the keyword type names. If one of them does not exist, it returns 0,
// which restricts nothing: some servers write "any" or "date", and only they know which values they accept.
func namedKinds(t *value) (kinds kind) {
	names := t.items
	if t.kind == text {
		names = []*value{t}
	}
	for _, name := range names {
		named, exists := kindNames[name.text]
		if !exists {
			return 0
		}
		kinds |= named
	}
	return kinds
}

// buildArray sets the fields of n for the keywords for arrays in v.
func (c *compiler) buildArray(n *node, v *value) {
	n.contains = c.childSchema(v, "contains")
	n.minContains, n.maxContains = v.keywordCount("minContains"), v.keywordCount("maxContains")
	n.minItems, n.maxItems = v.keywordCount("minItems"), v.keywordCount("maxItems")
	unique := v.keyword("uniqueItems")
	n.unique = unique != nil && unique.isTrue()
	n.unevaluatedItems = c.childSchema(v, "unevaluatedItems")
	items := v.keyword("items")
	switch {
	case !c.draft7:
		n.prefix = c.childSchemas(v, "prefixItems")
		n.items = c.childSchema(v, "items")
	case items != nil && items.kind == array:
		// In draft-07, items may be a list with the meaning of prefixItems (6.4.1).
		n.prefix = c.childSchemas(v, "items")
		n.items = c.childSchema(v, "additionalItems")
	default:
		n.items = c.childSchema(v, "items")
	}
}

// buildObject sets the fields of n for the keywords for objects in v.
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
		for i, expression := range p.names {
			if s := c.nodes[p.items[i]]; s != nil {
				n.patterns = append(n.patterns, patternNode{c.patterns[expression], s})
			}
		}
	}
	n.additionalProperties = c.childSchema(v, "additionalProperties")
	n.propertyNames = c.childSchema(v, "propertyNames")
	n.unevaluatedProperties = c.childSchema(v, "unevaluatedProperties")
	n.required = v.keywordStrings("required")
	n.minProperties, n.maxProperties = v.keywordCount("minProperties"), v.keywordCount("maxProperties")
	c.buildDependencies(n, v)
}

// buildDependencies sets n.dependencies from dependentRequired and dependentSchemas of v, or in draft-07 from
// dependencies, whose members are lists of names or schemas (draft-07, 6.5.7).
func (c *compiler) buildDependencies(n *node, v *value) {
	names := []string{"dependentRequired", "dependentSchemas"}
	if c.draft7 {
		names = []string{"dependencies"}
	}
	for _, keyword := range names {
		d := v.keyword(keyword)
		if d == nil {
			continue
		}
		for i, name := range d.names {
			n.dependencies = append(n.dependencies, dependency{
				name: name, required: d.keywordStrings(name), node: c.nodes[d.items[i]],
			})
		}
	}
}

// childSchema returns the node of the keyword name of v, whose value is a schema, or nil if v lacks the keyword.
func (c *compiler) childSchema(v *value, name string) *node {
	if s := v.keyword(name); s != nil {
		return c.nodes[s]
	}
	return nil
}

// childSchemas returns the nodes of the keyword name of v, or nil if v lacks the keyword or its value is not a list of
// schemas. An empty list is nil, too, so an empty anyOf or oneOf restricts nothing.
func (c *compiler) childSchemas(v *value, name string) []*node {
	list := v.keyword(name)
	if list == nil || list.kind != array {
		return nil
	}
	var out []*node
	for _, s := range list.items {
		if n := c.nodes[s]; n != nil {
			out = append(out, n)
		}
	}
	return out
}

// keywordCount returns the integer value of the keyword name, or nil if v lacks the keyword. findMismatch has checked
// that the value is an integer of at most maxCount.
func (v *value) keywordCount(name string) *int {
	k := v.keyword(name)
	if k == nil {
		return nil
	}
	n := int(k.float)
	return &n
}

// keywordStrings returns the strings of the keyword name, without duplicates, in order. It returns nil if v lacks the
// keyword or its value is not a list.
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

// maxCost bounds the cost of a node, which checkCost computes.
const maxCost = 10_000

var (
	errEndlessReference    = errors.New("it has a reference that leads back to itself")
	errTooManyAlternatives = errors.New("it has too many alternatives")
)

// checkCost refuses schemas that would check one value without end or too often: references
// that lead back to themselves for the same value, and alternatives that multiply. A reference
// below a property or an item may lead back to itself, because each repetition needs a further level of the value.
func (c *compiler) checkCost() error {
	costs := make(map[*node]int, len(c.nodes))
	for _, v := range c.order {
		if _, err := c.nodes[v].cost(costs); err != nil {
			return err
		}
	}
	return nil
}

// cost returns the number of times that nodes check a value because n checks it: 1 for n itself, and the costs of
// its sameValueNodes. An allOf of two references to the same schema counts that schema twice. The error means that the
// cost exceeds maxCost, or that n leads back to itself: then the recursion of validate would end only at maxSteps, for
// every value.
//
// costs has the results so far, so that each node is visited once, and inProgress for the nodes whose cost is being
// computed. To meet such a node again means that it leads back to itself.
func (n *node) cost(costs map[*node]int) (int, error) {
	const inProgress = -1
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
		more, err := s.cost(costs)
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

// sameValueNodes returns the nodes of the schemas in n that check the same value as n, and not an item or a member of
// the value.
func (n *node) sameValueNodes() []*node {
	all := slices.Concat([]*node{n.ref, n.not, n.ifSchema, n.then, n.elseSchema}, n.allOf, n.anyOf, n.oneOf)
	for _, d := range n.dependencies {
		all = append(all, d.node)
	}
	return slices.DeleteFunc(all, func(s *node) bool { return s == nil })
}
