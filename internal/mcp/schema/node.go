package schema

import "regexp"

// node is one subschema. Of the keywords only those are here that say what is valid; a
// zero field says nothing.
type node struct {
	ref   *node // $ref, or $dynamicRef, which is the same where there is one resource
	never bool  // the schema false

	kinds    kind // 0: any
	enum     []*value
	constant *value

	multipleOf, minimum, maximum, above, below *value
	minLength, maxLength                       *int
	pattern                                    *pattern

	prefix                   []*node
	items, contains          *node // items: of those behind prefix
	minContains, maxContains *int
	minItems, maxItems       *int
	unique                   bool
	unevaluatedItems         *node

	properties                   map[string]*node
	names                        []string // of properties, in order
	patterns                     []patternNode
	additional, propertyNames    *node
	required                     []string
	minProperties, maxProperties *int
	dependencies                 []dependency
	unevaluatedProperties        *node

	allOf, anyOf, oneOf        []*node
	not, when, then, otherwise *node // if, then, else
}

// pattern is a regular expression, and how large it is once it is compiled.
type pattern struct {
	*regexp.Regexp
	size int
}

type patternNode struct {
	pattern *pattern
	node    *node
}

// dependency is what a member, where there is one, asks of the object.
type dependency struct {
	name     string
	required []string
	node     *node
}
