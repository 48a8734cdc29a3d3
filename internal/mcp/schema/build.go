package schema

// kindNames are the types that a schema can name.
var kindNames = map[string]kind{
	"null": null, "boolean": boolean, "integer": integer, "number": number, "string": text, "array": array, "object": object,
}

// build fills the node of a schema, whose keywords have been checked.
func (c *compiler) build(n *node, v *value) {
	if v.kind == boolean {
		n.never = v.raw[0] == 'f'
		return
	}
	if t := v.keyword("type"); t != nil {
		n.kinds = kindNames[t.text]
		for _, name := range t.items {
			n.kinds |= kindNames[name.text]
		}
		n.never = n.kinds == 0 // of no type that there is
	}
	if e := v.keyword("enum"); e != nil {
		n.enum = e.items
		n.never = n.never || len(e.items) == 0
	}
	n.constant = v.get("const")
	n.minimum, n.maximum = v.keyword("minimum"), v.keyword("maximum")
	n.above, n.below = v.keyword("exclusiveMinimum"), v.keyword("exclusiveMaximum")
	if n.multipleOf = v.keyword("multipleOf"); n.multipleOf != nil && n.multipleOf.float <= 0 {
		n.multipleOf = nil // which means nothing (draft 2020-12 validation, 6.2.1)
	}
	n.minLength, n.maxLength = v.count("minLength"), v.count("maxLength")
	n.pattern = c.patterns[v.string("pattern")]
	c.buildArray(n, v)
	c.buildObject(n, v)
	n.allOf = append(n.allOf, c.list(v, "allOf")...)
	n.anyOf, n.oneOf = c.list(v, "anyOf"), c.list(v, "oneOf")
	n.not = c.sub(v, "not")
	if n.when = c.sub(v, "if"); n.when != nil {
		n.then, n.otherwise = c.sub(v, "then"), c.sub(v, "else")
	}
	c.notes = c.notes || n.unevaluatedItems != nil || n.unevaluatedProperties != nil
}

func (c *compiler) buildArray(n *node, v *value) {
	n.contains = c.sub(v, "contains")
	n.minContains, n.maxContains = v.count("minContains"), v.count("maxContains")
	n.minItems, n.maxItems = v.count("minItems"), v.count("maxItems")
	unique := v.keyword("uniqueItems")
	n.unique = unique != nil && unique.raw[0] == 't'
	n.unevaluatedItems = c.sub(v, "unevaluatedItems")
	items := v.keyword("items")
	switch {
	case !c.draft7:
		n.prefix = c.list(v, "prefixItems")
		n.items = c.sub(v, "items")
	case items != nil && items.kind == array: // draft-07, 6.4.1
		n.prefix, n.items = c.list(v, "items"), c.sub(v, "additionalItems")
	default:
		n.items = c.sub(v, "items")
	}
}

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
	n.additional, n.propertyNames = c.sub(v, "additionalProperties"), c.sub(v, "propertyNames")
	n.unevaluatedProperties = c.sub(v, "unevaluatedProperties")
	n.required = v.strings("required")
	n.minProperties, n.maxProperties = v.count("minProperties"), v.count("maxProperties")
	keywords := []string{"dependentRequired", "dependentSchemas"}
	if c.draft7 {
		keywords = []string{"dependencies"} // draft-07, 6.5.7: of both kinds
	}
	for _, keyword := range keywords {
		d := v.keyword(keyword)
		for i := 0; d != nil && i < len(d.names); i++ {
			n.dependencies = append(n.dependencies, dependency{d.names[i], d.strings(d.names[i]), c.nodes[d.items[i]]})
		}
	}
}

// sub is the node of a keyword that is a schema; nil where there is none.
func (c *compiler) sub(v *value, name string) *node {
	if s := v.keyword(name); s != nil {
		return c.nodes[s]
	}
	return nil
}

func (c *compiler) list(v *value, name string) []*node {
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

// count is a keyword that counts; nil where there is none. It may be written 2.0.
func (v *value) count(name string) *int {
	k := v.keyword(name)
	if k == nil {
		return nil
	}
	n := int(k.float)
	return &n
}

// strings is a keyword that is a list of names, each once.
func (v *value) strings(name string) []string {
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
