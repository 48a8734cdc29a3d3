package schema

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Limits of a schema and of a value. A schema comes from an MCP server or an API client, and a value from a model or an
// MCP server, so either may be an attempt to exhaust the process. maxDepth, together with maxCost below, limits the
// recursion and so the stack. maxSteps limits the time. The other constants limit memory.
const (
	maxSchema   = 256 << 10 // bytes of a schema
	maxNodes    = 8192      // schemas within a schema, including the root
	maxDepth    = 64        // levels of nesting, of schemas and of values
	maxValues   = 200_000   // JSON values within a schema or a checked value
	maxSteps    = 500_000   // steps of the validator in one Check or Validate: about 50 ms at worst
	maxProblems = 20        // problems that are reported for one value
)

// Schema is a compiled JSON Schema, made by Compile. The zero value is not usable. A Schema never changes, so
// goroutines can share it.
type Schema struct {
	root            *node
	draft7          bool // the schema is of draft-07, draft-06 or draft-04
	tracksEvaluated bool // the schema has unevaluatedItems or unevaluatedProperties
}

// compiler converts the JSON of a schema to nodes in three passes. It finds all schemas and compiles their patterns,
// then indexes the names that references can use and resolves the references, and finally builds the nodes. The passes
// cannot be merged, because a reference may point forward. nodes and order have only the values at places where the
// drafts expect a schema. A reference to anything else, such as an example or a member that no draft defines, is
// therefore an error.
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

// compile returns the node of the root schema. It must be called at most once.
func (c *compiler) compile(tree *value) (*node, error) {
	if !tree.isSchema() {
		return nil, fmt.Errorf("it is %s", describeValue(tree))
	}
	// Drafts 04 and 06 are treated like draft-07, from which they hardly differ. The one exception is that
	// exclusiveMinimum and exclusiveMaximum are booleans in draft-04 (see bounds). All other schemas, even those
	// without $schema, are treated as 2020-12.
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

// collectSchemas creates an empty node for v and for each schema within it. It also checks the types of their keywords
// and compiles their patterns. It returns an error for more than maxNodes schemas, for a keyword with the wrong type,
// and for a pattern that cannot be used.
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
	if patternProperties := v.keyword("patternProperties"); patternProperties != nil {
		if err := c.compilePropertyPatterns(patternProperties.names); err != nil {
			return err
		}
	}
	for subschema := range v.subschemas(nil) {
		if err := c.collectSchemas(subschema); err != nil {
			return err
		}
	}
	return nil
}

// compilePropertyPatterns compiles the regular expressions of patternProperties. An unsupported one is an error,
// because without it the validator cannot tell which properties are additional. For the keyword pattern, an unsupported
// expression is ignored instead.
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

// node is one compiled schema. It has only the keywords that restrict values. A field's zero value means no
// restriction.
type node struct {
	ref         *node // target of the first reference; allOf has the targets of further ones
	alwaysFalse bool  // no value is valid: the schema false, or an empty enum

	kinds    kind // the keyword type; 0 allows any type
	enum     []*value
	constant *value

	multipleOf, minimum, maximum, exclusiveMinimum, exclusiveMaximum *value
	minLength, maxLength                                             *int
	pattern                                                          *pattern

	prefix                   []*node // for the first items of an array, by index
	items, contains          *node   // items applies to the items after those in prefix
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
	states int
}

// patternNode is the schema for all properties whose names match pattern.
type patternNode struct {
	pattern *pattern
	node    *node
}

// dependency is what an object must meet if it has a member called name.
type dependency struct {
	name     string
	required []string // names of other members that the object must have
	node     *node    // a schema for the whole object, or nil
}

// kindNames maps the type names of JSON Schema to kinds.
var kindNames = map[string]kind{
	"null": null, "boolean": boolean, "integer": integer, "number": number, "string": text, "array": array, "object": object,
}

// buildNode sets the fields of n from the schema v. It relies on checkKeywords, which has checked the types of v's
// keywords, and on resolveReferences, which has set n.ref and may have set n.allOf.
func (c *compiler) buildNode(n *node, v *value) {
	if v.kind == boolean {
		n.alwaysFalse = !v.isTrue()
		return
	}
	if types := v.keyword("type"); types != nil {
		n.kinds, _ = namedKinds(types)
	}
	if enum := v.keyword("enum"); enum != nil {
		n.enum = enum.items
		n.alwaysFalse = len(enum.items) == 0
	}
	n.constant = v.member("const")
	n.minimum, n.exclusiveMinimum = bounds(v.keyword("minimum"), v.keyword("exclusiveMinimum"))
	n.maximum, n.exclusiveMaximum = bounds(v.keyword("maximum"), v.keyword("exclusiveMaximum"))
	n.multipleOf = v.keyword("multipleOf")
	if n.multipleOf != nil && n.multipleOf.float <= 0 {
		n.multipleOf = nil // not allowed (draft 2020-12 validation, 6.2.1), so ignore it
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

// bounds combines minimum and exclusiveMinimum, or maximum and exclusiveMaximum, to an inclusive and an exclusive
// bound. A nil result means that there is no such bound. In draft-04, the exclusive keyword is a boolean that says
// whether the other keyword's bound is exclusive (draft-04 validation, 5.1.2 and 5.1.3).
func bounds(bound, exclusive *value) (inclusiveBound, exclusiveBound *value) {
	switch {
	case exclusive == nil || exclusive.kind != boolean:
		return bound, exclusive
	case exclusive.isTrue():
		return nil, bound
	}
	return bound, nil
}

// namedKinds returns the types in types, the value of the keyword type: a name or a list of names. If it has an unknown
// type, ok is false and kinds is 0, which restricts nothing: some MCP servers write "any" or "date", and only they know
// which values they accept.
func namedKinds(types *value) (kinds kind, ok bool) {
	names := types.items
	if types.kind != array {
		names = []*value{types}
	}
	for _, name := range names {
		named, isKnown := kindNames[name.text]
		if !isKnown {
			return 0, false
		}
		kinds |= named
	}
	return kinds, true
}

// buildArray sets the fields of n for v's keywords for arrays.
func (c *compiler) buildArray(n *node, v *value) {
	n.contains = c.childSchema(v, "contains")
	n.minContains, n.maxContains = v.keywordCount("minContains"), v.keywordCount("maxContains")
	n.minItems, n.maxItems = v.keywordCount("minItems"), v.keywordCount("maxItems")
	unique := v.keyword("uniqueItems")
	n.unique = unique != nil && unique.isTrue()
	n.unevaluatedItems = c.childSchema(v, "unevaluatedItems")
	items := v.keyword("items")
	isTuple := c.draft7 && items != nil && items.kind == array
	if isTuple {
		// In draft-07, a list in items means what prefixItems means today (6.4.1).
		n.prefix = c.childSchemas(v, "items")
		n.items = c.childSchema(v, "additionalItems")
		return
	}
	n.items = c.childSchema(v, "items")
	if !c.draft7 {
		n.prefix = c.childSchemas(v, "prefixItems")
	}
}

// buildObject sets the fields of n for v's keywords for objects.
func (c *compiler) buildObject(n *node, v *value) {
	if properties := v.keyword("properties"); properties != nil {
		n.properties = make(map[string]*node, len(properties.names))
		for i, name := range properties.names {
			if schema := c.nodes[properties.items[i]]; schema != nil {
				n.properties[name] = schema
				n.names = append(n.names, name)
			}
		}
	}
	if patterns := v.keyword("patternProperties"); patterns != nil {
		for i, expression := range patterns.names {
			if schema := c.nodes[patterns.items[i]]; schema != nil {
				n.patterns = append(n.patterns, patternNode{c.patterns[expression], schema})
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

// buildDependencies sets n.dependencies from v's dependentRequired and dependentSchemas. In draft-07 it uses
// dependencies instead, whose members are schemas or lists of names (draft-07, 6.5.7).
func (c *compiler) buildDependencies(n *node, v *value) {
	keywords := []string{"dependentRequired", "dependentSchemas"}
	if c.draft7 {
		keywords = []string{"dependencies"}
	}
	for _, keyword := range keywords {
		dependencies := v.keyword(keyword)
		if dependencies == nil {
			continue
		}
		for i, name := range dependencies.names {
			n.dependencies = append(n.dependencies, dependency{
				name: name, required: dependencies.keywordStrings(name), node: c.nodes[dependencies.items[i]],
			})
		}
	}
}

// childSchema returns the node of the schema in v's keyword name, or nil if v lacks the keyword.
func (c *compiler) childSchema(v *value, name string) *node {
	if s := v.keyword(name); s != nil {
		return c.nodes[s]
	}
	return nil
}

// childSchemas returns the nodes of the schemas in v's keyword name. It returns nil if v lacks the keyword, or if its
// value is not a list or is an empty one. An empty anyOf or oneOf therefore restricts nothing.
func (c *compiler) childSchemas(v *value, name string) []*node {
	list := v.keyword(name)
	if list == nil || list.kind != array {
		return nil
	}
	var schemas []*node
	for _, item := range list.items {
		if schema := c.nodes[item]; schema != nil {
			schemas = append(schemas, schema)
		}
	}
	return schemas
}

// keywordCount returns the integer value of the keyword name, or nil if v lacks the keyword. It relies on
// checkKeywords, which has checked that the value is an integer of at most maxCount.
func (v *value) keywordCount(name string) *int {
	given := v.keyword(name)
	if given == nil {
		return nil
	}
	count := int(given.float)
	return &count
}

// keywordStrings returns the strings in the keyword name, in order and without duplicates. It returns nil if v lacks
// the keyword or its value is not a list.
func (v *value) keywordStrings(name string) []string {
	list := v.keyword(name)
	if list == nil || list.kind != array {
		return nil
	}
	var distinct []string
	seen := make(map[string]bool, len(list.items))
	for _, item := range list.items {
		if !seen[item.text] {
			seen[item.text] = true
			distinct = append(distinct, item.text)
		}
	}
	return distinct
}

// maxCost is the largest cost of a node (see node.cost) that checkCost accepts.
const maxCost = 10_000

var (
	errEndlessReference    = errors.New("it has a reference that leads back to itself")
	errTooManyAlternatives = errors.New("it has too many alternatives")
)

// checkCost rejects schemas that would check one value endlessly or too often: references that lead back to themselves
// for the same value, and alternatives that multiply. A reference within a property or an item may lead back to itself,
// because each repetition needs one more level of the value.
func (c *compiler) checkCost() error {
	costs := make(map[*node]int, len(c.nodes))
	for _, v := range c.order {
		if _, err := c.nodes[v].cost(costs); err != nil {
			return err
		}
	}
	return nil
}

// cost returns how many times nodes check a value because n checks it: once for n itself, plus the costs of its
// sameValueNodes. If n reaches the same schema twice, that schema counts twice. cost returns an error if the result
// exceeds maxCost, or if n leads back to itself: validate would then recurse up to maxSteps for every value.
//
// costs caches results, so that each node is visited once. It has inProgress for nodes whose cost is being computed.
// Meeting such a node again means that it leads back to itself.
func (n *node) cost(costs map[*node]int) (int, error) {
	const inProgress = -1
	cached := costs[n] // 0: not computed yet
	switch {
	case cached == inProgress:
		return 0, errEndlessReference
	case cached > 0:
		return cached, nil
	}
	costs[n] = inProgress
	total := 1 // for n itself
	for _, s := range n.sameValueNodes() {
		cost, err := s.cost(costs)
		if err != nil {
			return 0, err
		}
		total += cost
		if total > maxCost {
			return 0, errTooManyAlternatives
		}
	}
	costs[n] = total
	return total, nil
}

// sameValueNodes returns the nodes of the schemas in n that check the same value as n, rather than an item or a member
// of it.
func (n *node) sameValueNodes() []*node {
	all := slices.Concat([]*node{n.ref, n.not, n.ifSchema, n.then, n.elseSchema}, n.allOf, n.anyOf, n.oneOf)
	for _, d := range n.dependencies {
		all = append(all, d.node)
	}
	return slices.DeleteFunc(all, func(s *node) bool { return s == nil })
}
